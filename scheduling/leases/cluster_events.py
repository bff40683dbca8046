"""Adds the events that a cluster reports about jobs to the histories of these jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

from django.db import transaction

from accounting.core.clock import now_from_database
from scheduling.backends.base import ClusterEvent
from scheduling.core import pubsub
from scheduling.core.locks import lock_schedule
from scheduling.core.run_apart import apart
from scheduling.leases.history import History
from scheduling.models import Job, JobEvent
from scheduling.models.event_codes import EventCode, Message

KIND = "cluster"
MOST = 20  # events per attempt; further events are left out
LONGEST_AGO = 3600.0  # seconds; clusters keep events no longer


def note_cluster_events(*, cluster_id: int, events: Sequence[ClusterEvent]) -> int:
    """Adds new events to the histories of their jobs, each text at most once per attempt. Returns the number of added
    events."""
    return sum(apart(cluster_id, events, lambda some: [_note(cluster_id, some)]))


@transaction.atomic(durable=True)
def _note(cluster_id: int, events: Sequence[ClusterEvent]) -> int:
    lock_schedule(cluster_id)
    now = now_from_database()
    jobs = Job.objects.filter(cluster=cluster_id).in_bulk({event.job_id for event in events})
    known = JobEvent.objects.filter(job__in=jobs, kind=KIND)
    told = {(note.job_id, note.epoch, note.detail.get("message", note.text)) for note in known}
    sources = {(note.job_id, note.detail.get("event")) for note in known}
    count = Counter((job_id, epoch) for job_id, epoch, _ in told)
    history, changed, notes = History(), set(), 0
    for event in sorted(events, key=lambda event: -event.age):
        attempt, source = (event.job_id, event.epoch), (event.job_id, event.source)
        if event.job_id not in jobs or source in sources or (*attempt, event.text) in told:
            continue
        if count[attempt] >= MOST:
            continue
        told.add((*attempt, event.text))
        sources.add(source)
        count[attempt] += 1
        notes += 1
        job = jobs[event.job_id]
        at = max(job.created_at, now - timedelta(seconds=min(event.age, LONGEST_AGO)))
        said = Message.of(EventCode.CLUSTER_SAID, message=event.text, event=event.source)
        history.note(job, KIND, said, at=at, epoch=event.epoch)
        changed.add(f"job:{job.pk}")
    history.save()
    pubsub.publish(*sorted(changed))
    return notes
