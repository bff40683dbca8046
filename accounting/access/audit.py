"""Writes audit events: every change of accounts, permissions, limits and prices."""

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
# Each listener is called with the verb and the target of an event, in the event's transaction. Higher layers add
# theirs.
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
    """Writes one audit event in the caller's transaction and returns it.

    `actor` None stands for Fairlot. Managers of `tenant` may read the event. `before` and `after` hold the changed
    values; dates, decimals and UUIDs are stored as text. The event keeps the present names of the actor and the
    target.
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
    """Writes one audit event for each pair (target, new values) of `changes`, without calling the listeners."""
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
    """Returns the audit event for the arguments of `record`, without storing it."""
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
