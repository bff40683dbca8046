"""Who runs where until the next round.

Where all that runs may stay and all that waits finds places beside it, that is the answer. Otherwise gangs are
picked in turns over all generations at once, first within what is guaranteed, then of what is left over; each
goes to the generation where its account is owed time and its jobs are fast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, islice

import numpy as np

from fairshare.entitlement import ticket_share
from fairshare.model import NOWHERE, Bools, Floats, Ints, Snapshot
from fairshare.policies.gandiva_fair.balances import Balances, tier_one
from fairshare.policies.gandiva_fair.classes import SAME_SPEED, speeds_of
from fairshare.policies.gandiva_fair.places import Places, Spot
from fairshare.policies.gandiva_fair.shares import Shares
from fairshare.policies.gandiva_fair.turns import Line, Turns, alike, wanted_order
from fairshare.quotas import Left, Limits, Quotas
from fairshare.reasons import explain
from fairshare.tree import Tree


@dataclass(frozen=True, slots=True)
class Picks:
    """The gangs that run until the next round."""

    generation: Ints  # (J,) NOWHERE for those that do not run
    nodes: dict[int, Ints]  # of each picked job, the node of each worker, rank by rank
    only_idle: (
        Ints | None
    )  # picked jobs that run only because nobody else wants their GPUs; None: there cannot be
    reason: Ints  # (J,) a Reason, 0 for the picked


def select(  # noqa: PLR0917 - what a decision has worked out before, in that order
    snapshot: Snapshot,
    tree: Tree,
    able: Bools,
    reason: Ints,
    shares: Shares,
    balances: Balances,
    limits: Limits,
    random: np.random.Generator,
) -> Picks:
    """Picks gangs by what accounts are due, and finds nodes for them.

    `able` (J, K) and `reason` (J,) as from may_run; `limits` as from limits_of. Only a lottery, and the division
    of what nobody wants who takes part, draw from `random`.
    """
    selection = _Selection(snapshot, tree, able, shares, balances, limits, random)
    selection.run()
    return selection.picks(reason)


class _Selection:
    def __init__(  # noqa: PLR0917 - as select
        self,
        snapshot: Snapshot,
        tree: Tree,
        able: Bools,
        shares: Shares,
        balances: Balances,
        limits: Limits,
        random: np.random.Generator,
    ) -> None:
        jobs, settings = snapshot.jobs, snapshot.settings
        self._snapshot, self._jobs, self._settings, self._tree = snapshot, jobs, settings, tree
        self._able, self._shares, self._balances, self._limits = able, shares, balances, limits
        self._random = random
        self._sharing = jobs.sharing(able)
        self._speed = speeds_of(jobs, able)
        self._order = wanted_order(jobs, snapshot.accounts, settings)
        self._size: list[int] = (jobs.workers * jobs.gpus).tolist()
        self._account: list[int] = jobs.account.tolist()
        self._running_on: list[int] = jobs.running_on.tolist()
        # Services and sessions that have GPUs: as long as they go on, they go on there.
        self._rooted = (jobs.running_on != NOWHERE) & (False if jobs.keeps is None else jobs.keeps)
        # Gangs that no one else's turn on a generation moves.
        self._stays = self._rooted | ((jobs.running_on != NOWHERE) & (jobs.resident < settings.residence))
        self._may_move = settings.may_preempt and not settings.reclaim
        # GPU-seconds of each generation that are left of what each leaf is due until the next round.
        self._due: list[list[float]] = (balances.owed + shares.share * settings.quantum).tolist()
        self._start()

    def _start(self) -> None:
        """Begin with nobody picked."""
        jobs, limits = self._jobs, self._limits
        self.quotas = Quotas(self._tree, limits.most)
        # Who takes no part in the sharing is bound by what limits leave alone, and counts for nothing else.
        self.room = Quotas(self._tree, limits.room) if jobs.only_idle is not None else None
        self.claims = Quotas(self._tree, limits.claims) if limits.claims else None
        # What hours leave for a round was checked when it began; between two, what runs is bound by caps alone.
        self.caps = Quotas(self._tree, self._snapshot.accounts) if self._settings.reclaim else None
        counted = [each for each in (self.quotas, self.room, self.claims, self.caps) if each is not None]
        self._is_limited = [
            any(each.limits_any(t) for each in counted) for t in range(len(self._tree.parent))
        ]
        self._idle_jobs: list[int] | None = None
        self.generation = np.full(len(jobs), NOWHERE, dtype=np.int64)
        holds = self._holders()
        settled = self._within_guarantee(holds) | (holds & self._rooted)
        self.places = Places(self._snapshot.cluster, jobs, self._able, self._speed, holds, settled)

    @property
    def picked(self) -> Bools:
        """(J,)"""
        picked: Bools = self.generation != NOWHERE
        return picked

    def picks(self, reason: Ints) -> Picks:
        explained = explain(
            self._jobs,
            self._able,
            reason,
            self._order,
            self.picked,
            free=np.array(self.places.free_gpus, dtype=np.float64),
            room=self.quotas.left(self._limits.room) if self.room is None else self.room.left(),
            most=self.quotas.left(),
            claims=self._left_of_claims(),
        )
        leaves_idle = self.claims is not None or self._jobs.only_idle is not None
        return Picks(
            self.generation,
            {job: self.places.nodes[k][nodes] for job, (k, nodes) in self.places.places.items()},
            np.array(self._idle_jobs or [], dtype=np.int64) if leaves_idle else None,
            explained,
        )

    def _left_of_claims(self) -> Left | None:
        return self.claims.left() if self.claims else None

    def run(self) -> None:
        if not self._able.size:
            return
        if self._fits_as_it_is():
            self._claim_fast()
        else:
            self._hold()
            self._take_turns()
        if self.claims is not None or self._jobs.only_idle is not None:
            self._fill_idle()
        self._speed_up()

    # What all have in common

    def _holders(self) -> Bools:
        """(J,) the gangs that have GPUs and may go on with them. Where nobody may be stopped, all."""
        jobs = self._jobs
        holds: Bools = jobs.running_on != NOWHERE
        if self._settings.may_preempt and len(jobs) and self._able.shape[1]:
            holds = holds & self._able[np.arange(len(jobs)), jobs.running_on]
        return holds

    def _within_guarantee(self, chosen: Bools) -> Bools:
        """(J,) the chosen gangs, in the order of their owners, for which the guarantees up the tree suffice."""
        jobs, tree = self._jobs, self._tree
        if not chosen.any():
            return chosen
        due = tier_one(self._shares).sum(axis=1) + self._balances.guaranteed / self._settings.quantum
        takes_part = chosen if jobs.only_idle is None else chosen & ~jobs.only_idle
        some = np.flatnonzero(takes_part)
        some = some[np.argsort(self._order[some])]
        size = (jobs.workers * jobs.gpus)[some]
        within = np.ones(len(some), dtype=bool)
        account = jobs.account[some]
        for _ in tree.levels:
            # Of each account the first gangs, as far as what is due to it goes.
            there = np.flatnonzero(within & (account != NOWHERE))
            there = there[np.argsort(account[there], kind="stable")]
            sums = np.cumsum(size[there])
            first = np.flatnonzero(np.diff(account[there], prepend=-2))
            before = np.repeat(sums[first] - size[there][first], np.diff(np.append(first, len(there))))
            within[there] = sums - before <= due[account[there]] + 1e-6
            account = np.where(account == NOWHERE, NOWHERE, tree.parent[account])
        found = np.zeros(len(jobs), dtype=bool)
        found[some[within]] = True
        return found

    def _pick(self, job: int, generation: int) -> None:
        """Count the gang, which has its place, as picked."""
        account, size = self._account[job], self._size[job]
        self.generation[job] = generation
        if self._idle_jobs is not None:
            self._idle_jobs.append(job)
        self._count(job, account, generation, size)

    def _count(self, job: int, account: int, generation: int, gpus: int) -> None:
        if self.caps is not None:
            self.caps.use(account, generation, gpus)
        if self.room is not None:
            self.room.use(account, generation, gpus)
        if self._takes_part(job):
            self.quotas.use(account, generation, gpus)
            if self.claims is not None:
                self.claims.use(account, generation, gpus)
            self._due[account][generation] -= gpus * self._settings.quantum

    def _takes_part(self, job: int) -> bool:
        return self._jobs.only_idle is None or not self._jobs.only_idle[job]

    def _allow(self, job: int, generation: int) -> bool:
        """Whether limits let the job's account have so many more GPUs, in the sharing or when all that is over."""
        account, size = self._account[job], self._size[job]
        if self.caps is not None and self._running_on[job] == generation:
            if not self.caps.allow(account, generation, size):
                return False
            return not self._takes_part(job) or self._may_claim(account, generation, size)
        if self.room is not None and not self.room.allow(account, generation, size):
            return False
        if not self._takes_part(job):
            return True
        return self.quotas.allow(account, generation, size) and self._may_claim(account, generation, size)

    def _may_claim(self, account: int, generation: int, size: int) -> bool:
        idle = self._idle_jobs is not None
        return idle or self.claims is None or self.claims.allow(account, generation, size)

    # Where all find room

    def _fits_as_it_is(self) -> bool:
        """Whether all that take part run where they are, or find places beside what runs; else nobody is picked."""
        jobs, settings = self._jobs, self._settings
        if settings.reclaim or not settings.may_preempt or self._snapshot.cluster.closed is not None:
            return False
        takes_part = self._sharing.any(axis=1)
        size = jobs.workers * jobs.gpus
        if int(size[takes_part].sum()) > int(self._snapshot.cluster.capacity.sum()):
            return False
        running = np.flatnonzero(takes_part & (jobs.running_on != NOWHERE))
        waiting = np.flatnonzero(takes_part & (jobs.running_on == NOWHERE)).tolist()
        stays = self._rooted[running] | (jobs.resident[running] < settings.residence)
        may_go = np.where(stays, np.inf, size[running])
        movable = sorted(set(size[running].tolist())) if len(running) <= _SMALL else []
        for largest in (0, *movable):
            stay = running[may_go > largest].tolist()
            moving = running[may_go <= largest].tolist()
            if self._all_allowed(stay) and self._place_rest([*waiting, *moving]) and not self._is_worse_off():
                self.places.settle_down()
                return True
            self._restart()
        return False

    def _restart(self) -> None:
        self._due = (self._balances.owed + self._shares.share * self._settings.quantum).tolist()
        self._start()

    def _all_allowed(self, stay: list[int]) -> bool:
        """Pick all of `stay` where they run; False where a limit or a node that is down forbids it."""
        for job in stay:
            k = self._running_on[job]
            if not self._allow(job, k) or not self._go_home(job):
                return False
            self._pick(job, k)
        return True

    def _go_home(self, job: int) -> bool:
        return self.places.stay(job) if self._rooted[job] else self.places.go_home(job)

    def _place_rest(self, jobs: list[int]) -> bool:
        """Find places for all `jobs` beside the picked ones."""
        prefer = [
            sorted(np.flatnonzero(self._sharing[job]).tolist(), key=self._by_speed(job)) for job in jobs
        ]
        if sum(self._size[job] for job in jobs) > sum(self.places.free_gpus):
            return False
        if not self.places.place_all(jobs, prefer):
            return False
        for job in jobs:
            k = self.places.places[job].generation
            if not self._allow(job, k):
                return False
            self._pick(job, k)
        return True

    def _is_worse_off(self) -> bool:
        """Whether the picked gangs of an account make less progress than its guarantee would let them make."""
        jobs, picked = self._jobs, np.flatnonzero(self.picked)
        if (self._speed[self._able] > 1 / SAME_SPEED).all():
            return False
        size = (jobs.workers * jobs.gpus).astype(np.float64)
        accounts = len(self._tree.parent)
        makes = np.bincount(
            jobs.account[picked], size[picked] * self._speed[picked, self.generation[picked]], accounts
        )
        weight, fast = np.zeros((2, *self._shares.share.shape))
        np.add.at(weight, jobs.account, self._sharing * size[:, None])
        np.add.at(fast, jobs.account, self._sharing * size[:, None] * self._speed)
        mean = np.divide(fast, weight, out=np.zeros_like(fast), where=weight > 0)
        due = (tier_one(self._shares) * mean).sum(axis=1)
        return bool((makes < due - 1e-6 * (1 + due))[self._tree.is_leaf].any())

    def _by_speed(self, job: int) -> Callable[[int], tuple[float, int]]:
        speed = self._speed[job]
        return lambda k: (-speed[k], k)

    # Turns

    def _hold(self) -> None:
        """Gangs that no one may stop now are picked first, where they are."""
        jobs, settings, closed = self._jobs, self._settings, self._snapshot.cluster.closed
        running = self.places.running
        if settings.may_preempt:
            chosen = running & (jobs.on_any(closed) | self._held_for_residence(running))
            chosen |= self._within_guarantee(running & self._rooted)
            if jobs.unwarned is not None:
                chosen |= running & jobs.unwarned
        else:
            chosen = self._holders()
        some = np.flatnonzero(chosen)
        for job in some[np.argsort(self._order[some])].tolist():
            k = self._running_on[job]
            if (not settings.may_preempt or self._allow(job, k)) and self.places.stay(job):
                self._pick(job, k)
        if closed is not None:
            self.places.close(closed)

    def _held_for_residence(self, running: Bools) -> Bools:
        """(J,) gangs that got their GPUs only lately, but for those that give way to a claim from before that.

        A larger gang that waits within its guarantee comes first since its account began to save up for it, a
        smaller one since it had saved up enough; one of the same size had its chance when these GPUs were given.
        """
        jobs, settings = self._jobs, self._settings
        young = running & (jobs.resident < settings.residence)
        if jobs.only_idle is not None:
            young &= ~jobs.only_idle
        if not young.any() or not self._may_move:
            return young
        size = jobs.workers * jobs.gpus
        waits = np.flatnonzero(self._sharing.any(axis=1) & (jobs.running_on == NOWHERE))
        began, enough = self._age_of_claims(waits, size[waits])
        due = np.flatnonzero(enough > -1e-6)
        # One claim of each account and size speaks for all, those who are most behind first, as they go.
        account, choice = jobs.account[waits], self._sharing @ (1 << np.arange(self._sharing.shape[1]))
        one_each = alike(account[due], size[waits[due]], choice[waits[due]])
        due = due[np.unique(one_each, return_index=True)[1]]
        behind = self._balances.total / np.maximum(self._shares.share.sum(axis=1), 1e-12)
        for i in due[np.argsort(-behind[account[due]], kind="stable")][:_CLAIMS].tolist():
            job = int(waits[i])
            there = young & self._able[job][jobs.running_on]
            before = (size < size[job]) & (jobs.resident <= began[i] + 1e-6)
            before |= (size > size[job]) & (jobs.resident < enough[i])
            young &= ~(there & before)
        return young

    def _age_of_claims(self, waits: Ints, size: Ints) -> tuple[Floats, Floats]:
        """(W,) seconds since each waiting gang's accounts began to save up, and since they have enough for it.

        The latter is negative where a guarantee on the way up does not allow for the gang.
        """
        due = tier_one(self._shares).sum(axis=1)
        runs = np.zeros(len(due))
        within = self._within_guarantee(self.places.running)
        np.add.at(runs, self._jobs.account[within], (self._jobs.workers * self._jobs.gpus)[within])
        quantum, saved = self._settings.quantum, self._balances.guaranteed
        left = saved + (due - self._tree.sums(runs)) * quantum
        began, enough = np.full(len(waits), np.inf), np.full(len(waits), np.inf)
        account = self._jobs.account[waits]
        for _ in self._tree.levels:
            known, earns = account != NOWHERE, np.maximum(due[account], 1e-12)
            began = np.where(known, np.minimum(began, saved[account] / earns), began)
            enough = np.where(known, np.minimum(enough, (left[account] - size * quantum) / earns), enough)
            account = np.where(known, self._tree.parent[account], NOWHERE)
        return began, enough

    def _turns(self, shares: Shares, balances: Balances, able: Bools, *, lottery: bool) -> Turns:
        jobs, settings = self._jobs, self._settings
        chosen = able.any(axis=1) & ~self.picked
        line = Line.of(jobs, self._order, chosen, settings)
        chance = self._random if lottery else None
        strict = [self.quotas.limits_any(account) for account in range(len(self._tree.parent))]
        turns = Turns(self._tree, jobs, able, line, shares, balances, settings, chance, strict)
        for job in np.flatnonzero(self.picked).tolist():
            if self._takes_part(job):
                turns.used(self._account[job], self._size[job])
        return turns

    def _take_turns(self) -> None:
        turns = self._turns(
            self._shares, self._balances, self._sharing, lottery=self._settings.draw == "lottery"
        )
        turns.open(only_claims=True)
        self._fill(turns, may_move=True)
        if self._may_move:
            self._claim_fast()
        self._stay_rooted(turns)
        turns.open(only_claims=False)
        self._fill(turns, may_move=True)
        if self._may_move:
            self._claim_fast()
        if self._settings.may_preempt:
            self.places.settle_down()
            if any(self.places.free_gpus):
                turns.hopeless = bytearray(len(turns.hopeless))
                turns.open(only_claims=False)
                self._fill(turns, may_move=False)

    def _stay_rooted(self, turns: Turns) -> None:
        """Let services and sessions go on that no claim stops: of all surplus theirs is taken back last."""
        left = np.flatnonzero(self._rooted & ~self.picked)
        for job in left[np.argsort(self._order[left])].tolist():
            k = self._running_on[job]
            if self._sharing[job, k] and self._allow(job, k) and self.places.stay(job):
                self._pick(job, k)
                turns.taken[job] = 1
                turns.used(self._account[job], self._size[job])

    def _fill(self, turns: Turns, *, may_move: bool) -> None:
        """Take turns until none is left. A kind of gangs that could not be placed is not tried again."""
        odd = self._is_odd()
        while any(self.places.free_gpus) and (job := turns.next()) != NOWHERE:
            if odd and not self.places.holes(job):
                job = next((other for other in turns.following(job) if self._fills_hole(other)), job)
            able = turns.generations(job)
            limited = self._is_limited[self._account[job]]
            allowed = [k for k in able if self._allow(job, k)] if limited else able
            asleep = int(self.places.home_generation[job])
            # It waits for the generation where it ran only if its account is due time there: it may have sold it since.
            later = (
                self._running_on[job] == NOWHERE
                and asleep in allowed
                and len(allowed) > 1
                and not turns.is_late(job)
                and self._due[self._account[job]][asleep] >= self._size[job] * self._settings.quantum / 2
            )
            if not allowed:
                turns.passed(job)
            elif self._place(job, [asleep] if later else allowed, may_move=may_move):
                self._pick(job, self.places.places[job].generation)
                turns.took(job)
            elif later:
                turns.passed(job, later=True)
            else:
                if len(allowed) == len(able):
                    turns.hopeless[turns.kind[job]] = 1
                turns.passed(job)

    def _is_odd(self) -> bool:
        """Whether gangs may leave holes on nodes that other sizes would fill."""
        most = int(self._snapshot.cluster.capacity.max(initial=0))
        return bool((most % np.unique(self._jobs.gpus) != 0).any()) if most else False

    def _fills_hole(self, job: int) -> bool:
        return self.places.holes(job) and any(
            self._allow(job, k) for k in np.flatnonzero(self._sharing[job]).tolist()
        )

    def _place(self, job: int, generations: list[int], *, may_move: bool) -> bool:
        """Give the gang a place: where it runs, where its account is due time, where it is fast, or anywhere."""
        if self._running_on[job] in generations and self._go_home(job):
            return True
        places, groups = self.places, self._groups(job, generations)
        turn = self._size[job] * self._settings.quantum
        chosen = [ks for ks, due in groups if due >= turn / 2 or len(groups) == 1]
        if any(places.place(job, ks, held=True) for ks in chosen):
            return True
        if any(places.place(job, ks, held=False) for ks, _ in groups):
            return True
        by_due = sorted(groups, key=lambda group: -group[1])
        if any(places.place(job, ks, held=True) for ks, _ in by_due):
            return True
        if not may_move or not self._settings.may_preempt:
            return False
        if self._make_room(job, [k for ks in chosen for k in ks], self._is_ahead):
            return True
        # Own gangs may become slower: their owner wants all of them to run.
        own = self._account[job]
        return self._make_room(job, generations, lambda other, _: self._account[other] == own)

    def _is_ahead(self, job: int, k: int) -> bool:
        """Whether a picked gang has more of its generation than its account is due there."""
        ahead = self._due[self._account[job]][k] <= -self._size[job] * self._settings.quantum / 2
        return bool(ahead and not self._stays[job])

    def _make_room(self, job: int, generations: list[int], yields: Callable[[int, int], bool]) -> bool:
        """Place the gang by moving picked ones, within their limits."""
        moved = self.places.make_room(job, generations, self._may_change, yields)
        if moved is None:
            return False
        self._follow(moved)
        if self._is_within_limits(moved) and self._allow(job, self.places.places[job].generation):
            return True
        self.places.take_back(job)
        self._return(moved)
        return False

    def _is_within_limits(self, moved: list[tuple[int, Spot]]) -> bool:
        """Whether gangs that changed places one by one may all be there together."""
        return all(
            self._may_change(job, k, k) for job, k in ((job, int(self.generation[job])) for job, _ in moved)
        )

    def _follow(self, moved: list[tuple[int, Spot]]) -> None:
        """Count gangs that changed places where they are now."""
        for job, _ in moved:
            before, now = int(self.generation[job]), self.places.places[job].generation
            if now != before:
                self._change(job, before, now)

    def _return(self, moved: list[tuple[int, Spot]]) -> None:
        """Bring gangs back where they were before they changed places, the last first."""
        for job, spot in moved[::-1]:
            self.places.take_back(job)
            self.places.give(job, spot)
        self._follow(moved)

    def _may_change(self, job: int, before: int, now: int) -> bool:
        """Whether limits let a picked gang go to another generation."""
        account, size = self._account[job], self._size[job]
        self._count(job, account, before, -size)
        allowed = self._allow(job, now)
        self._count(job, account, before, size)
        return allowed

    def _change(self, job: int, before: int, now: int) -> None:
        account, size = self._account[job], self._size[job]
        self._count(job, account, before, -size)
        self._count(job, account, now, size)
        self.generation[job] = now

    def _groups(self, job: int, generations: list[int]) -> list[tuple[list[int], float]]:
        """Generations that are as fast as each other for the job, and GPU-seconds due there; the fastest first."""
        due, home = self._due[self._account[job]], int(self.places.home_generation[job])
        if len(generations) == 1:
            return [(generations, due[generations[0]])]
        speed: list[float] = self._speed[job].tolist()
        groups: list[tuple[list[int], float]] = []
        for k in sorted(generations, key=lambda k: -speed[k]):
            if groups and speed[k] * SAME_SPEED >= speed[groups[-1][0][0]]:
                groups[-1][0].append(k)
            else:
                groups.append(([k], 0.0))
        for i, (ks, _) in enumerate(groups):
            ks.sort(key=lambda k: (k != home, -due[k]))
            groups[i] = (ks, sum(due[k] for k in ks))
        return groups

    def _slower(self) -> list[int]:
        """Picked jobs that go on where they ran, and would be faster elsewhere."""
        jobs = self._jobs
        some = np.flatnonzero(self.picked & (self.generation == jobs.running_on))
        best = self._speed[some].max(axis=1, initial=0.0)
        slow = some[best > self._speed[some, self.generation[some]] * SAME_SPEED]
        return [job for job in slow.tolist() if job not in self.places.pinned]

    def _speed_up(self) -> None:
        """After all: gangs go to faster GPUs that nobody has, and change places with others of their account."""
        if not self._may_move:
            return
        for job in self._slower():
            if self._jobs.resident[job] >= self._settings.residence:
                self._move_up(job, int(self.generation[job]))
        self._change_places()

    def _move_up(self, job: int, here: int) -> None:
        """Move a picked gang to faster GPUs that nobody holds."""
        able = np.flatnonzero(self._able[job])
        speed = self._speed[job]
        faster = [k for k in able.tolist() if speed[k] > speed[here] * SAME_SPEED]
        size = self._size[job]
        for k in sorted(faster, key=lambda k: -speed[k]):
            if self.places.free_gpus[k] >= size and self._may_change(job, here, k):
                spot = self.places.take_back(job)
                if self.places.place(job, (k,), held=False):
                    self._change(job, here, k)
                    return
                self.places.give(job, spot)

    def _claim_fast(self) -> None:
        """Gangs go where they are faster and their account is due a turn; those that are ahead there make way.

        Of the gangs of one account those that gain more for each GPU go first, and others save up for them.
        """
        wants, saving = self._faster(), set[tuple[int, int]]()
        stuck = set[
            tuple[int, int]
        ]()  # generations between which no larger gang changed places since one moved
        in_vain = np.zeros(self._speed.shape[1], dtype=np.int64)
        for job, k in wants:
            account, here = self._account[job], int(self.generation[job])
            slower = self._speed[job, k] <= self._speed[job, here]
            if slower or (account, k) in saving or in_vain[k] == _CLAIMS:
                continue
            if not self._is_due(job, k):
                saving.add((account, k))
                found = self._claim(job, here, k, only_own=True)
            else:
                found = self._claim(job, here, k)
                if not found and (here, k) not in stuck:
                    group = [other for other, to in wants if to == k and self.generation[other] == here]
                    found = self._swap([job, *group[:_CLAIMS]], here, k)
                    stuck.add((here, k))
            in_vain[k] += not found
            if found:
                stuck.clear()

    def _is_due(self, job: int, k: int) -> bool:
        turn = self._settings.quantum / 2 + self._settings.switch_cost
        return bool(self._due[self._account[job]][k] >= self._size[job] * turn)

    def _claim(self, job: int, here: int, k: int, *, only_own: bool = False) -> bool:
        """Move a gang to a generation from which others go wherever they find room, `only_own` of its account."""
        if not self._may_change(job, here, k):
            return False
        before = self._due[self._account[job]][k]
        spot = self.places.take_back(job)
        moved = self.places.make_room(
            job, (k,), self._may_change, self._yields_to(job, here, only_own=only_own)
        )
        if moved is None:
            self.places.give(job, spot)
            return False
        self._follow([*moved, (job, spot)])
        back = only_own and self._due[self._account[job]][k] < before - 1e-6
        if back or not self._is_within_limits([*moved, (job, spot)]):
            self._return([*moved, (job, spot)])
            return False
        return True

    def _swap(self, group: list[int], here: int, k: int) -> bool:
        """Let a larger gang that is ahead on `k` change places with gangs `here` that are due their turns there."""
        due = np.array([of[k] for of in self._due])
        some = np.flatnonzero(self.generation == k)
        some = some[self._able[some, here]]
        some = some[np.argsort(due[self._jobs.account[some]], kind="stable")]
        for larger in islice((job for job in some.tolist() if self._is_ahead(job, k)), _SWAPS):
            moved = [(larger, self.places.take_back(larger))]
            for job in group:
                if (
                    self.generation[job] != here
                    or not self._is_due(job, k)
                    or not self._may_change(job, here, k)
                ):
                    continue
                spot = self.places.take_back(job)
                if not self.places.place(job, (k,), held=True):
                    self.places.give(job, spot)
                    continue
                moved.append((job, spot))
                self._change(job, here, k)
                if self._may_change(larger, k, here) and self.places.place(larger, (here,), held=True):
                    self._change(larger, k, here)
                    return True
            self.places.give(larger, moved[0][1])
            self._return(moved)
        return False

    def _yields_to(self, job: int, here: int, *, only_own: bool) -> Callable[[int, int], bool]:
        """Whether a picked gang leaves its generation to the job, which runs `here`."""
        speed, account = self._speed, self._account

        def yields(other: int, k: int) -> bool:
            if account[other] != account[job]:
                return not only_own and self._is_ahead(other, k)
            gains_less = speed[other, k] - speed[other, here] < speed[job, k] - speed[job, here]
            return bool(gains_less and not self._stays[other])

        return yields

    def _faster(self) -> list[tuple[int, int]]:
        """Picked jobs with the generations on which they are faster, those of the account furthest behind first."""
        jobs, share = self._jobs, np.maximum(self._shares.share, 1e-9)
        some = np.flatnonzero(self.picked & ~self._stays)
        now = self._speed[some, self.generation[some]]
        row, k = np.nonzero(self._able[some] & (self._speed[some] > now[:, None] * SAME_SPEED))
        job = some[row]
        behind = (np.array(self._due) / share)[jobs.account[job], k]
        order = np.lexsort((job, now[row] - self._speed[job, k], -behind))
        return list(zip(job[order].tolist(), k[order].tolist(), strict=True))

    def _change_places(self) -> None:
        """Gangs of one account and shape change generations where together they are faster so."""
        jobs, speed = self._jobs, np.maximum(self._speed, 1e-9)
        pinned = np.zeros(len(jobs), dtype=bool)
        pinned[list(self.places.pinned)] = True
        some = np.flatnonzero(self.picked & ~pinned)
        group = alike(jobs.account[some], jobs.workers[some], jobs.gpus[some])
        for a, b in combinations(range(speed.shape[1]), 2):
            both = self._able[some, a] & self._able[some, b]
            up, down = both & (self.generation[some] == a), both & (self.generation[some] == b)
            gain = speed[some, b] / speed[some, a]
            most, least = np.zeros(len(some)), np.full(len(some), np.inf)
            np.maximum.at(most, group[up], gain[up])
            np.minimum.at(least, group[down], gain[down])
            for number in np.flatnonzero(most > least * SAME_SPEED).tolist():
                own = group == number
                first, second = np.flatnonzero(own & up), np.flatnonzero(own & down)
                first = first[np.argsort(-gain[first], kind="stable")]
                second = second[np.argsort(gain[second], kind="stable")]
                self._exchange(some[first].tolist(), some[second].tolist(), a, b)

    def _exchange(self, up: list[int], down: list[int], a: int, b: int) -> None:
        """Let gangs on `a` and on `b` change places, pair by pair, as long as that pays."""
        speed = self._speed
        for one, other in zip(up, down, strict=False):
            if speed[one, b] + speed[other, a] <= (speed[one, a] + speed[other, b]) * SAME_SPEED:
                break
            first, second = self.places.take_back(one), self.places.take_back(other)
            self.places.give(one, second)
            self.places.give(other, first)
            self.generation[one], self.generation[other] = b, a

    # What nobody wants who takes part

    def _fill_idle(self) -> None:
        """What is still free nobody wants who takes part, or can use; others get it by lot."""
        if not any(self.places.free_gpus) or self.picked.all():
            return
        self._idle_jobs = []
        able = self._able & ~self.picked[:, None]
        there = np.flatnonzero(self.places.running & ~self.picked)
        for job in there[np.argsort(self._order[there])].tolist():
            k = self._running_on[job]
            if able[job, k] and self._allow(job, k) and self._go_home(job):
                self._pick(job, k)
        able &= ~self.picked[:, None]
        wants = np.zeros_like(self._shares.share)
        np.add.at(wants, self._jobs.account, able)
        parts = ticket_share(
            self._tree, self._snapshot.accounts.tickets, self._tree.sums(wants) > 0, np.ones(able.shape[1])
        )
        nothing = np.zeros_like(parts)
        idle = Shares(nothing, nothing, parts)
        turns = self._turns(idle, Balances.none(*parts.shape), able, lottery=True)
        turns.open(only_claims=False)
        self._fill(turns, may_move=False)


# Running gangs up to which moving some of them is tried so that all find room.
_SMALL = 300
# Gangs that are ahead on a generation for which those that are due their turns there try to make room elsewhere.
_SWAPS = 4
# Gangs with the oldest claims for which others give up GPUs that they got lately, and that seek faster ones in vain.
_CLAIMS = 32
