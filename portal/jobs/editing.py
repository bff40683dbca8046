"""The page on which users change the priority, labels, GPU types, most workers and times of a job, and the labels of
an ended one."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_http_methods

from accounting.core.errors import Refused
from accounting.models import Generation
from portal.forms.fields import Measure, Several, Text, Whole
from portal.forms.form import Form, Values
from portal.forms.posting import perform, show
from portal.jobs.views import visible_job
from portal.submit.lines import read_labels, write_labels
from portal.user_request import UserRequest
from scheduling.jobs.editing import EDITABLE_AT_END, edit_job
from scheduling.models import Job
from scheduling.spec.job_spec import JobSpec, SpecError
from scheduling.spec.refused_values import by_top_field


class EditForm(Form):
    """The form with the fields of a job that can be changed after the submit."""

    priority = Whole("Priority", help_text="From -100 to 100. Orders only your own jobs; higher goes first.")
    generations = Several("GPU types", help_text="Choose none to accept every type.")
    max_workers = Whole(
        "Workers at most", required=False, help_text="Only of elastic jobs. Leave empty for a fixed number."
    )
    expected_hours = Measure(
        "Expected hours on GPUs", required=False, help_text="Leave empty if you do not know."
    )
    deadline_hours = Measure(
        "Deadline, in hours after the submit", required=False, help_text="Leave empty for no deadline."
    )
    time_limit_hours = Measure(
        "Time limit, in hours on GPUs",
        required=False,
        help_text="Stops the job after this time on GPUs, over all attempts. Leave empty for no limit.",
    )
    labels = Text(
        "Labels",
        rows=3,
        required=False,
        is_code=True,
        css="code",
        help_text="One key=value or one key per line.",
    )

    def __init__(self, job: Job, request: HttpRequest | None = None) -> None:
        spec = JobSpec.stored(job.spec)
        initial = {name: getattr(spec, name) for name in self.base_fields} | {
            "labels": write_labels(spec.labels)
        }
        super().__init__("edit", request, initial=initial)
        types = (
            Generation.objects.filter(nodes__cluster=job.cluster_id).values_list("name", flat=True).distinct()
        )
        # A type that has left the cluster stays a choice, so that saving other fields does not remove it.
        names = dict.fromkeys([*types, *spec.generations])
        self.offer("generations", [(name, name) for name in names])
        if job.state not in Job.WAITING:
            del self.fields["generations"]
        if job.kind != Job.Kind.TRAINING:
            for name in ("expected_hours", "deadline_hours", "time_limit_hours", "max_workers"):
                del self.fields[name]
        if job.is_at_end:
            for name in [name for name in self.fields if name not in EDITABLE_AT_END]:
                del self.fields[name]

    def clean_labels(self) -> dict[str, str]:
        return labels_in(self.cleaned_data["labels"])

    def change(self, request: UserRequest, job: Job, values: Values) -> None:
        """Changes the job to the values of the form. If a value is invalid, shows the problem beside its field.

        Raises Refused if the page was opened before the job ended: what it asks for beside the labels would be lost.
        """
        if job.is_at_end and "priority" in request.POST:
            raise Refused(
                "The job has ended meanwhile. Only its labels can be changed now. Nothing was saved."
            )
        try:
            edit_job(actor=request.user, job=job, changes=values)
        except SpecError as error:
            for name, text in by_top_field(error.problems).items():
                for line in text.split("\n"):
                    self.refuse(line, name)


def labels_in(text: str) -> dict[str, str]:
    """Returns the labels in lines of text. Raises ValidationError, for the form field, if a key occurs twice."""
    try:
        return read_labels(text)
    except SpecError as error:
        raise ValidationError(list(error.problems.values())) from None


@require_http_methods(["GET", "POST"])
def edit(request: UserRequest, pk: int) -> HttpResponse:
    """Shows the fields of a job that can be changed. A POST changes them."""
    job = visible_job(request, pk)
    if request.method == "GET":
        return _page(request, job=job)
    form = EditForm(job, request)
    return perform(
        request,
        form,
        partial(form.change, request, job),
        done=f"{job.name} has been changed.",
        to=("job", pk),
        page=partial(_page, job=job),
    )


def _page(request: UserRequest, *, job: Job, posted: Form | None = None) -> HttpResponse:
    context: dict[str, Any] = {
        "job": job,
        "form": posted or EditForm(job),
        "may_change": Job.objects.changeable_by(request.user).filter(pk=job.pk).exists(),
    }
    return show(request, "jobs/edit.html", context, posted=posted)
