"""Data of a session for pages and the API: whether the session is ready, and when it ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone

from accounting.models import User
from portal.interruptions import claimable_from
from portal.jobs.failure import meaning_of
from portal.readiness import what_to_do
from portal.sessions.hosts import origin_of
from scheduling.core.event_texts import end_text_of
from scheduling.core.reason_labels import SHORT
from scheduling.jobs.explain import Explainer
from scheduling.models import Job, Lease, Session
from scheduling.sessions.actions import NO_TIMES, clocks_from


@dataclass(frozen=True)
class SessionDetail:
    """A session with its current lease and its time limits."""

    session: Session
    lease: Lease | None
    idle_ends: datetime | None  # when the idle timeout stops the session
    ends: datetime | None  # when the session reaches its time limit
    is_warned: bool
    explainer: Explainer

    @property
    def job(self) -> Job:
        return self.session.job

    @property
    def is_ready(self) -> bool:
        return self.lease is not None and self.lease.is_ready

    @property
    def is_unready(self) -> bool:
        """Returns whether the session's program runs but does not answer, and it is known why."""
        return self.job.state == Job.State.RUNNING and not self.is_ready and bool(self.reason)

    @property
    def reason(self) -> str:
        """Returns a short text that says why the session waits or is not ready; "" if it is ready or has no lease."""
        if self.job.state in Job.WAITING:
            return SHORT[self.job.reason]
        return self.lease.why_not_ready if self.lease else ""

    @property
    def claimable_from(self) -> datetime | None:
        """Returns the time from which the session's lease may be suspended for other jobs.

        Returns None if there is no lease, if the lease is protected because it is within the team's guarantee, or if
        the lease is already stopping.
        """
        return claimable_from(self.lease)

    @property
    def _end(self) -> str:
        """Returns how the session ended, as sentences. Messages such as "exited with code 3" have no subject."""
        said = end_text_of(self.job)
        if not said or self.job.end_code:
            return said
        sentence = f"Its program {said}" if said[0].islower() else said
        meaning = meaning_of(self.job.exit_code)
        if not meaning and self.job.state == Job.State.FAILED:
            meaning = "The last lines of its log say why."
        return f"{sentence.rstrip('.')}. {meaning}".strip()

    @property
    def sentence(self) -> str:
        """Returns a sentence with the session's state and, if the session is not ready, the reason."""
        if self.job.has_ended:
            return f"The session has ended. {self._end}".strip()
        if self.job.state in Job.WAITING:
            return f"The session is not ready. {self.explainer.explain(self.job).sentence}"
        if not self.is_ready:
            why = f"The session is not ready{f': {self.reason}' if self.reason else ''}."
            return f"{why} {what_to_do(self.job, self.lease, self.job.cluster)}".strip()
        if not origin_of(self.session.pk):
            return (
                "The session is ready, but nobody can open it because this portal has no host "
                "names for sessions. An admin must set FAIRLOT_SESSIONS_URL."
            )
        return "The session is ready."


def details_of(sessions: Iterable[Session], reader: User) -> list[SessionDetail]:
    """Returns a SessionDetail for each session, in the same order. The sessions must have been read with their jobs."""
    shown = list(sessions)
    holding = Lease.objects.filter(job__in=[one.pk for one in shown], state__in=Lease.HOLDING)
    leases = {lease.job_id: lease for lease in holding.select_related("generation", "cluster")}
    now = timezone.now()
    idle = Session.objects.filter(pk__in=[one.pk for one in shown]).idle_times(now)
    explainers: dict[int, Explainer] = {}
    found = []
    for session in shown:
        lease = leases.get(session.pk)
        clocks = clocks_from(session, session.job, now, idle.get(session.pk, NO_TIMES))
        over = session.job.has_ended
        found.append(
            SessionDetail(
                session,
                lease,
                None if over else clocks.idle_ends,
                None if over else clocks.ends,
                clocks.is_warned and clocks.runs,
                explainers.setdefault(session.job.cluster_id, Explainer(session.job.cluster, reader)),
            )
        )
    return found
