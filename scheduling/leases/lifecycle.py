"""The states of a job, and the table of all transitions between them."""

from __future__ import annotations

from enum import StrEnum

from scheduling.models import Job

S = Job.State


class Event(StrEnum):
    """An event that moves a job from one state to another."""

    PICKED = "picked"  # a round gave the job GPUs, and they are free
    STARTED = "started"  # all workers were observed running
    PREEMPTED = "preempted"  # a round or a drain orders the job to release its GPUs
    RELEASED = "released"  # all workers were observed gone, and the job may run again
    START_FAILED = "start_failed"  # no worker could be started; the job may try again
    SUCCEEDED = "succeeded"  # every worker ended with exit code 0
    FAILED = "failed"  # a worker ended with another exit code
    RETRIED = "retried"  # the same, but the job's spec asks for another attempt
    CANCEL = "cancel"  # a user or Fairlot cancelled the job
    GONE = "gone"  # after a cancel, all workers were observed gone


TRANSITIONS: dict[tuple[str, Event], str] = {
    (S.QUEUED, Event.PICKED): S.STARTING,
    (S.SUSPENDED, Event.PICKED): S.STARTING,
    (S.STARTING, Event.STARTED): S.RUNNING,
    (S.STARTING, Event.PREEMPTED): S.STOPPING,
    (S.RUNNING, Event.PREEMPTED): S.STOPPING,
    (S.STARTING, Event.START_FAILED): S.QUEUED,
    (S.STOPPING, Event.START_FAILED): S.QUEUED,
    (S.STOPPING, Event.RELEASED): S.SUSPENDED,
    # The processes vanished without an exit code (reboot, kill -9): the job continues from its checkpoint.
    (S.STARTING, Event.RELEASED): S.SUSPENDED,
    (S.RUNNING, Event.RELEASED): S.SUSPENDED,
    (S.STARTING, Event.SUCCEEDED): S.SUCCEEDED,
    (S.RUNNING, Event.SUCCEEDED): S.SUCCEEDED,
    (S.STOPPING, Event.SUCCEEDED): S.SUCCEEDED,  # it finished while it was being stopped
    (S.CANCELLING, Event.SUCCEEDED): S.SUCCEEDED,
    (S.STARTING, Event.FAILED): S.FAILED,
    (S.RUNNING, Event.FAILED): S.FAILED,
    (S.STOPPING, Event.FAILED): S.FAILED,
    (S.STARTING, Event.RETRIED): S.SUSPENDED,
    (S.RUNNING, Event.RETRIED): S.SUSPENDED,
    (S.STOPPING, Event.RETRIED): S.SUSPENDED,
    (S.QUEUED, Event.FAILED): S.FAILED,  # given up after too many failed starts
    (S.QUEUED, Event.CANCEL): S.CANCELLED,
    (S.SUSPENDED, Event.CANCEL): S.CANCELLED,
    (S.STARTING, Event.CANCEL): S.CANCELLING,
    (S.RUNNING, Event.CANCEL): S.CANCELLING,
    (S.STOPPING, Event.CANCEL): S.CANCELLING,
    (S.CANCELLING, Event.GONE): S.CANCELLED,
}


class IllegalTransition(Exception):
    """Raised if the transition table does not allow the event in the job's present state."""


def next_state(state: str, event: Event) -> str:
    """Returns the state that follows `state` after `event`. Raises IllegalTransition if the table has no such
    transition."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(f"a {state} job cannot be {event}") from None
