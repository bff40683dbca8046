"""Writes the audit trail: every change of what people are, may do and pay."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.db import models

from accounting.core.bulk import insert_rows
from accounting.models import AuditEvent, Tenant, User

NOTHING: Mapping[str, Any] = MappingProxyType({})
# Called with the verb and the target of each event, in its transaction. Rooms above this one add theirs.
listeners: list[Callable[[str, models.Model], None]] = []


def record(
    *,
    actor: User | None,
    verb: str,
    target: models.Model,
    tenant: Tenant | None = None,
    before: Mapping[str, Any] = NOTHING,
    after: Mapping[str, Any] = NOTHING,
) -> AuditEvent:
    """Writes one audit event in the caller's transaction.

    `actor` None stands for Fairlot. `tenant` decides which managers may read the event. `before` and `after` hold
    what changed; dates, decimals and UUIDs are stored as text. Names keep their present form.
    """
    event = _event(actor, verb, target, tenant, before=before, after=after)
    event.save(force_insert=True)
    for listen in listeners:
        listen(verb, target)
    return event


def record_many(
    *,
    actor: User | None,
    verb: str,
    tenant: Tenant | None,
    changes: Sequence[tuple[models.Model, Mapping[str, Any]]],
) -> None:
    """Writes an audit event for each of `changes`, pairs of a target and its new values, like `record` for each."""
    insert_rows(_event(actor, verb, target, tenant, after=after) for target, after in changes)


def _event(
    actor: User | None,
    verb: str,
    target: models.Model,
    tenant: Tenant | None,
    *,
    before: Mapping[str, Any] = NOTHING,
    after: Mapping[str, Any] = NOTHING,
) -> AuditEvent:
    """Returns the event that `record` describes, not stored yet."""
    return AuditEvent(
        actor=actor,
        actor_name=actor.get_username() if actor else "Fairlot",
        verb=verb,
        target_type=target._meta.model_name or "",
        target_id=str(target.pk),
        target_name=str(target)[:150],
        tenant=tenant,
        before=_as_json(before),
        after=_as_json(after),
    )


def _as_json(values: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(dict(values), cls=DjangoJSONEncoder))
