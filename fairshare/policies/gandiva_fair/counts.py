"""Counts the GPUs of picked gangs (those that run until the next round) against the limits of accounts."""

from __future__ import annotations

from copy import copy

import numpy as np

from fairshare.policies.gandiva_fair.facts import Facts
from fairshare.quotas import Left, Quotas


class Counts:
    """The GPUs that picked gangs use, counted against the limits of their accounts and of all accounts above.

    There is a separate count for each kind of limit:
    - Limits on all GPUs of an account. All gangs count.
    - Limits on the GPUs that an account gets in the sharing by tickets. Preemptible gangs do not count.
    - Limits in `limits.claims`. Preemptible gangs do not count. GPUs that the sharing leaves over may be used beyond
      these limits.
    """

    def __init__(self, facts: Facts) -> None:
        jobs, limits, tree = facts.jobs, facts.limits, facts.tree
        self._facts = facts
        self._quotas = Quotas(tree, limits.most)
        # Preemptible jobs are bound only by what these limits leave. They do not count towards other limits.
        self._room = Quotas(tree, limits.room) if jobs.preemptible is not None else None
        self._claims = Quotas(tree, limits.claims) if limits.claims else None
        # Limits on GPU-hours were checked when the quantum began. In extra rounds within the quantum, only limits of
        # GPUs at once bind running gangs, unless other gangs start under the same limit.
        self._caps = Quotas(tree, facts.snapshot.accounts) if facts.settings.reclaim else None
        self._starts = Quotas(tree, limits.most)
        all_kinds = (self._quotas, self._room, self._claims, self._caps)
        counted = [each.below for each in all_kinds if each is not None]
        self.is_limited: list[bool] = np.any(counted, axis=0).tolist()
        # Accounts whose limits bind gangs that take part in the sharing.
        self.is_strict: list[bool] = self._quotas.below.tolist()
        self._binding_claims = self._claims

    def beyond_claims(self) -> Counts:
        """Returns an object that ignores the limits in `limits.claims`, for giving out the GPUs that the sharing leaves
        over.

        Both objects share their counts: a gang that is counted in one of them is also counted in the other.
        """
        counts = copy(self)
        counts._binding_claims = None
        return counts

    def use(self, job: int, generation: int, gpus: int) -> None:
        """Counts `gpus` more GPUs of the generation for the account of `job`. A negative number means fewer."""
        account = self._facts.account[job]
        if self._caps is not None:
            self._caps.use(account, generation, gpus)
            if self._facts.running_on[job] != generation:
                self._starts.use(account, generation, gpus)
        if self._room is not None:
            self._room.use(account, generation, gpus)
        if self._facts.takes_part(job):
            self._quotas.use(account, generation, gpus)
            if self._claims is not None:
                self._claims.use(account, generation, gpus)

    def allow(self, job: int, generation: int) -> bool:
        """Returns whether limits allow the gang to run on the generation, in addition to all gangs counted so far."""
        facts = self._facts
        account, size, takes_part = facts.account[job], facts.size[job], facts.takes_part(job)
        if self._caps is not None and facts.running_on[job] == generation:
            if not self._caps.allow(account, generation, size):
                return False
            if self._room is not None and not self._room.allow_beside(
                self._starts, account, generation, size
            ):
                return False
            if not takes_part:
                return True
            may_stay = self._quotas.allow_beside(self._starts, account, generation, size)
            return may_stay and self._may_claim(account, generation, size)
        if self._room is not None and not self._room.allow(account, generation, size):
            return False
        if not takes_part:
            return True
        return self._quotas.allow(account, generation, size) and self._may_claim(account, generation, size)

    def _may_claim(self, account: int, generation: int, size: int) -> bool:
        claims = self._binding_claims
        return claims is None or claims.allow(account, generation, size)

    def left_of_room(self) -> Left:
        return self._quotas.left(self._facts.limits.room) if self._room is None else self._room.left()

    def left(self) -> Left:
        return self._quotas.left()

    def left_of_claims(self) -> Left | None:
        return self._claims.left() if self._claims else None
