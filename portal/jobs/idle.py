"""How a job uses its GPUs, and what follows where it does not: what pages and the API tell of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from accounting.core.clock import now_from_database
from scheduling.idle.actions import IdleRules, idleness_of
from scheduling.idle.steps import STALE, Step, Terms
from scheduling.models import GpuUse, Job


@dataclass(frozen=True)
class IdleUse:
    """Of a job in play. `terms` is what a rule says of it when it is idle; None: nothing."""

    use: GpuUse
    terms: Terms | None
    is_present: bool  # whether it was measured lately, as far as it could
    is_warned: bool = False
    is_of_this_turn: bool = False  # whether it still holds the GPUs of which that was measured
    acts_at: datetime | None = None  # nothing is done before, and nothing at all where somebody uses its GPUs
    grace_left: timedelta | None = None  # for how long it may hold them without use until then
    is_snoozed: bool = False
    snooze_ends: datetime | None = None  # until when it may be put off; None: no more

    @property
    def is_idle(self) -> bool:
        return self.use.idle_since is not None

    @property
    def yields(self) -> bool:
        """Whether it is taken out of the sharing then, and not stopped."""
        return self.terms is not None and self.terms.then is Step.PREEMPTIBLE


def idle_uses(uses: Iterable[GpuUse]) -> list[IdleUse]:
    """Of jobs that come with their tenants and leases; three queries at most."""
    found = list(uses)
    if not found:
        return []
    now = now_from_database()
    rules = IdleRules.read() if any(use.idle_since for use in found) else None
    return [_idle_use(use, rules, now) for use in found]


def _idle_use(use: GpuUse, rules: IdleRules | None, now: datetime) -> IdleUse:
    # Until its next turn, and until that is measured, it is as it was in its last one.
    since = max(use.measured_until, use.job.state_since)
    is_present = use.job.state != Job.State.RUNNING or now - since <= STALE
    terms = rules.terms_of(use.job) if rules and use.idle_since else None
    idle = idleness_of(use)
    if terms is None:
        return IdleUse(use, None, is_present, is_of_this_turn=idle.is_of_this_turn)
    ends = idle.snooze_ends(terms, now)
    return IdleUse(
        use=use,
        terms=terms,
        is_present=is_present,
        is_warned=idle.is_warned(terms),
        is_of_this_turn=idle.is_of_this_turn,
        acts_at=idle.acts_at(terms, now),
        grace_left=idle.grace_left(terms),
        is_snoozed=use.snoozed_until is not None and use.snoozed_until > now,
        snooze_ends=ends if ends > now else None,
    )


def use_of(job: Job) -> IdleUse | None:
    """None for what has ended, or was never measured."""
    if job.has_ended or job.state == Job.State.CANCELLING:
        return None
    use = GpuUse.objects.filter(job=job).select_related("snoozed_by", "lease").first()
    if use is None:
        return None
    use.job = job
    return idle_uses([use])[0]
