"""Writes audit events. Each change of an account, permission, limit or price is recorded as one audit event."""

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
    """Writes one audit event in the caller's transaction, calls each function in `listeners`, and returns the event.

    `actor`: the user who made the change; None means Fairlot itself. `verb`: what was done, such as "quota.set".
    `target`: the changed object. `tenant`: managers of this tenant may read the event; None means that only operators
    and admins may read it. `before` and `after`: the changed values before and after the change; dates, decimals and
    UUIDs are stored as text.

    The event stores the present names of the actor and the target, so that later renames do not change the event. Other
    modules add functions to `listeners` to react to events. Each listener is called with `verb` and `target`.
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
    """Writes one audit event for each pair in `changes`: the changed object, and its values after the change.

    `actor`, `verb` and `tenant` have the same meaning as in `record`, and are the same for all events. Unlike `record`,
    this function does not call the functions in `listeners`.
    """
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
    """Returns an unsaved audit event. The arguments are those of `record`."""
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
