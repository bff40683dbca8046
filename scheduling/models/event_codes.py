"""Codes that say what happened to a job or lease, and why. The database accepts no other codes.

scheduling/core/event_texts.py has a sentence for each code, and portal/wording.py a short label. These texts are only
for people; programs use the codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self


class EventCode(StrEnum):
    """The code of an entry in a job's history. The database accepts no other code."""

    # Submit
    SUBMITTED = "submitted"
    SUBMITTED_BY_SCHEDULE = "submitted_by_schedule"
    SUBMITTED_BY_SWEEP = "submitted_by_sweep"
    SUBMITTED_BY_PIPELINE = "submitted_by_pipeline"
    SESSION_BEGUN = "session_begun"
    REPLICA_MADE = "replica_made"
    LIMIT_EXCEEDED = "limit_exceeded"
    HANDED_OVER = "handed_over"
    SHARES_AGAIN = "shares_again"
    PREEMPTIBLE = "preemptible"
    EDITED = "edited"
    TRIED_NOW = "tried_now"
    EXPECTED_START = "expected_start"
    # One attempt
    PICKED = "picked"
    STARTED = "started"
    READY = "ready"
    UNREADY = "unready"
    FROZEN = "frozen"
    UNFROZEN = "unfrozen"
    STOPPED = "stopped"
    VANISHED = "vanished"
    NOT_STARTED = "not_started"
    START_FAILED = "start_failed"
    RETRIED = "retried"
    RESUMED = "resumed"
    CLUSTER_SAID = "cluster_said"
    # The end
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    GIVEN_UP = "given_up"
    GONE = "gone"
    CANCELLED_GONE = "cancelled_gone"
    CANCELLED_EARLY = "cancelled_early"
    # Why a person or Fairlot ended it
    CANCELLED = "cancelled"
    STOPPED_BY = "stopped_by"
    DELETED = "deleted"
    OWNER_LEAVES = "owner_leaves"
    NEXT_RUN = "next_run"
    TIME_LIMIT = "time_limit"
    TIME_LIMIT_WARNED = "time_limit_warned"
    OWN_TIME_LIMIT = "own_time_limit"
    TIME_LIMIT_NEAR = "time_limit_near"
    SWEEP_CANCELLED = "sweep_cancelled"
    SWEEP_STOPPED = "sweep_stopped"
    MEMBER_OUTDONE = "member_outdone"
    PIPELINE_CANCELLED = "pipeline_cancelled"
    SERVICE_REMOVED = "service_removed"
    SERVICE_STOPPED = "service_stopped"
    SERVICE_CHANGES = "service_changes"
    SERVICE_SHRINKS = "service_shrinks"
    IDLE_WARNED = "idle_warned"
    IDLE_SNOOZED = "idle_snoozed"
    IDLE_STOPPED = "idle_stopped"
    IDLE_PREEMPTIBLE = "idle_preemptible"
    SESSION_KEPT = "session_kept"
    SESSION_IDLE_WARNED = "session_idle_warned"
    SESSION_IDLE = "session_idle"
    SESSION_END_WARNED = "session_end_warned"
    SESSION_OVER = "session_over"
    # Why it lost its GPUs until its next attempt
    MOVED = "moved"
    RESIZED = "resized"
    CLAIMED = "claimed"
    CLAIM_WARNED = "claim_warned"
    OWN_JOBS = "own_jobs"
    NOT_IDLE = "not_idle"
    PREEMPTED = "preempted"
    TEAM_ARCHIVED = "team_archived"
    OWNER_MAY_NOT = "owner_may_not"
    DRAINED = "drained"
    NODE_EXCHANGED = "node_exchanged"
    NODE_LOST_GPUS = "node_lost_gpus"
    PORTAL_STOPPED = "portal_stopped"
    # Why it could not get the GPUs that a round chose
    CHOSEN_NODE_GONE = "chosen_node_gone"
    CHOSEN_NODE_CLOSED = "chosen_node_closed"
    CHOSEN_GPUS_HELD = "chosen_gpus_held"
    # Imported history
    IMPORTED = "imported"
    IMPORTED_START = "imported_start"
    IMPORTED_END = "imported_end"


class ServiceEventKind(StrEnum):
    """The kind of an entry in a service's history."""

    CREATED = "created"
    SCALED = "scaled"
    CHANGED = "changed"
    STOPPED = "stopped"
    STARTED = "started"
    REMOVED = "removed"
    UPDATED = "updated"
    ROLLED_BACK = "rolled_back"
    PROVED = "proved"
    FAILED = "failed"
    REPLACED = "replaced"
    CRASHES = "crashes"  # replicas of a good revision end by themselves again and again
    TROUBLE = "trouble"
    WARNED = "warned_of_claims"
    HANDED_OVER = "handed_over"


class RunNote(StrEnum):
    """A remark in the record of a schedule's run, in addition to the outcome: for example, that the run was late."""

    REQUESTED = "requested"  # a user started the run by hand
    LATE = "late"
    MISSED = "missed"
    EARLIER_RUN = "earlier_run"  # an earlier run had not ended


class Delay(StrEnum):
    """Why runs of a schedule are late or missed."""

    NOT_RUNNING = "not_running"  # Fairlot was not running
    PAUSED = "paused"
    DETACHED = "detached"


class AfterMissed(StrEnum):
    """What becomes of the runs that a schedule has missed."""

    SKIPPED = "skipped"
    LATEST = "latest"  # only the latest one starts
    TOO_OLD = "too_old"  # they were due too long ago
    CHANGED = "changed"  # the timetable was changed during the pause


class Cause(StrEnum):
    """Why a job lost its GPUs, or why its program did not answer. Stored with the event and with the lease."""

    CLAIMED = "claimed"  # others claim their guaranteed GPUs, or others are next
    OWN_JOBS = "own_jobs"  # other jobs of the same account go first
    LIMIT = "limit"
    MOVED = "moved"  # it continues on other GPUs
    RESIZED = "resized"  # it continues with another number of workers
    DRAINED = "drained"
    LOST = "lost"  # its processes or their node vanished
    ARCHIVED = "team_archived"
    NO_RIGHT = "owner_may_not"
    PORTAL_STOPPED = "portal_stopped"
    PERSON = "person"
    REPLACED = "replaced"  # a rollout or a change of the replica count ended it
    ENDED = "ended"  # its program ended
    UNREADY = "not_ready"


class JobEnd(StrEnum):
    """Why a job ended permanently: CANCELLED if somebody cancelled it, otherwise what the backend observed."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"
    START_FAILED = "start_failed"
    DELETED = "deleted"
    CANCELLED = "cancelled"


class LeaseEnd(StrEnum):
    """Why a lease ended. For a lease that was only reserved: why its reservation was withdrawn."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    FROZEN = "frozen"  # its processes are frozen, to be thawed later
    LOST = "lost"
    START_FAILED = "start_failed"
    DELETED = "deleted"
    NEVER_STARTED = "never_started"
    # Reasons why a reservation was withdrawn:
    WITHDRAWN = "withdrawn"  # a later round decided otherwise
    CANCELLED = "cancelled"
    DRAINED = "drained"
    NODE_CLOSED = "node_closed"
    NOT_NEEDED = "not_needed"  # its job ended, or must wait after a failed start
    OWNER_MAY_NOT = "owner_may_not"
    SHUTDOWN = "shutdown"


def accepted(codes: type[StrEnum]) -> list[str]:
    """Returns the values that a database column for these codes accepts: each code, and the empty string."""
    return ["", *(str(code) for code in codes)]


@dataclass(frozen=True, slots=True)
class Message:
    """An EventCode with the parameters (numbers and names) that its sentence needs."""

    code: EventCode
    parameters: Mapping[str, Any]

    @classmethod
    def of(cls, code: EventCode, **parameters: Any) -> Self:
        return cls(code, parameters)

    def but(self, **parameters: Any) -> Self:
        """Returns a message with the same code, and with these parameters added or replaced."""
        return type(self)(self.code, {**self.parameters, **parameters})
