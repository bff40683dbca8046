"""Keeps the content of a form as a draft, when its user asks for it and while the user types, and opens drafts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse

from accounting.core.errors import NotAllowed, Refused
from accounting.core.numbers import read_key
from portal.submit.draft import Draft as Form
from portal.submit.kept import content_of
from portal.user_request import UserRequest
from scheduling.jobs.drafts import delete_draft, save_draft, submitted_with
from scheduling.models import Draft
from scheduling.spec.job_spec import SpecError

DO = "draft"  # the value of `do` with which forms ask to be kept
# By kind: the names of the form's URL, and of the URL of what it creates.
FORMS = {
    Draft.Kind.JOB: ("submit", "job"),
    Draft.Kind.SWEEP: ("sweep_new", "sweep"),
    Draft.Kind.PIPELINE: ("pipeline_new", "pipeline"),
    Draft.Kind.SCHEDULE: ("schedule_new", "schedule"),
}


def keep(
    request: UserRequest,
    kind: str,
    *,
    name: str,
    request_key: str,
    content: Mapping[str, Any],
    upload: str = "",
    page: Callable[[str], HttpResponse],
) -> HttpResponse:
    """Keeps a form as a draft. Returns the form with the draft, or only the line that says so if a script asks.

    If the draft is refused, returns `page(why)`: the form with the reason.
    """
    found: dict[str, Any] = {"draft": None, "why": ""}
    try:
        found["draft"] = save_draft(
            actor=request.user,
            kind=kind,
            name=name,
            request_key=request_key,
            content=content,
            upload=upload,
        )
    except (NotAllowed, Refused) as error:
        found["why"] = str(error)
    if request.headers.get("HX-Request"):
        return render(request, "drafts/kept.html", found)
    if found["draft"] is None:
        return page(found["why"])
    messages.success(request, "The draft is kept. You find it under your drafts.")
    return redirect(address_of(found["draft"]))


def keep_form(
    request: UserRequest,
    kind: str,
    draft: Form,
    *,
    more: Mapping[str, Any] | None = None,
    page: Callable[[Form], HttpResponse],
) -> HttpResponse:
    """Keeps the form of a job as a draft, like `keep`. `page` shows the form with the reason.

    `more` is what another form has beside the specification of the job.
    """
    if draft.upload_problem:  # the files were refused, and the user must know
        return page(draft.with_problems(SpecError({"code": draft.upload_problem})))
    content = content_of(draft) | dict(more or {})
    fields = content["fields"]
    return keep(
        request,
        kind,
        # A draft without a name is recognised by how its command begins.
        name=fields["name"].strip() or fields["command"].strip().partition("\n")[0],
        request_key=draft.request_key,
        content=content,
        upload=fields["code_upload"],
        page=lambda why: page(draft.settle().with_problems(SpecError({"": why}))),
    )


def address_of(draft: Draft) -> str:
    """Returns the URL of the form with the draft."""
    return f"{reverse(FORMS[Draft.Kind(draft.kind)][0])}?draft={draft.pk}"


def asked_draft(request: UserRequest, kind: str) -> Draft | HttpResponse | None:
    """Returns the draft that the address asks for with `?draft=`; None if it asks for none.

    For a draft that was submitted at the moment when it was kept again, returns the way to what was submitted. Raises
    Http404 for a draft that is not the user's.
    """
    key = request.GET.get("draft", "")
    if not key:
        return None
    draft = get_object_or_404(Draft.objects.visible_to(request.user), pk=read_key(key), kind=kind)
    if (made := submitted_with(request.user, draft.request_key)) is None:
        return draft
    delete_draft(actor=request.user, draft=draft)
    messages.info(request, "This draft was submitted already.")
    return redirect(FORMS[Draft.Kind(kind)][1], made.pk)
