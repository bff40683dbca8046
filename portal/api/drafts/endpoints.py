"""Endpoints for drafts: list, keep, read and delete the caller's drafts."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import Http404
from django.shortcuts import get_object_or_404
from ninja import Router
from ninja.responses import Status

from accounting.core.errors import Refused
from accounting.core.wording import fixed
from accounting.models import Tenant
from portal.api.drafts import schemas
from portal.api.fields import IdempotencyKey
from portal.api.jobs.endpoints import own_team, place_of
from portal.submit.draft import Choices
from portal.submit.draft import Draft as Form
from portal.submit.fields import Fields, digest
from portal.submit.kept import content_of, draft_of, name_in
from portal.sweeps.fields import SWEEP
from portal.user_request import ApiRequest
from scheduling.jobs.drafts import delete_draft, save_draft
from scheduling.models import Cluster, Draft
from scheduling.pipelines.definition import Definition
from scheduling.spec import yaml_core
from scheduling.spec.job_spec import LONGEST_YAML, SpecError

router = Router(tags=["Drafts"])


def own_draft(request: ApiRequest, draft_id: int) -> Draft:
    """Returns the caller's draft with this id. Raises Http404 if the caller has no such draft."""
    if draft_id >= 2**63:
        raise Http404
    return get_object_or_404(Draft.objects.visible_to(request.auth), pk=draft_id)


@router.get("/drafts", response=list[schemas.Draft], url_name="drafts")
def list_drafts(request: ApiRequest) -> Any:
    """Returns the caller's drafts, the one that was changed last first."""
    return Draft.objects.visible_to(request.auth).defer("content").order_by("-saved_at", "-pk")


@router.post("/drafts", response={201: schemas.DraftInFull}, url_name="drafts")
def create(
    request: ApiRequest,
    new: schemas.NewDraft,
    idempotency_key: IdempotencyKey = "",
) -> Any:
    """Keeps a job as a draft of the caller's. A call that repeats an Idempotency-Key replaces the draft of the first
    call.

    A draft is submitted on the portal's page, or with `POST /jobs` and the draft's `request_key` as Idempotency-Key.
    """
    yaml = new.spec if isinstance(new.spec, str) else yaml_core.write(new.spec)
    if len(yaml) > LONGEST_YAML:
        raise Refused(f"A specification has at most {fixed(LONGEST_YAML)} characters.", "spec")
    tenant, cluster = _place_of(request, new)
    choices = Choices.of(request.auth, str(cluster.pk) if cluster else "")
    typed = Fields()
    form = Form(
        fields=typed,
        yaml=yaml,
        tenant=tenant,
        cluster=cluster or choices.cluster,
        request_key=idempotency_key or uuid.uuid4().hex,
        agreed=digest(typed.to_yaml()),
    )
    content = content_of(form)
    draft = save_draft(
        actor=request.auth,
        kind=Draft.Kind.JOB,
        name=content["fields"]["name"] or name_in(yaml),
        request_key=form.request_key,
        content=content,
        upload=content["fields"]["code_upload"],
    )
    return Status(201, show_in_full(request, draft))


@router.get("/drafts/{int:draft_id}", response=schemas.DraftInFull, url_name="draft")
def get_draft(request: ApiRequest, draft_id: int) -> dict[str, Any]:
    """Returns one of the caller's drafts, with its content and its problems."""
    return show_in_full(request, own_draft(request, draft_id))


@router.delete("/drafts/{int:draft_id}", response={204: None}, url_name="draft")
def delete(request: ApiRequest, draft_id: int) -> Any:
    """Deletes one of the caller's drafts."""
    delete_draft(actor=request.auth, draft=own_draft(request, draft_id))
    return Status(204, None)


def show_in_full(request: ApiRequest, draft: Draft) -> dict[str, Any]:
    shown = {name: getattr(draft, name) for name in ("id", "kind", "name", "created_at", "saved_at")}
    shown |= {"request_key": draft.request_key, "parameters": ""}
    if draft.kind == Draft.Kind.PIPELINE:
        content = draft.content
        teams = Tenant.objects.visible_to(request.auth).filter(pk=content.get("team"))
        clusters = Cluster.objects.attached().filter(pk=content.get("cluster"))
        return shown | {
            "team": teams.values_list("slug", flat=True).first() or "",
            "cluster": clusters.values_list("name", flat=True).first() or "",
            "yaml": content.get("yaml", ""),
            "problems": _problems_of_pipeline(content.get("yaml", "")),
        }
    _, form = draft_of(draft, request.auth)
    if draft.kind == Draft.Kind.SWEEP:
        shown["parameters"] = draft.content.get(SWEEP, {}).get("parameters", "")
    return shown | {
        "team": form.tenant.slug if form.tenant else "",
        "cluster": form.cluster.name if form.cluster else "",
        "yaml": form.yaml,
        "problems": form.problems | form.yaml_problems,
    }


def _problems_of_pipeline(yaml: str) -> dict[str, str]:
    try:
        Definition.from_yaml(yaml)
    except SpecError as error:
        return dict(error.problems)
    return {}


def _place_of(request: ApiRequest, new: schemas.NewDraft) -> tuple[Tenant | None, Cluster | None]:
    """Returns the team and the cluster that the draft names. Either stays open if the draft names none and there are
    several. Raises SpecError for a name that is not available."""
    try:
        return place_of(request.auth, new)
    except SpecError as error:
        if any(getattr(new, name) for name in error.problems):
            raise
    tenant = own_team(request.auth, new.team) if new.team else None
    return tenant, Cluster.objects.attached().filter(name=new.cluster).first() if new.cluster else None
