"""Endpoints for secrets: list, create, replace and delete. No response contains the value of a secret."""

from __future__ import annotations

from typing import Any

from django.http import Http404
from django.shortcuts import get_object_or_404
from ninja import Router
from ninja.responses import Status

from accounting.access.permissions import tenants_where
from accounting.core.errors import Refused
from portal.api.secrets import schemas
from portal.api.versions import IfMatch, versions_in
from portal.user_request import ApiRequest
from scheduling.jobs.secrets import create_secret, delete_secret, replace_secret
from scheduling.models import Secret
from scheduling.models.secrets import ONLY_KEY
from scheduling.models.versions import version_of

router = Router(tags=["Secrets"])


@router.get("/secrets", response=list[schemas.Secret], url_name="secrets")
def secrets(request: ApiRequest) -> list[dict[str, Any]]:
    """Returns the secrets that jobs of the caller may use: the caller's secrets and the secrets of the caller's
    teams."""
    return [_show(one) for one in Secret.objects.visible_to(request.auth).select_related("tenant")]


@router.post("/secrets", response={201: schemas.Secret}, url_name="secrets")
def create(request: ApiRequest, new: schemas.NewSecret) -> Status[Any]:
    """Creates a secret that belongs to the caller, or to a team that the caller manages."""
    tenant = None
    if new.team:
        managed = tenants_where(request.auth, "secret.change")
        tenant = get_object_or_404(managed, slug=new.team)
    made = create_secret(actor=request.auth, name=new.name, values=_values(new), tenant=tenant)
    return Status(201, _show(made))


@router.put("/secrets/{int:secret_id}", response=schemas.Secret, url_name="secret")
def replace(
    request: ApiRequest, secret_id: int, given: schemas.SecretTexts, if_match: IfMatch = None
) -> dict[str, Any]:
    """Replaces the content of a secret. A running job gets the new content when its next attempt starts."""
    found = _writable(request, secret_id)
    replaced = replace_secret(
        actor=request.auth, secret=found, values=_values(given), seen=versions_in(if_match)
    )
    return _show(replaced)


@router.delete("/secrets/{int:secret_id}", response={204: None}, url_name="secret")
def delete(request: ApiRequest, secret_id: int) -> Status[Any]:
    """Deletes a secret. Refused (409) while a job that has not ended uses the secret."""
    delete_secret(actor=request.auth, secret=_writable(request, secret_id))
    return Status(204, None)


def _writable(request: ApiRequest, secret_id: int) -> Secret:
    if secret_id >= 2**63:
        raise Http404
    found = Secret.objects.writable_by(request.auth).select_related("tenant")
    return get_object_or_404(found, pk=secret_id)


def _values(given: schemas.SecretTexts) -> dict[str, str]:
    if given.value and given.values:
        raise Refused(
            "`value` and `values` cannot both be set. Send `value` for one text, or `values` for texts by key.",
            "value",
        )
    one = {ONLY_KEY: given.value.get_secret_value()} if given.value else {}
    return {key: text.get_secret_value() for key, text in given.values.items()} or one


def _show(secret: Secret) -> dict[str, Any]:
    same = ("id", "name", "keys", "created_at", "changed_at")
    return {name: getattr(secret, name) for name in same} | {
        "version": version_of(secret),
        "team": secret.tenant.slug if secret.tenant else "",
    }
