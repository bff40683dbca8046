"""The submit page. It shows a job specification as form and as YAML. An edit of the form changes the YAML, and vice
versa."""

from __future__ import annotations

import re
from typing import Any

from django.http import Http404, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from accounting.access.permissions import may_somewhere
from accounting.core.errors import NotAllowed, Refused
from accounting.core.numbers import read_key, read_whole
from accounting.core.texts import one_line
from portal.submit.data import references, secret_list, secret_rows, volume_list
from portal.submit.draft import Choices, Draft, example, foreign_files_of, has_example, with_digest
from portal.submit.fields import Fields
from portal.submit.keeping import DO, asked_draft, keep_form
from portal.submit.kept import draft_of
from portal.unstorable import keeps_form
from portal.user_request import UserRequest
from scheduling.jobs.cloning import free_name
from scheduling.jobs.code import bounds
from scheduling.jobs.submitting import submit_job
from scheduling.models import Draft as KeptDraft
from scheduling.models import Job, Pipeline
from scheduling.pipelines.actions import create_pipeline
from scheduling.pipelines.definition import ONLY_STEP, Definition
from scheduling.spec.differences import differences
from scheduling.spec.job_spec import JobSpec, SpecError

BETWEEN_JOBS = re.compile(r"[,\s]+", re.ASCII)
PULL_POLICIES = ("Always", "IfNotPresent", "Never")


@keeps_form
@never_cache
@require_http_methods(["GET", "POST"])
def submit(request: UserRequest) -> HttpResponse:
    """Shows the submit page. A POST submits the job, or a pipeline if the job needs other jobs.

    A POST with `do=draft` keeps the form as a draft, with which `?draft=` opens it again.

    A POST with `do=form` only rewrites the YAML from the form, and a POST with `do=yaml` only rewrites the form from
    the YAML. Browsers without scripts need these two.
    """
    if request.method == "GET":
        return _first_page(request)
    choices = Choices.of(request.user, request.POST.get("cluster", ""))
    draft = Draft.from_post(request.POST, choices).with_upload(request)
    clone = _cloned(request, request.POST.get("clone", ""))
    needs = one_line(request.POST.get("needs", "")).strip()
    if rewritten := draft.rewritten(request.POST.get("do"), request.user):
        return _page(request, choices, rewritten, clone=clone, needs=needs)
    if request.POST.get("do") == DO:
        return keep_form(
            request,
            KeptDraft.Kind.JOB,
            draft,
            page=lambda refused: _page(request, choices, refused, clone=clone, needs=needs, status=422),
        )
    draft = draft.ready_to_send()
    if needs:
        return _submit_with_needs(request, choices, draft, clone, needs)
    if draft.spec and draft.cluster and draft.tenant:
        try:
            job = submit_job(
                actor=request.user,
                tenant=draft.tenant,
                cluster=draft.cluster,
                spec=draft.spec,
                request_key=draft.request_key,
                even_if_never=draft.even_if_never,
                cloned_from=clone,
            )
        except SpecError as error:
            draft = draft.with_problems(error)
        except (NotAllowed, Refused) as error:
            draft = draft.refused(error, request.user)
        else:
            return redirect("job", job.pk)
    return _page(request, choices, draft, clone=clone, status=422)


def _submit_with_needs(
    request: UserRequest, choices: Choices, draft: Draft, clone: Job | None, needs: str
) -> HttpResponse:
    """Creates the pipeline of one step for a job that needs the jobs that the text `needs` names."""
    problem = ""
    if draft.spec and draft.cluster and draft.tenant:
        try:
            made = create_pipeline(
                actor=request.user,
                tenant=draft.tenant,
                cluster=draft.cluster,
                definition=Definition.of_job(draft.spec, read_needs(needs)),
                request_key=draft.request_key,
                even_if_never=draft.even_if_never,
            )
        except SpecError as error:
            found = {path.removeprefix(f"steps.{ONLY_STEP}."): text for path, text in error.problems.items()}
            problem = ". ".join(text for path, text in found.items() if path.startswith("needs"))
            if rest := {path: text for path, text in found.items() if not path.startswith("needs")}:
                draft = draft.with_problems(SpecError(rest))
        except (NotAllowed, Refused) as error:
            draft = draft.refused(error, request.user)
        else:
            return redirect("pipeline", made.pk)
    return _page(request, choices, draft, clone=clone, needs=needs, problem=problem, status=422)


def read_needs(text: str) -> list[int | str]:
    """Returns the numbers of jobs in the text, which has commas or blanks between them; other words stay texts."""
    words = filter(None, BETWEEN_JOBS.split(text))
    return [read_key(word.removeprefix("#")) or word for word in words]


@keeps_form
@require_POST
def convert(request: UserRequest) -> HttpResponse:
    """Returns the parts of the page that change after an edit.

    `?from=form` means that the form was edited, `?from=yaml` that the YAML was edited.
    """
    choices = Choices.of(request.user, request.POST.get("cluster", ""))
    draft = Draft.from_post(request.POST, choices).with_upload(request)
    source = "yaml" if request.GET.get("from") == "yaml" else "form"
    moved = source == "form" and request.POST.get("drawn_for", "") not in {
        "",
        str(draft.cluster and draft.cluster.pk),
    }
    if moved:
        draft = draft.in_another_cluster()
    draft = draft.with_proposals(request, choices.uploads)
    draft = (draft.use_yaml() if source == "yaml" else draft.use_form()).checked_for(request.user)
    # A changed upload changes the section of the form that shows it.
    new_upload = bool(request.FILES or request.POST.get("code_remove"))
    context = form_context(draft, choices) | {"source": source, "swap": True, "new_upload": new_upload}
    context["all_fields"] = moved or not {"name", "command"}.isdisjoint(draft.proposed)
    page = request.POST.get("page")
    context |= {"scheduling": page == "schedule", "is_session": page == "session"}
    context |= _changes(draft, _cloned(request, request.POST.get("clone", "")))
    return render(request, "submit/converted.html", context)


def _first_page(request: UserRequest) -> HttpResponse:
    """Shows the submit page before any edit: empty, with the example job, with the draft `?draft=`, or with the
    specification of the job `?clone=`, which `?workers=` and `?gpus_per_worker=` change.

    `?sent=` is the key of a form that was submitted, to which the user comes back. Its job is shown as a clone.
    """
    clone, sent = request.GET.get("clone", ""), None
    if key := request.GET.get("sent", ""):
        sent = Job.objects.visible_to(request.user).filter(owner=request.user, request_key=key).first()
        clone = str(sent.pk) if sent else clone
        made = Pipeline.objects.visible_to(request.user).filter(owner=request.user, request_key=key).first()
        if made:
            return redirect("pipeline", made.pk)
    kept = asked_draft(request, KeptDraft.Kind.JOB)
    if isinstance(kept, HttpResponse):
        return kept
    if kept:
        return _page(request, *draft_of(kept, request.user), kept=kept)
    if not clone:
        choices = Choices.of(request.user)
        if request.GET.get("example") and has_example(choices):
            draft = Draft.new(choices, fields=example()).use_form().checked_for(request.user)
        else:
            draft = Draft.new(choices, fields=Fields())
        return _page(request, choices, draft)
    job = _cloned(request, clone)
    if job is None:
        raise Http404
    choices = Choices.of(request.user, str(job.cluster_id))
    spec = job.spec | {"name": free_name(job.tenant, job.name)} | shape_in(request.GET)
    draft = Draft.of_stored(choices, spec=spec, tenant=job.tenant, user=request.user)
    return _page(request, choices, draft, clone=job, sent=sent is not None)


def shape_in(query: QueryDict) -> dict[str, int]:
    """Returns the number of workers and of their GPUs that the URL asks for, if any. A link to a clone of another shape
    contains them."""
    asked = {name: read_whole(query.get(name, "")) for name in ("workers", "gpus_per_worker")}
    return {name: number for name, number in asked.items() if number is not None}


def _page(
    request: UserRequest,
    choices: Choices,
    draft: Draft,
    *,
    clone: Job | None = None,
    needs: str = "",
    problem: str = "",
    kept: KeptDraft | None = None,
    sent: bool = False,
    status: int = 200,
) -> HttpResponse:
    context = form_context(draft, choices) | _changes(draft, clone) | {"kept": kept, "sent": sent}
    context["may_publish"] = may_somewhere(request.user, "template.publish")
    context["needs"] = {"text": needs, "problem": problem}
    return render(request, "submit/submit.html", context, status=status)


def _cloned(request: UserRequest, key: str) -> Job | None:
    """Returns the job with the key `key`, which the user clones; None if there is none or the user may not see it."""
    jobs = Job.objects.visible_to(request.user).select_related("tenant")
    return jobs.filter(pk=read_key(key)).first() if key else None


def _changes(draft: Draft, clone: Job | None) -> dict[str, Any]:
    """Returns the template context for the changes from the job `clone`, which the user clones."""
    if clone is None:
        return {}
    found = differences(JobSpec.stored(clone.spec), draft.spec) if draft.spec else []
    return {"clone": clone, "differences": found}


def form_context(draft: Draft, choices: Choices) -> dict[str, Any]:
    """Returns the template context for the form, the YAML and the pre-flight check. Several pages include these
    parts."""
    known = {name for name, _ in choices.generations}
    draft = draft.naming_files(choices.uploads)
    uploads = with_digest(choices.uploads, draft.fields.code_upload)
    return {
        "upload": uploads.first(),
        "foreign_files": lambda: foreign_files_of(uploads),  # only pages that show the upload read it
        "code_bounds": bounds(),
        "volume_list": volume_list(draft.fields.volumes, choices.volumes),
        "secret_list": secret_list(draft.fields.secret_files, choices.secrets),
        "secret_rows": secret_rows(draft.fields.secrets),
        "references": references(choices.secrets),
        "draft": draft,
        "choices": choices,
        "has_example": has_example(choices),
        "pull_policies": PULL_POLICIES,
        "unknown_generations": [name for name in draft.fields.generations if name not in known],
        "unknown_environment": draft.fields.environment not in {"", *choices.environments},
    }
