"""The page that creates a pipeline from its definition in YAML."""

from __future__ import annotations

import uuid
from typing import Any

from django.forms import HiddenInput
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from accounting.core.errors import NotAllowed, Refused
from accounting.core.name_order import by_name
from accounting.core.numbers import read_key
from accounting.models import Membership, Tenant
from portal.forms.fields import Row, Text
from portal.forms.form import Form
from portal.forms.posting import show
from portal.unstorable import keeps_form
from portal.user_request import UserRequest
from scheduling.models import Cluster, Job, Pipeline
from scheduling.pipelines.actions import create_pipeline, definition_of
from scheduling.pipelines.definition import Definition
from scheduling.spec.job_spec import JobSpec, SpecError

EXAMPLE = """\
name: digits
steps:
  prepare:
    command: python prepare.py --to $FAIRLOT_CHECKPOINT_DIR
  train:
    needs: [prepare]
    command: python train.py --data $FAIRLOT_INPUT_PREPARE/checkpoint
"""


class PipelineForm(Form):
    """The form for a new pipeline: its team, its cluster and its definition."""

    team = Row("Team", Tenant.objects.none())
    cluster = Row("Cluster", Cluster.objects.none())
    yaml = Text(
        "Steps",
        rows=24,
        is_code=True,
        css="code",
        help_text="YAML: each step has the fields of a job, and needs. See the documentation of pipelines.",
    )
    request_key = Text("Request", required=False, widget=HiddenInput)

    def __init__(self, request: UserRequest, *, posted: bool = False, **initial: Any) -> None:
        super().__init__("pipeline", request if posted else None, initial=initial)
        teams = Tenant.objects.visible_to(request.user, role=Membership.Role.MEMBER).active()
        self.teams = teams.order_by(*by_name("name"))
        self.clusters = Cluster.objects.attached().order_by(*by_name("name"))
        for name, rows in (("team", self.teams), ("cluster", self.clusters)):
            field = self.fields[name]
            if isinstance(field, Row):
                field.queryset = rows


@keeps_form
@never_cache
@require_http_methods(["GET", "POST"])
def new(request: UserRequest) -> HttpResponse:
    """Shows the form for a new pipeline. A POST creates the pipeline.

    With `?clone=`, the form starts with this pipeline; with `?job=`, with a step that needs this job.
    """
    if request.method == "POST":
        return _posted(request)
    initial: dict[str, Any] = {"yaml": EXAMPLE}
    if clone := request.GET.get("clone"):
        found = get_object_or_404(Pipeline.objects.visible_to(request.user), pk=read_key(clone))
        initial = {
            "yaml": definition_of(found).to_yaml(),
            "team": found.tenant_id,
            "cluster": found.cluster_id,
        }
    elif number := request.GET.get("job"):
        job = get_object_or_404(Job.objects.visible_to(request.user), pk=read_key(number))
        spec = JobSpec.stored(job.spec)
        yaml = Definition.of_job(spec, [job.pk]).to_yaml()
        initial = {"yaml": yaml, "team": job.tenant_id, "cluster": job.cluster_id}
    return _page(request, PipelineForm(request, request_key=uuid.uuid4().hex, **initial))


def _posted(request: UserRequest) -> HttpResponse:
    form = PipelineForm(request, posted=True)
    if form.is_valid():
        values = form.cleaned_data
        try:
            made = create_pipeline(
                actor=request.user,
                tenant=values["team"],
                cluster=values["cluster"],
                definition=Definition.from_yaml(values["yaml"]),
                request_key=values["request_key"][:80] or None,
            )
        except SpecError as error:
            for path, text in error.problems.items():
                told = (
                    f"{path}: {text.rstrip('.')}."
                    if path not in {"", "yaml"}
                    else text[:1].upper() + text[1:]
                )
                form.refuse(told, "yaml")
        except Refused as error:
            form.refuse(error.message, {"tenant": "team"}.get(error.field or "", error.field))
        except NotAllowed as error:
            form.refuse(str(error))
        else:
            return redirect("pipeline", made.pk)
    return _page(request, form, posted=form)


def _page(request: UserRequest, form: PipelineForm, *, posted: Form | None = None) -> HttpResponse:
    return show(
        request,
        "pipelines/form.html",
        {"form": form, "has_team": form.teams.exists(), "has_cluster": form.clusters.exists()},
        posted=posted,
    )
