"""The page that creates a sweep, with its job specification (as form and as YAML) and its parameters."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from accounting.core.errors import NotAllowed, Refused
from accounting.core.numbers import read_key
from accounting.models import User
from portal.submit.draft import Choices, Draft
from portal.submit.fields import Fields
from portal.submit.keeping import DO, asked_draft, keep_form
from portal.submit.kept import draft_of
from portal.submit.summary import of_sweep
from portal.submit.views import form_context
from portal.sweeps.fields import KINDS, NAMES, SWEEP, SweepFields
from portal.unstorable import keeps_form
from portal.user_request import UserRequest
from scheduling.models import Draft as KeptDraft
from scheduling.models import Job, Sweep
from scheduling.spec.job_spec import SpecError
from scheduling.sweeps.actions import create_sweep, preview_sweep
from scheduling.sweeps.estimate import estimate_sweep
from scheduling.sweeps.parameters import text_of


@keeps_form
@never_cache
@require_http_methods(["GET", "POST"])
def new(request: UserRequest) -> HttpResponse:
    """Shows the form for a new sweep. A POST creates the sweep, or with `do=draft` keeps the form as a draft.

    With `?clone=`, the form starts with this sweep; with `?job=`, with the specification of this job; with `?draft=`,
    with this draft.
    """
    if request.method == "POST":
        return _posted(request)
    kept = asked_draft(request, KeptDraft.Kind.SWEEP)
    if isinstance(kept, HttpResponse):
        return kept
    if kept:
        return _page(
            request, *draft_of(kept, request.user), SweepFields.kept(kept.content.get(SWEEP)), kept=kept
        )
    if clone := request.GET.get("clone"):
        seen = Sweep.objects.visible_to(request.user).select_related("tenant")
        return _started(request, get_object_or_404(seen, pk=read_key(clone)))
    if job := request.GET.get("job"):
        jobs = Job.objects.visible_to(request.user).select_related("tenant")
        return _started(request, get_object_or_404(jobs, pk=read_key(job)))
    choices = Choices.of(request.user)
    return _page(request, choices, Draft.new(choices, fields=Fields()), SweepFields.new())


@keeps_form
@require_POST
def preview(request: UserRequest) -> HttpResponse:
    """Returns the number of members and the first commands, or the problems of the fields, while the user edits."""
    choices = Choices.of(request.user, request.POST.get("cluster", ""))
    draft, swept = Draft.from_post(request.POST, choices).settle(), SweepFields.from_post(request.POST)
    context = _preview(request.user, draft, swept) | {"swap": True, "names": NAMES}
    return render(request, "sweeps/previewed.html", context)


def _started(request: UserRequest, source: Sweep | Job) -> HttpResponse:
    choices = Choices.of(request.user, str(source.cluster_id))
    draft = Draft.of_stored(choices, spec=source.spec, tenant=source.tenant, user=request.user)
    swept = SweepFields.of(source) if isinstance(source, Sweep) else SweepFields.new()
    return _page(request, choices, draft, swept)


def _posted(request: UserRequest) -> HttpResponse:
    choices = Choices.of(request.user, request.POST.get("cluster", ""))
    draft, swept = Draft.from_post(request.POST, choices), SweepFields.from_post(request.POST)
    if rewritten := draft.rewritten(request.POST.get("do"), request.user):
        if rewritten.imported and "parameters" in rewritten.imported.options:
            swept = SweepFields.imported(rewritten.imported.options)
        return _page(request, choices, rewritten, swept)
    if request.POST.get("do") == DO:
        return keep_form(
            request,
            KeptDraft.Kind.SWEEP,
            draft,
            more={SWEEP: swept.to_dict()},
            page=lambda refused: _page(request, choices, refused, swept, status=422),
        )
    draft = draft.ready_to_send()
    try:
        parameters, rules = swept.read()
    except SpecError as error:
        return _page(request, choices, draft, swept.with_problems(error), status=422)
    if draft.spec and draft.cluster and draft.tenant:
        try:
            sweep = create_sweep(
                actor=request.user,
                tenant=draft.tenant,
                cluster=draft.cluster,
                spec=draft.spec,
                parameters=parameters,
                rules=rules,
                request_key=draft.request_key,
                even_if_never=draft.even_if_never,
            )
        except SpecError as error:
            swept = swept.with_problems(error)
            rest = {name: text for name, text in error.problems.items() if name not in NAMES}
            draft = draft.with_problems(SpecError(rest)) if rest else draft
        except (NotAllowed, Refused) as error:
            draft = draft.refused(error, request.user)
        else:
            return redirect("sweep", sweep.pk)
    return _page(request, choices, draft, swept, status=422)


def _page(
    request: UserRequest,
    choices: Choices,
    draft: Draft,
    swept: SweepFields,
    *,
    kept: KeptDraft | None = None,
    status: int = 200,
) -> HttpResponse:
    context = form_context(draft, choices) | _preview(request.user, draft, swept)
    context |= {"kinds": KINDS, "goals": Sweep.Goal.choices, "kept": kept}
    return render(request, "sweeps/form.html", context, status=status)


def _preview(user: User, draft: Draft, swept: SweepFields) -> dict[str, Any]:
    """Returns the context of the preview: its members and what they would cost, or the problems of the sweep's fields.

    Problems that the fields have already stay.
    """
    found, estimate, wrong = None, None, ""
    if swept.parameters or swept.count:
        try:
            parameters, rules = swept.read()
            if draft.spec is not None:
                found = preview_sweep(spec=draft.spec, parameters=parameters)
                if draft.tenant and draft.cluster:
                    estimate = estimate_sweep(
                        actor=user,
                        tenant=draft.tenant,
                        cluster=draft.cluster,
                        spec=draft.spec,
                        members=found.size,
                        at_once=rules.at_once,
                    )
        except SpecError as error:
            wrong = "; ".join(f"{name} {text}" for name, text in error.problems.items() if name not in NAMES)
            swept = swept.with_problems(SpecError(error.problems | swept.problems))
    previewed = [
        (spec.name, [(name, text_of(value)) for name, value in values.items()], spec.command)
        for values, spec in (found.first if found else ())
    ]
    line = of_sweep(estimate) if estimate else ""
    return {
        "line": line,
        "swept": swept,
        "preview": found,
        "previewed": previewed,
        "estimate": estimate,
        "wrong": wrong,
    }
