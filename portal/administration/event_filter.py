"""The filter of recorded changes by kind, person, object and days, read from the URL's query."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, tzinfo
from typing import Self

from django.utils import timezone

from accounting.core.wording import unknown_choice
from accounting.models.audit import AuditEventQuerySet, AuditFilter
from portal.administration.verbs import WORK, Kind, said_by, verbs_of
from portal.reports.periods import Query, read_date, read_zone

NO_WORK, ALL = "", "all"


@dataclass(frozen=True)
class EventFilter:
    """Which recorded changes a page lists. `problems` maps each parameter with an invalid value to its problem; such a
    value has no effect."""

    kind: str = NO_WORK  # a Kind; NO_WORK: all but WORK; ALL
    actor: str = ""  # a part of the user name
    verb: str = ""
    target: str = ""  # words in the object's name, or a part of the name of its team
    text: str = ""  # words in names and values, or in what was done
    first: date | None = None
    last: date | None = None
    zone: tzinfo = field(default_factory=timezone.get_current_timezone)
    problems: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, query: Query, *, usual: str = ALL) -> Self:
        """Returns the filter in a URL query. `usual` is the kind if the query has none."""
        problems: dict[str, str] = {}
        kind = query.get("kind", usual)
        if kind not in {NO_WORK, ALL, *Kind.values}:
            problems["kind"] = unknown_choice("kind", kind, Kind.values)
            kind = usual
        zone = read_zone(query.get("zone", ""), timezone.get_current_timezone(), problems)
        first = read_date(query.get("from", ""), "from", None, problems)
        last = read_date(query.get("to", ""), "to", None, problems)
        if first and last and last < first:
            problems["to"] = (
                f"The last day, {last}, is before the first day, {first}. Choose a later last day."
            )
            last = None
        return cls(
            kind,
            query.get("actor", "").strip()[:150],
            query.get("verb", "")[:60],
            query.get("target", "").strip()[:150],
            query.get("q", "").strip()[:150],
            first,
            last,
            zone,
            problems,
        )

    @property
    def is_narrow(self) -> bool:
        """Returns whether anything but the kind excludes changes."""
        return any((self.actor, self.verb, self.target, self.text, self.first, self.last))

    def narrow(self, events: AuditEventQuerySet) -> AuditEventQuerySet:
        """Returns the events that match. Days begin at midnight in the filter's zone, by default the reader's."""
        if self.kind == NO_WORK:
            events = events.exclude(verb__in=verbs_of(WORK))
        elif self.kind != ALL:
            events = events.filter(verb__in=verbs_of([self.kind]))
        return events.matching(
            AuditFilter(
                actor=self.actor,
                verb=self.verb,
                target=self.target,
                text=self.text,
                or_verbs=said_by(self.text),
                since=_midnight(self.first, self.zone),
                until=_midnight(self.last and self.last + timedelta(days=1), self.zone),
            )
        )


def _midnight(day: date | None, zone: tzinfo) -> datetime | None:
    return None if day is None else datetime.combine(day, time(), zone)
