"""Writes the events of the audit trail that match a URL query as a file."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

from django.http import Http404, HttpRequest, StreamingHttpResponse

from accounting.access.permissions import may, may_somewhere
from accounting.core.csv_lines import csv_line, escape_cell
from accounting.models import AuditEvent, Tenant, User
from accounting.models.audit import AuditEventQuerySet
from portal.administration import verbs
from portal.administration.event_filter import ALL, NO_WORK, EventFilter
from portal.live.streams import Rights, while_allowed
from portal.reports.exports import pieces_sent
from portal.reports.periods import Query, WrongQuestion

STEP = 1000  # events that one query of an export reads


def found_by(query: Query, user: User, tenant: Tenant | None = None) -> AuditEventQuerySet:
    """Returns the events that match the query and that `user` may see, newest first. Raises WrongQuestion for an
    invalid query.

    With `tenant`, only those of this team; without a kind in the query, then without those of its work.
    """
    wanted = EventFilter.read(query, usual=ALL if tenant is None else NO_WORK)
    if wanted.problems:
        raise WrongQuestion(wanted.problems)
    return wanted.narrow(seen_of(user, tenant))


def seen_of(user: User, tenant: Tenant | None = None) -> AuditEventQuerySet:
    """Returns the events that `user` may see: all, or those of a team."""
    seen = AuditEvent.objects.visible_to(user)
    return seen if tenant is None else seen.filter(tenant=tenant)


def row_of(event: AuditEvent) -> dict[str, Any]:
    """Returns an event as files and the API show it. The event's tenant must be read with it."""
    return {
        "id": event.pk,
        "at": event.at,
        "actor": event.actor_name,
        "verb": event.verb,
        "action": verbs.words_for(event.verb),
        "target_type": event.target_type,
        "target_id": event.target_id,
        "target": event.target_name,
        "team": event.tenant.slug if event.tenant else None,
        "before": event.before,
        "after": event.after,
    }


def csv_lines(rows: Iterator[list[dict[str, Any]]]) -> Iterator[str]:
    yield csv_line(COLUMNS)
    for some in rows:
        yield "".join(csv_line([escape_cell(_cell(row[name])) for name in COLUMNS]) for row in some)


def _cell(value: object) -> object:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value


def json_lines(rows: Iterator[list[dict[str, Any]]]) -> Iterator[str]:
    for some in rows:
        yield "".join(f"{json.dumps(row | {'at': row['at'].isoformat()})}\n" for row in some)


COLUMNS = (
    "id",
    "at",
    "actor",
    "verb",
    "action",
    "target_type",
    "target_id",
    "target",
    "team",
    "before",
    "after",
)
# By the name of the file: its generator and its media type.
FORMS: dict[str, tuple[Callable[[Iterator[list[dict[str, Any]]]], Iterator[str]], str]] = {
    "audit.csv": (csv_lines, "text/csv; charset=utf-8"),
    "audit.jsonl": (json_lines, "application/jsonl; charset=utf-8"),
}


def may_search(user: User, tenant: Tenant | None = None) -> bool:
    """Returns whether the user may read the trail of a team; without a team, of any."""
    return may_somewhere(user, "audit.read") if tenant is None else may(user, "audit.read", tenant)


def trail_in_format(
    request: HttpRequest,
    user: User,
    form: str,
    reader: Callable[[], User | None] | None = None,
    *,
    tenant: Tenant | None = None,
) -> StreamingHttpResponse:
    """Streams all events that match the URL query and that `user` may see, newest first. `form` is a key of FORMS.

    With `tenant`, streams only those of this team, as `found_by`. The stream ends if `user` loses the right to read the
    trail; `reader`: as for Rights. Raises Http404 for an unknown format, and if `user` may not read the trail. Raises
    WrongQuestion for an invalid query.
    """
    may_see = partial(may_search, tenant=tenant)
    if form not in FORMS or not may_see(user):
        raise Http404
    write, media_type = FORMS[form]
    events = found_by(request.GET, user, tenant)
    pieces: AsyncIterator[str] = pieces_sent(write(rows_of(events)))
    return StreamingHttpResponse(
        while_allowed(pieces, Rights(request, user, may_see, reader)),
        content_type=media_type,
        headers={
            "Content-Disposition": f'attachment; filename="fairlot-{form}"',
            "Cache-Control": "no-store",
        },
    )


def rows_of(events: AuditEventQuerySet) -> Iterator[list[dict[str, Any]]]:
    """Yields the rows of events, newest first, STEP at a time.

    All rows are of the moment at which the first are read: events never change, and those that come later are newer.
    """
    events = events.select_related("tenant").order_by("-pk")
    below: int | None = None
    while some := list((events if below is None else events.filter(pk__lt=below))[:STEP]):
        yield [row_of(event) for event in some]
        below = some[-1].pk
