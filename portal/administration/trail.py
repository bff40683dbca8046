"""The audit trail: who changed what, before and after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.views.decorators.http import require_safe

from accounting.models import AuditEvent
from portal.administration.access import operators_only

EVENTS_PER_PAGE = 50


@dataclass(frozen=True)
class Change:
    """One value of an event, as it was and as it is."""

    name: str
    before: str  # empty when it was not told
    after: str


@dataclass(frozen=True)
class Entry:
    event: AuditEvent
    changes: list[Change]


def entries(events: QuerySet[AuditEvent] | list[AuditEvent]) -> list[Entry]:
    return [
        Entry(
            event,
            [
                Change(name.replace("_", " "), _told(event.before, name), _told(event.after, name))
                for name in dict.fromkeys([*event.before, *event.after])
            ],
        )
        for event in events
    ]


def _told(values: dict[str, Any], name: str) -> str:
    value = values.get(name, "")
    if isinstance(value, bool):
        return "on" if value else "off"
    return "nothing" if value is None else str(value)


def filtered(events: QuerySet[AuditEvent], query: QueryDict) -> QuerySet[AuditEvent]:
    """By the name of the actor, the verb, and part of the target's name."""
    wanted = {
        "actor_name__icontains": query.get("actor", "").strip(),
        "verb": query.get("verb", ""),
        "target_name__icontains": query.get("target", "").strip(),
    }
    return events.filter(**{name: value for name, value in wanted.items() if value})


@operators_only
@require_safe
def audit(request: HttpRequest) -> HttpResponse:
    visible = AuditEvent.objects.visible_to(request.user)
    page = Paginator(filtered(visible, request.GET), EVENTS_PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "tab": "audit",
        "page": page,
        "entries": entries(page.object_list),
        "verbs": visible.order_by("verb").values_list("verb", flat=True).distinct(),
    }
    return render(request, "administration/audit.html", context)
