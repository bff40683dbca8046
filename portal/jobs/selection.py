"""Cancels, changes or resubmits several jobs that the user selected in the job list, after a page that lists them.

Also leads to the comparison of the selected jobs' metrics.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpResponse, QueryDict
from django.shortcuts import redirect
from django.urls import reverse

from accounting.core.errors import NotAllowed, Refused
from accounting.core.numbers import read_key
from accounting.core.texts import one_line
from accounting.core.wording import counted
from accounting.models import Membership
from accounting.models.tenants import ids_with_role
from portal.access import posted_from
from portal.forms.fields import Measure, Text, Whole
from portal.forms.form import Form, Values
from portal.forms.posting import show
from portal.jobs.editing import labels_in
from portal.jobs.filters import with_generation
from portal.jobs.metric_charts import MOST_JOBS
from portal.user_request import UserRequest
from scheduling.jobs.actions import cancel_job
from scheduling.jobs.cloning import clone_job
from scheduling.jobs.editing import edit_job
from scheduling.models import Job
from scheduling.spec.job_spec import JobSpec, SpecError

MOST_SELECTED = 200
NOT_AGAIN = "is a session or a replica; start it on the page of sessions or services"


class PriorityForm(Form):
    """The form that sets the priority of the selected jobs."""

    priority = Whole("Priority", help_text="From -100 to 100. Orders only your own jobs; higher goes first.")


class TimeLimitForm(Form):
    """The form that sets the time limit of the selected jobs."""

    time_limit_hours = Measure(
        "Time limit, in hours on GPUs",
        required=False,
        help_text="Stops a job after this time on GPUs, over all attempts. Leave empty for no limit.",
    )


class LabelsForm(Form):
    """The form that adds labels to the selected jobs and removes labels from them."""

    labels = Text(
        "Add labels",
        rows=2,
        required=False,
        is_code=True,
        css="code",
        help_text="One key=value or one key per line.",
    )
    removed = Text(
        "Remove labels", rows=2, required=False, is_code=True, css="code", help_text="One key per line."
    )

    def clean_labels(self) -> dict[str, str]:
        return labels_in(self.cleaned_data["labels"])


@dataclass(frozen=True)
class Choice:
    """Something that users can do with the jobs that they selected.

    `act` does it with one job. `form` is the form with the values that it needs. `submits` says that it makes new jobs,
    so that the user must be a member of the team; otherwise the user must be one who may change the job.
    """

    title: str
    button: str
    done: str  # after the number of jobs, in the message
    act: Callable[[UserRequest, Job, Values], object]
    form: type[Form] = Form
    needs_unfinished: bool = True
    submits: bool = False
    is_dangerous: bool = False


def _cancel(request: UserRequest, job: Job, values: Values) -> None:
    cancel_job(actor=request.user, job=job)


def _set_fields(request: UserRequest, job: Job, values: Values) -> None:
    edit_job(actor=request.user, job=job, changes=values)


def _set_labels(request: UserRequest, job: Job, values: Values) -> None:
    removed = {line.strip() for line in values["removed"].split("\n")}
    present = Job.objects.values_list("spec", flat=True).get(
        pk=job.pk
    )  # not as it was before the first of the jobs
    kept = {key: text for key, text in JobSpec.stored(present).labels.items() if key not in removed}
    edit_job(actor=request.user, job=job, changes={"labels": kept | values["labels"]})


def _submit_again(request: UserRequest, job: Job, values: Values) -> None:
    if job.kind != Job.Kind.TRAINING:
        raise Refused(f"{job.name} {NOT_AGAIN}.")
    key = one_line(request.POST.get("request_key", ""))[:40]
    clone_job(
        actor=request.user,
        job=job,
        changes={},
        # A second click on the button submits nothing more.
        request_key=f"{key}:{job.pk}" if key else None,
    )


CHOICES: Mapping[str, Choice] = {
    "cancel": Choice("Cancel the selected jobs?", "Cancel jobs", "cancelled", _cancel, is_dangerous=True),
    "priority": Choice(
        "Set the priority of the selected jobs", "Set priority", "changed", _set_fields, PriorityForm
    ),
    "time_limit": Choice(
        "Set the time limit of the selected jobs", "Set time limit", "changed", _set_fields, TimeLimitForm
    ),
    "labels": Choice(
        "Change the labels of the selected jobs",
        "Change labels",
        "changed",
        _set_labels,
        LabelsForm,
        needs_unfinished=False,
    ),
    "again": Choice(
        "Submit the selected jobs again?",
        "Submit again",
        "submitted again",
        _submit_again,
        needs_unfinished=False,
        submits=True,
    ),
}


@posted_from("jobs")
def selected(request: UserRequest) -> HttpResponse:
    """Lists the selected jobs and what is about to happen to them. If the user has confirmed it, does it."""
    choice = CHOICES.get(request.POST.get("do", ""))
    jobs = _selected(request)
    if request.POST.get("do") == "compare":
        return _compare(request, jobs)
    if choice is None or not jobs:
        messages.error(request, "Select one or more jobs first.")
        return redirect(_list(request))
    form = choice.form("selected", request if "confirmed" in request.POST else None)
    if form.is_bound and form.is_valid():
        _perform(request, choice, jobs, form.cleaned_data)
        return redirect(_list(request))
    return _page(request, choice, jobs, form)


def _compare(request: UserRequest, jobs: list[Job]) -> HttpResponse:
    """Redirects to the comparison of the metrics of the jobs, oldest first."""
    if not 2 <= len(jobs) <= MOST_JOBS:
        messages.error(request, f"Select 2 to {MOST_JOBS} jobs to compare their metrics.")
        return redirect(_list(request))
    first, *others = sorted(job.pk for job in jobs)
    return redirect(f"{reverse('job_metrics', args=[first])}?with={','.join(map(str, others))}")


def _selected(request: UserRequest) -> list[Job]:
    """Returns the selected jobs that the user may see, at most MOST_SELECTED."""
    keys = {key for text in request.POST.getlist("job") if (key := read_key(text))}
    found = with_generation(Job.objects.visible_to(request.user)).filter(pk__in=keys).order_by("-pk")
    return list(found.select_related("tenant", "owner", "cluster").defer(None)[:MOST_SELECTED])


def _page(request: UserRequest, choice: Choice, jobs: list[Job], form: Form) -> HttpResponse:
    changeable = set(
        Job.objects.changeable_by(request.user)
        .filter(pk__in=[job.pk for job in jobs])
        .values_list("pk", flat=True)
    )
    own = set(ids_with_role(request.user, Membership.Role.MEMBER))
    rows = [
        (job, _why_not(job, choice, may_change=job.pk in changeable, may_submit=job.tenant_id in own))
        for job in jobs
    ]
    context: dict[str, Any] = {
        "choice": choice,
        "rows": rows,
        "concerned": sum(not why for _, why in rows),
        "form": form,
        "do": request.POST.get("do"),
        "back": request.POST.get("back", ""),
        "request_key": uuid.uuid4().hex,
    }
    return show(request, "jobs/selected.html", context, posted=form if form.is_bound else None)


def _why_not(job: Job, choice: Choice, *, may_change: bool, may_submit: bool) -> str:
    """Returns why the action will skip this job; "" if it will not."""
    if choice.submits:
        if job.kind != Job.Kind.TRAINING:
            return NOT_AGAIN
        return "" if may_submit else "you are not a member of its team"
    if choice.needs_unfinished and job.is_at_end:
        return "has already ended"
    return "" if may_change else "you may not change this job"


def _perform(request: UserRequest, choice: Choice, jobs: list[Job], values: Values) -> None:
    """Performs the action on each job, in a transaction each, and adds messages that say what was done and refused."""
    done, refusals = 0, []
    for job in jobs:
        if choice.needs_unfinished and job.has_ended:
            continue
        try:
            choice.act(request, job, values)
            done += 1
        except (NotAllowed, Refused, SpecError) as error:
            refusals.append(f"{job.name} #{job.pk}: {error}")
    if done:
        messages.success(request, f"{counted(done, 'job')} {choice.done}.")
    for text in refusals[:5]:
        messages.error(request, text)
    if len(refusals) > 5:
        messages.error(request, f"{counted(len(refusals) - 5, 'more job')} could not be changed.")


def _list(request: UserRequest) -> str:
    """Returns the URL of the job list with the filter with which the user selected the jobs."""
    query = QueryDict(request.POST.get("back", "")[:2000]).urlencode()
    return f"{reverse('jobs')}?{query}" if query else reverse("jobs")
