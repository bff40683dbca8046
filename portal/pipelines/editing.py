"""The page that creates a pipeline from its definition in YAML and uploads of code, with a graph that follows the
text."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.forms import HiddenInput
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from accounting.core.errors import NotAllowed, Refused
from accounting.core.name_order import by_name
from accounting.core.numbers import read_key
from accounting.models import Membership, Tenant, User
from portal.forms.fields import Row, Text
from portal.forms.form import Form
from portal.fragments import render_page
from portal.pipelines.code import StepCode
from portal.pipelines.graph import Graph, draw_written
from portal.submit.draft import Choices, Draft
from portal.submit.imported import Import, position_of
from portal.submit.keeping import DO, asked_draft, keep
from portal.submit.kept import name_in
from portal.submit.summary import of_pipeline
from portal.unstorable import keeps_form
from portal.user_request import UserRequest
from scheduling.importers.report import WorkKind
from scheduling.jobs.code import bounds
from scheduling.models import Cluster, Job, Pipeline
from scheduling.models import Draft as KeptDraft
from scheduling.pipelines.actions import create_pipeline, definition_of
from scheduling.pipelines.definition import FOR_ALL, Definition, sketch
from scheduling.pipelines.preview import preview_pipeline
from scheduling.spec.code import DIGEST
from scheduling.spec.job_spec import JobSpec, SpecError
from scheduling.spec.yaml_core import NotYaml

EXAMPLE = """\
name: digits
steps:
  prepare:
    command: python prepare.py --to $FAIRLOT_CHECKPOINT_DIR
  train:
    needs: [prepare]
    command: python train.py --data $FAIRLOT_INPUT_PREPARE/checkpoint
"""

ADD_CODE = "code"  # the value of `do` with which a browser without scripts sends files
OF_STEP = re.compile(r"steps\.([^.]+)")


class PipelineForm(Form):
    """The form for a new pipeline: its team, its cluster and its definition."""

    team = Row("Team", Tenant.objects.none())
    cluster = Row("Cluster", Cluster.objects.none())
    yaml = Text(
        "Steps",
        rows=24,
        is_code=True,
        css="code",
        help_text="Each step has the fields of a job, at least one GPU, and needs: the steps that must end before it.",
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


@dataclass(frozen=True)
class Check:
    """What the page says about the text: its graph, its problems by path, and which steps could never run.

    `graph` is None if nothing can be drawn.
    """

    graph: Graph | None
    steps: Sequence[str]
    problems: Mapping[str, str]
    never: Mapping[str, str]
    summary: str = ""

    @property
    def yaml_problems(self) -> dict[str, str]:
        """Returns the problems as the page lists them; those of uploads stand beside the uploads."""
        return {
            path: text if path else text[:1].upper() + text[1:]
            for path, text in self.problems.items()
            if path != "code"
        }

    @property
    def code_problem(self) -> str:
        return self.problems.get("code", "")

    @classmethod
    def of(
        cls, user: User, tenant: Tenant | None, cluster: Cluster | None, text: str, uploads: Mapping[str, str]
    ) -> Check:
        """Checks the text with the uploads as if the pipeline was created, for `tenant` on `cluster` if both are
        chosen."""
        problems: dict[str, str] = {}
        never: Mapping[str, str] = {}
        summary = ""
        try:
            definition = Definition.from_yaml(text, uploads)
            summary = of_pipeline(step.spec for step in definition.steps)
            if tenant and cluster:
                found = preview_pipeline(actor=user, tenant=tenant, cluster=cluster, definition=definition)
                problems, never = dict(found.problems), found.never
        except SpecError as error:
            problems = error.problems
        try:
            steps = sketch(text)
        except NotYaml:
            return cls(None, (), problems, never)
        wrong = {name for path in problems for name in OF_STEP.findall(path)[:1]}
        names = [step.name for step in steps]
        return cls(draw_written(steps, wrong) if steps else None, names, problems, never, summary)


@keeps_form
@never_cache
@require_http_methods(["GET", "POST"])
def new(request: UserRequest) -> HttpResponse:
    """Shows the form for a new pipeline. A POST creates the pipeline, or with `do=draft` keeps the form as a draft. A
    POST of the submit form with `do=take-` and a number shows this work of the imported text.

    With `?clone=`, the form starts with this pipeline; with `?job=`, with a step that needs this job; with `?draft=`,
    with this draft. A POST with `do=code` only takes the files, and one with `code_remove` only removes code: browsers
    without scripts need these two.
    """
    if request.method == "POST":
        return _posted(request)
    initial: dict[str, Any] = {"yaml": EXAMPLE}
    kept = asked_draft(request, KeptDraft.Kind.PIPELINE)
    if isinstance(kept, HttpResponse):
        return kept
    if kept:
        initial = {name: kept.content.get(name) for name in ("yaml", "team", "cluster")}
        form = PipelineForm(request, request_key=kept.request_key, **initial)
        return _page(request, form, StepCode.kept(kept.content.get("uploads")), kept=kept)
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
    return _page(request, PipelineForm(request, request_key=uuid.uuid4().hex, **initial), StepCode())


@keeps_form
@require_POST
def preview(request: UserRequest) -> HttpResponse:
    """Returns the graph of the steps and what is wrong with them, while the user edits; with files or `code_remove`
    also the code of the steps."""
    form = PipelineForm(request, posted=True)
    tenant, cluster = _place(form)
    code = StepCode.from_post(request.POST).with_files(request, tenant)
    check = Check.of(request.user, tenant, cluster, _yaml(request), code.uploads)
    context = _context(request.user, code, check) | {"swap": True}
    context["new_code"] = bool(request.FILES or "code_remove" in request.POST)
    return render(request, "pipelines/previewed.html", context)


def _taken(request: UserRequest, position: int) -> HttpResponse:
    """Shows the form with a pipeline of the text that was pasted into the submit form. Its steps have the code that was
    uploaded there."""
    choices = Choices.of(request.user, request.POST.get("cluster", ""))
    draft = Draft.from_post(request.POST, choices)
    found = Import.read(draft.foreign or draft.yaml, draft.cluster, position)
    work = found.work if found else None
    initial: dict[str, Any] = {"yaml": EXAMPLE}
    digest = draft.fields.code_upload
    code = StepCode({FOR_ALL: digest} if DIGEST.fullmatch(digest) else {})
    if work is not None and work.kind is WorkKind.PIPELINE:
        initial["yaml"] = Definition.parse(work.options["pipeline"]).to_yaml()
    for name, row in (("team", draft.tenant), ("cluster", draft.cluster)):
        initial[name] = row.pk if row else None
    return _page(request, PipelineForm(request, request_key=uuid.uuid4().hex, **initial), code)


def _posted(request: UserRequest) -> HttpResponse:
    if (position := position_of(request.POST.get("do"))) is not None:
        return _taken(request, position)
    form = PipelineForm(request, posted=True)
    tenant, cluster = _place(form)
    code = StepCode.from_post(request.POST).with_files(request, tenant)
    if request.POST.get("do") == DO:
        return _kept(request, form, code)
    if code.problem or request.POST.get("do") == ADD_CODE or "code_remove" in request.POST:
        return _page(request, form, code, status=422 if code.problem else 200)
    problems: dict[str, str] = {}
    if form.is_valid() and tenant and cluster:
        try:
            made = create_pipeline(
                actor=request.user,
                tenant=tenant,
                cluster=cluster,
                definition=Definition.from_yaml(_yaml(request), code.uploads),
                request_key=form.cleaned_data["request_key"][:80] or None,
            )
        except SpecError as error:
            problems = error.problems
        except Refused as error:
            form.refuse(error.message, {"tenant": "team"}.get(error.field or "", error.field))
        except NotAllowed as error:
            form.refuse(str(error))
        else:
            return redirect("pipeline", made.pk)
    return _page(request, form, code, problems=problems, status=422)


def _kept(request: UserRequest, form: PipelineForm, code: StepCode) -> HttpResponse:
    """Keeps the form as a draft, also if it is incomplete or wrong."""
    tenant, cluster = _place(form)

    def refused(why: str) -> HttpResponse:
        form.refuse(why)
        return _page(request, form, code, status=422)

    if code.problem:  # the files were refused, and the user must know
        return refused(code.problem)
    yaml = _yaml(request)
    return keep(
        request,
        KeptDraft.Kind.PIPELINE,
        name=name_in(yaml),
        request_key=request.POST.get("request_key", "")[:80] or uuid.uuid4().hex,
        content={
            "yaml": yaml,
            "team": tenant and tenant.pk,
            "cluster": cluster and cluster.pk,
            "uploads": code.to_dict(request.user),
        },
        page=refused,
    )


def _yaml(request: UserRequest) -> str:
    return request.POST.get("yaml", "").replace("\r\n", "\n")


def _place(form: PipelineForm) -> tuple[Tenant | None, Cluster | None]:
    """Returns the team and the cluster that a posted form chooses; None for one that was not offered."""
    form.is_valid()
    return form.cleaned_data.get("team"), form.cleaned_data.get("cluster")


def _context(user: User, code: StepCode, check: Check) -> dict[str, Any]:
    return {
        "check": check,
        "code": code,
        "code_rows": code.rows(user, check.steps),
        "code_problem": code.problem or check.code_problem,
        "code_bounds": bounds(),
        "for_all": FOR_ALL,
    }


def _page(
    request: UserRequest,
    form: PipelineForm,
    code: StepCode,
    *,
    kept: KeptDraft | None = None,
    problems: Mapping[str, str] | None = None,
    status: int = 200,
) -> HttpResponse:
    """Shows the form. `problems` are those that an action has found."""
    text = str(form["yaml"].value() or "").replace("\r\n", "\n")
    tenants, clusters = list(form.teams), list(form.clusters)
    tenant = _chosen(tenants, form["team"].value())
    check = Check.of(request.user, tenant, _chosen(clusters, form["cluster"].value()), text, code.uploads)
    if problems:
        check = replace(check, problems={**check.problems, **problems})
    context = _context(request.user, code, check) | {"form": form, "kept": kept, "yaml": text}
    context |= {"has_team": bool(tenants), "has_cluster": bool(clusters)}
    return render_page(request, "pipelines/form.html", context, status=status)


def _chosen(rows: Sequence[Any], key: object) -> Any:
    """Returns the row with this key, or what the browser shows without one: the first."""
    return next((row for row in rows if str(row.pk) == str(key)), None) if key else next(iter(rows), None)
