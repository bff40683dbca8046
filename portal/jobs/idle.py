"""How a job uses its GPUs, and what follows where it does not: what pages and the API tell of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from accounting.clock import now_from_database
from scheduling.actions.idle_gpus import IdleRules, idleness_of
from scheduling.idle_gpus import STALE, Terms
from scheduling.models import GpuUse, Job


@dataclass(frozen=True)
class Told:
    """Of a job in play. `terms` is what a rule says of it when it is idle; None: nothing."""

    use: GpuUse
    terms: Terms | None
    is_present: bool  # whether it was measured lately, as far as it could
    is_warned: bool = False
    acts_at: datetime | None = None  # when it is stopped unless somebody uses its GPUs
    is_snoozed: bool = False
    snooze_ends: datetime | None = None  # until when it may be put off; None: no more

    @property
    def is_idle(self) -> bool:
        return self.use.idle_since is not None


def told_of(uses: Iterable[GpuUse]) -> list[Told]:
    """Of jobs that come with their tenants; three queries at most."""
    found = list(uses)
    if not found:
        return []
    now = now_from_database()
    rules = IdleRules.read() if any(use.idle_since for use in found) else None
    return [_told(use, rules, now) for use in found]


def _told(use: GpuUse, rules: IdleRules | None, now: datetime) -> Told:
    # Until its next turn, and until that is measured, it is as it was in its last one.
    since = max(use.measured_until, use.job.state_since)
    is_present = use.job.state != Job.State.RUNNING or now - since <= STALE
    terms = rules.terms_of(use.job) if rules and use.idle_since else None
    if terms is None:
        return Told(use, None, is_present)
    idle = idleness_of(use)
    ends = idle.snooze_ends(terms, now)
    return Told(
        use=use,
        terms=terms,
        is_present=is_present,
        is_warned=idle.is_warned(terms),
        acts_at=idle.acts_at(terms),
        is_snoozed=use.snoozed_until is not None and use.snoozed_until > now,
        snooze_ends=ends if ends > now else None,
    )


def use_of(job: Job) -> Told | None:
    """None for what has ended, or was never measured."""
    if job.has_ended or job.state == Job.State.CANCELLING:
        return None
    use = GpuUse.objects.filter(job=job).select_related("snoozed_by").first()
    if use is None:
        return None
    use.job = job
    return told_of([use])[0]
