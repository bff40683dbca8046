"""Finds replicas of a service that end by themselves again and again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Max

from scheduling.core.event_texts import end_text_of
from scheduling.models import Job, Service

# A replica is in a crash loop if this many in its slot ended by themselves within this time. After three in a row
# Fairlot waits for minutes before it starts the next one, so a replica that lasts for minutes reaches this number too.
OFTEN = 3
WITHIN = timedelta(hours=1)


@dataclass(frozen=True)
class CrashLoop:
    """The slot of a service whose replicas end by themselves again and again."""

    name: str  # of the replica without the number of the attempt
    ends: int
    latest: Job

    @property
    def text(self) -> str:
        """Returns what happened as a sentence without a full stop."""
        how = end_text_of(self.latest) or self.latest.get_state_display()
        return f"Replica {self.name} ended by itself {self.ends} times within an hour; most recently: {how}"


def crash_loop_of(service: Service, *, now: datetime) -> CrashLoop | None:
    """Returns the slot in which most replicas of the current revision ended by themselves lately.

    Returns None if no slot is in a crash loop, and if the revision has not proved itself: its rollout then fails, and
    that is announced instead.
    """
    if not service.wanted or service.good_id != service.current_id:
        return None
    ended = Job.objects.filter(
        service=service,
        revision=service.current_id,
        state__in=Job.BY_ITSELF,
        ended_at__gt=now - WITHIN,
        slot__lt=service.replicas + service.max_surge,
    )
    slots = ended.order_by().values("slot").annotate(ends=Count("pk"), latest=Max("pk"))
    worst = slots.filter(ends__gte=OFTEN).order_by("-ends", "slot").first()
    if worst is None:
        return None
    latest = Job.objects.select_related("cluster", "revision").get(pk=worst["latest"])
    return CrashLoop(f"{service.name}-{worst['slot']}", worst["ends"], latest)
