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
from portal.submit.keeping import DO, asked_draft, keep
from portal.submit.kept import name_in
from portal.unstorable import keeps_form
from portal.user_request import UserRequest
from scheduling.models import Cluster, Job, Pipeline
from scheduling.models import Draft as KeptDraft
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
    """Shows the form for a new pipeline. A POST creates the pipeline, or with `do=draft` keeps the form as a draft.

    With `?clone=`, the form starts with this pipeline; with `?job=`, with a step that needs this job; with `?draft=`,
    with this draft.
    """
    if request.method == "POST":
        return _posted(request)
    initial: dict[str, Any] = {"yaml": EXAMPLE}
    kept = asked_draft(request, KeptDraft.Kind.PIPELINE)
    if isinstance(kept, HttpResponse):
        return kept
    if kept:
        initial = {name: kept.content.get(name) for name in ("yaml", "team", "cluster")}
        return _page(request, PipelineForm(request, request_key=kept.request_key, **initial), kept=kept)
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
    if request.POST.get("do") == DO:
        return _kept(request, form)
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


def _kept(request: UserRequest, form: PipelineForm) -> HttpResponse:
    """Keeps the form as a draft, also if it is incomplete or wrong."""
    form.is_valid()
    values = form.cleaned_data
    yaml = request.POST.get("yaml", "").replace("\r\n", "\n")

    def refused(why: str) -> HttpResponse:
        form.refuse(why)
        return _page(request, form, posted=form)

    return keep(
        request,
        KeptDraft.Kind.PIPELINE,
        name=name_in(yaml),
        request_key=request.POST.get("request_key", "")[:80] or uuid.uuid4().hex,
        content={
            "yaml": yaml,
            "team": values["team"].pk if values.get("team") else None,
            "cluster": values["cluster"].pk if values.get("cluster") else None,
        },
        page=refused,
    )


def _page(
    request: UserRequest, form: PipelineForm, *, posted: Form | None = None, kept: KeptDraft | None = None
) -> HttpResponse:
    return show(
        request,
        "pipelines/form.html",
        {"form": form, "kept": kept, "has_team": form.teams.exists(), "has_cluster": form.clusters.exists()},
        posted=posted,
    )
