"""Actions on drafts: keep the content of a form, and delete it.

The audit trail does not record drafts: nobody but their owner sees them, and they change while the owner types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.core.texts import not_storable, one_line
from accounting.models import User
from scheduling.models import CodeUpload, Draft, Job, Pipeline, Schedule, Sweep

MOST = 50  # drafts of one user
MOST_BYTES = 256 * 1024  # of one draft's content


@transaction.atomic(durable=True)
def save_draft(
    *, actor: User, kind: str, name: str, request_key: str, content: Mapping[str, Any], upload: str = ""
) -> Draft:
    """Keeps the content of a form as a draft, and returns the draft. Replaces the draft with the same request key.

    `upload` is the digest of the code that the form names. If the actor may use this upload, it is kept with the draft.

    Raises Refused if the content is too large or not storable, if the form was submitted already, or if the actor has
    too many drafts.
    """
    if actor.is_anonymous or not actor.is_active:
        raise NotAllowed("Only a signed-in, active user can keep drafts.")
    if kind not in Draft.Kind.values:
        raise Refused(f"A draft is of one of the kinds {', '.join(Draft.Kind.values)}.", "kind")
    if not request_key or len(request_key) > 80:
        raise Refused("A draft has a request key of 1 to 80 characters.", "request_key")
    if flaw := not_storable(dict(content)):
        raise Refused(f"The draft cannot be kept: {flaw[0][-1] if flaw[0] else 'it'} {flaw[1]}.")
    if len(json.dumps(content)) > MOST_BYTES:
        raise Refused(f"A draft has at most {MOST_BYTES // 1024} KiB. Shorten the texts.")
    User.objects.select_for_update(no_key=True).only("pk").get(pk=actor.pk)  # counts one draft after another
    if submitted_with(actor, request_key):
        raise Refused("This form was submitted already, so it is not kept as a draft.")
    own = Draft.objects.filter(owner=actor)
    if own.count() >= MOST and not own.filter(request_key=request_key).exists():
        raise Refused(f"You have {MOST} drafts, and there can be no more. Delete one first.")
    draft, _ = Draft.objects.update_or_create(
        owner=actor,
        request_key=request_key,
        defaults={
            "kind": kind,
            "name": one_line(name).strip()[:120],
            "content": dict(content),
            "upload": _upload(actor, upload),
            "saved_at": now_from_database(),
        },
    )
    return draft


@transaction.atomic(durable=True)
def delete_draft(*, actor: User, draft: Draft) -> None:
    """Deletes a draft of the actor's. Does nothing if it is gone already."""
    if draft.owner_id != actor.pk:
        raise NotAllowed("Only its owner may delete a draft.")
    Draft.objects.filter(pk=draft.pk).delete()


def submitted_with(owner: User, request_key: str) -> Job | Sweep | Pipeline | Schedule | None:
    """Returns what the owner has submitted with this request key; None if nothing."""
    for model in (Job, Sweep, Pipeline, Schedule):
        rows: QuerySet[Any] = model._default_manager.filter(owner=owner, request_key=request_key)
        if (found := rows.first()) is not None:
            return found  # type: ignore[no-any-return]
    return None


def forget_draft(actor: User, request_key: str | None) -> None:
    """Deletes the draft of the form with this request key, within the transaction of the submit."""
    if request_key is not None:
        Draft.objects.filter(owner=actor, request_key=request_key).delete()


def _upload(actor: User, digest: str) -> CodeUpload | None:
    """Returns the upload with this digest that the actor may use; None if there is none. It cannot be deleted until the
    transaction ends."""
    if not digest:
        return None
    seen = CodeUpload.objects.visible_to(actor).filter(digest=digest).only("pk")
    return seen.select_for_update(of=("self",), no_key=True).order_by("pk").first()
