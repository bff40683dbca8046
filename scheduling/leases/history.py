"""Applies state transitions to jobs and records them in the jobs' histories; saves both in bulk."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from accounting.core.bulk import insert_rows, update_rows
from accounting.notifications.events import announce_all
from scheduling.core import pubsub
from scheduling.core.announcing import Turn, events_of_ends, events_of_turns
from scheduling.core.enqueue import wake_output, wake_pipeline, wake_service, wake_sweep
from scheduling.core.event_texts import sentence_of
from scheduling.leases.lifecycle import Event, next_state
from scheduling.models import Job, JobEvent
from scheduling.models.event_codes import Cause, Message

ALWAYS_SAVED = {
    "state",
    "state_since",
    "ended_at",
    "reason",
    "epoch",
    "frozen",
    "failed_starts",
    "not_before",
}


class History:
    """Collects changes of jobs and new entries for their histories. `save` writes them with few SQL statements.

    The caller holds a transaction and the cluster's scheduling lock, so that nobody else changes the jobs meanwhile.
    """

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._fields: set[str] = set(ALWAYS_SAVED)
        self._events: list[JobEvent] = []
        self._ended: list[tuple[Job, Message]] = []
        self._turns: list[Turn] = []

    def move(
        self,
        job: Job,
        event: Event,
        *,
        at: datetime,
        said: Message,
        epoch: int | None = None,
        cause: str = "",
        **changes: Any,
    ) -> None:
        """Applies `event` and `changes` to `job`, and adds the message `said` to its history.

        - `epoch`: the number of the attempt that the event is about; None means the job's latest attempt. When a gang
          moves, the attempt that it leaves is no longer the latest.
        - `cause`: a value of Cause (scheduling/models/event_codes.py), for events that take GPUs away.

        Raises IllegalTransition if the job's state does not allow the event.
        """
        before = job.state
        job.state = next_state(job.state, event)
        job.state_since = at
        if job.has_ended:
            job.ended_at = at
            job.reason = 0
            self._ended.append((job, said))
        self.change(job, **changes)
        self.note(job, event.value, said.but(cause=cause) if cause else said, at=at, epoch=epoch)
        lost_by = _lost_by(event, before, cause)
        if lost_by is not None or event is Event.STARTED:
            attempt = job.epoch if epoch is None else epoch
            self._turns.append(Turn(job, attempt, at, sentence_of(said), lost_by))

    def change(self, job: Job, **changes: Any) -> None:
        """Sets fields of a job without a state transition and without an entry in its history."""
        for name, value in changes.items():
            setattr(job, name, value)
        self._fields |= changes.keys()
        self._jobs[job.pk] = job

    def note(self, job: Job, kind: str, said: Message, *, at: datetime, epoch: int | None = None) -> None:
        """Adds an entry to the job's history. `epoch` is the attempt that the entry is about; None means the latest
        attempt."""
        epoch = job.epoch if epoch is None else epoch
        self._events.append(JobEvent.of(job, kind, said, at=at, epoch=epoch))

    def save(self) -> None:
        """Writes all collected changes and entries. After the transaction commits, notifies open pages."""
        update_rows(self._jobs.values(), sorted(self._fields))
        insert_rows(self._events)
        ends = events_of_ends([(job, sentence_of(said)) for job, said in self._ended])
        announce_all([*ends, *events_of_turns(self._turns)])
        topics: dict[str, None] = {}
        for service_id in {job.service_id for job in self._jobs.values() if job.service_id}:
            wake_service(service_id)
        for sweep_id in {job.sweep_id for job in self._jobs.values() if job.sweep_id}:
            wake_sweep(sweep_id)
        for pipeline_id in {job.pipeline_id for job in self._jobs.values() if job.pipeline_id}:
            wake_pipeline(pipeline_id)
        for cluster_id in {job.cluster_id for job, _ in self._ended}:
            wake_output(cluster_id, {job.pk for job, _ in self._ended if job.cluster_id == cluster_id})
        for job in self._jobs.values():
            topics |= {
                f"job:{job.pk}": None,
                f"jobs:{job.tenant_id}": None,
                f"cluster:{job.cluster_id}": None,
            }
        pubsub.publish(*topics)
        self._jobs.clear()
        self._events.clear()
        self._ended.clear()
        self._turns.clear()


def _lost_by(event: Event, before: str, cause: str) -> str | None:
    """Returns why a running job loses its GPUs and waits. None if it does not lose them, or moves to others."""
    if before != Job.State.RUNNING or event not in {Event.PREEMPTED, Event.RELEASED, Event.RETRIED}:
        return None
    return None if cause in {Cause.MOVED, Cause.RESIZED} else cause


def note_now(job: Job, kind: str, said: Message, *, at: datetime) -> None:
    """Adds and saves one entry in a job's history, without changing the job. Notifies open pages after the commit."""
    JobEvent.of(job, kind, said, at=at).save(force_insert=True)
    pubsub.publish(f"job:{job.pk}", f"jobs:{job.tenant_id}")
