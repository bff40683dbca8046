"""Explains why a job was late: what kept it waiting although it would already have started on its private cluster.

The *replay* is the simulation of the tenant's jobs on its private cluster. The *attempts* in this file are running
gangs.

The analysis looks at the times in which the job held no GPUs, from its first start in the replay on. These times are
cut into equal steps, and each step gets one cause. The cause depends on the GPUs that each tenant held at that moment,
compared with the GPUs that its tickets would have bought. A cause that lasted less than one step may be missed, but it
cannot be the main cause.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fairshare.counterfactual.past import Attempt, Cause, Past, PastJob, PastLimit
from fairshare.counterfactual.private import Purchase
from fairshare.model import Floats, Ints, Settings
from fairshare.simulator.model import JobOutcome

STEPS = 24
MOST_HOLDERS = 10
NOISE = 1e-6  # GPUs
MEMORY = Settings().memory  # seconds

# Indices of a job and of one of its attempts in the past.
Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class LateJob:
    """A job whose start or end was late by `seconds`, compared with its replay on the private cluster.

    If `at_end` is true, `seconds` is the lateness of the end, otherwise that of the start.
    """

    job: PastJob
    fate: JobOutcome  # on the private cluster
    start: float | None
    seconds: float
    at_end: bool
    tolerated: float  # seconds


@dataclass(frozen=True, slots=True)
class Blame:
    """Why one job was late.

    - `causes`: pairs (cause, seconds), largest first.
    - `holders`: pairs (key of a job that was in the way, GPU-seconds that it held while the late job waited), largest
      first.
    - `own_order`: seconds in which the job waited only for its tenant's other jobs of equal priority. The other two
      fields do not include this time.
    """

    causes: tuple[tuple[Cause, float], ...]
    holders: tuple[tuple[int, float], ...]
    own_order: float  # seconds


class Timeline:
    """The state of the shared cluster at one moment of the recorded period: nodes, and the GPUs that jobs hold.

    `go_to` moves to a later moment. `rewind` returns to the start of the period.
    """

    def __init__(self, past: Past, purchase: Purchase) -> None:
        self.past, self.bought_at = past, purchase.at
        nodes = max((change.node for change in past.nodes), default=-1) + 1
        self.kind = np.full(nodes, -1, dtype=np.int64)
        for change in past.nodes:
            self.kind[change.node] = change.generation
        self.of_kind = [np.flatnonzero(self.kind == k) for k in range(past.generations)]
        # (time, kind of event, 1 for the end of a reservation, two indices); kinds are numbered so that attempts end
        # before others begin.
        changes = [(change.at, 0, 0, i, 0) for i, change in enumerate(past.nodes)]
        for i, job in enumerate(past.jobs):
            for n, attempt in enumerate(job.attempts):
                changes += [(attempt.ends, 1, 0, i, n), (attempt.begins, 2, 0, i, n)]
                if attempt.reserved is not None and attempt.reserved < attempt.begins:
                    changes += [(attempt.reserved, 3, 0, i, n), (attempt.begins, 1, 1, i, n)]
        self._changes = sorted(changes)
        self.limits: dict[int, list[PastLimit]] = defaultdict(list)  # by tenant
        for limit in past.limits:
            for tenant in limit.tenants:
                self.limits[tenant].append(limit)
        self.rewind()

    def rewind(self) -> None:
        size = len(self.kind)
        self._next = 0
        self.gpus, self.usable, self.held, self.kept = (np.zeros(size, dtype=np.int64) for _ in range(4))
        self.bought = self.bought_at(0.0)  # (tenants, K) GPUs of the private clusters
        self.by_tenant = np.zeros_like(self.bought)
        self.attempts: dict[tuple[int, int], dict[Key, None]] = defaultdict(dict)  # by tenant and generation
        self.reservations: dict[Key, None] = {}
        self.now = 0.0
        # The moving average of the GPUs that each tenant held, and the time at which the average was last updated.
        self._lately = np.zeros(self.bought.shape)
        self._lately_at = np.zeros(len(self.bought))

    def go_to(self, moment: float) -> None:
        while self._next < len(self._changes) and self._changes[self._next][0] <= moment:
            self.now, what, is_reservation, i, n = self._changes[self._next]
            self._next += 1
            if what == 0:
                change = self.past.nodes[i]
                self.gpus[change.node], self.usable[change.node] = change.gpus, change.usable
            elif what == 3 or is_reservation:
                self._keep((i, n), 1 if what == 3 else -1)
            else:
                self._hold((i, n), 1 if what == 2 else -1)
        self.now, self.bought = moment, self.bought_at(moment)

    def held_lately(self, tenant: int) -> Floats:
        """Updates and returns a moving average of the GPUs that the tenant held, by generation, as an array (K,).

        Older values lose weight exponentially, with the default `memory` setting of the scheduler as the time constant.
        """
        part = math.exp((self._lately_at[tenant] - self.now) / MEMORY)
        lately: Floats = self._lately[tenant] * part + self.by_tenant[tenant] * (1 - part)
        self._lately[tenant], self._lately_at[tenant] = lately, self.now
        return lately

    def _hold(self, key: Key, sign: int) -> None:
        job, attempt = self.job(key), self.attempt(key)
        if attempt.ends <= attempt.begins:
            return
        self.held_lately(job.tenant)  # adds the GPUs held until now to the average
        for node in attempt.nodes:
            self.held[node] += sign * job.gpus_per_worker
        self.by_tenant[job.tenant, attempt.generation] += sign * job.workers_in(attempt) * job.gpus_per_worker
        there = self.attempts[job.tenant, attempt.generation]
        if sign > 0:
            there[key] = None
        else:
            del there[key]

    def _keep(self, key: Key, sign: int) -> None:
        for node in self.attempt(key).nodes:
            self.kept[node] += sign * self.job(key).gpus_per_worker
        if sign > 0:
            self.reservations[key] = None
        else:
            del self.reservations[key]

    def held_under(self, limit: PastLimit, generations: Iterable[int]) -> int:
        """Returns the number of GPUs of `generations` that are held at this moment and count towards the limit."""
        if limit.user is not None or limit.leaves_idle:
            return sum(self.job(key).gpus for key in self.attempts_under(limit, generations))
        return sum(int(self.by_tenant[tenant, k]) for tenant in limit.tenants for k in generations)

    def attempts_under(self, limit: PastLimit, generations: Iterable[int]) -> dict[Key, None]:
        return {
            key: None
            for tenant in sorted(limit.tenants)
            for k in generations
            for key in self.attempts[tenant, k]
            if limit.user in {None, self.job(key).user}
            and not (limit.leaves_idle and self.job(key).preemptible)
        }

    def job(self, key: Key) -> PastJob:
        return self.past.jobs[key[0]]

    def attempt(self, key: Key) -> Attempt:
        return self.past.jobs[key[0]].attempts[key[1]]


@dataclass(frozen=True, slots=True)
class Received:
    """Running totals of the GPU-seconds that a tenant received on the shared cluster, and in the replay."""

    shared: tuple[Floats, Floats]  # moments, and the total at each
    alone: tuple[Floats, Floats]
    worth: float  # entitlement as a fraction of the whole GPUs that the tenant bought

    @classmethod
    def of(
        cls, everything: Sequence[PastJob], jobs: Sequence[PastJob], fates: Sequence[JobOutcome], worth: float
    ) -> Received:
        pairs = list(zip(jobs, fates, strict=True))
        return cls(
            _running_total([(one.begins, one.ends, job.gpus) for job in everything for one in job.attempts]),
            _running_total(
                [(span.begins, span.ends, job.gpus) for job, fate in pairs for span in fate.spans]
            ),
            worth,
        )

    def behind(self, moment: float) -> float:
        alone = np.interp(moment, *self.alone) * self.worth
        return float(alone - np.interp(moment, *self.shared))


def _running_total(held: Sequence[tuple[float, float, int]]) -> tuple[Floats, Floats]:
    if not held:
        return np.zeros(1), np.zeros(1)
    begins, ends, gpus = np.array(held, dtype=np.float64).T
    moments, place = np.unique(np.concatenate([begins, ends]), return_inverse=True)
    change = np.zeros(len(moments))
    np.add.at(change, place, np.concatenate([gpus, -gpus]))
    return moments, np.concatenate([[0.0], np.cumsum(np.cumsum(change)[:-1] * np.diff(moments))])


def blame(timeline: Timeline, late: Sequence[LateJob], received: Received) -> list[Blame]:
    """Returns why each of the late jobs of one tenant was late, in the order of `late`."""
    steps = sorted((moment, i, lasts) for i, one in enumerate(late) for moment, lasts in _steps(one))
    causes: list[dict[Cause, float]] = [_beside_waiting(one) for one in late]
    holders: list[dict[int, float]] = [defaultdict(float) for _ in late]
    own_order = [0.0] * len(late)
    timeline.rewind()
    for moment, i, lasts in steps:
        timeline.go_to(moment)
        owned = int(timeline.bought[late[i].job.tenant].sum())
        is_behind = received.behind(moment) > late[i].tolerated * owned
        cause, keys = why_waiting(timeline, late[i], moment, is_behind=is_behind)
        if cause is None:
            own_order[i] += 0.0 if _would_wait(late[i].fate, moment) else lasts
            continue
        causes[i][cause] = causes[i].get(cause, 0.0) + lasts
        for key in keys:
            other = timeline.job(key)
            if other is not late[i].job:
                holders[i][other.key] += other.gpus * lasts
    return [
        Blame(
            tuple(sorted(some.items(), key=lambda item: (-item[1], item[0])))
            or ((Cause.UNEXPLAINED, one.seconds),),
            tuple(sorted(held.items(), key=lambda item: (-item[1], item[0]))[:MOST_HOLDERS]),
            order,
        )
        for one, some, held, order in zip(late, causes, holders, own_order, strict=True)
    ]


def _would_wait(fate: JobOutcome, moment: float) -> bool:
    """Returns whether the job also waited at this moment of the replay. Such time does not make the job late.

    `fate`: the outcome of the job in the replay.
    """
    if fate.finish is not None and moment >= fate.finish:
        return False
    return not any(span.begins <= moment < span.ends for span in fate.spans)


def _steps(late: LateJob) -> Iterator[tuple[float, float]]:
    """Yields sample moments in which the job waited although it would have started on the private cluster.

    Each result is a pair: the moment, and the seconds of waiting that it represents.
    """
    gaps = list(_waits(late))
    whole = math.fsum(end - begin for begin, end in gaps)
    if whole <= 0:
        return
    each = whole / STEPS
    passed, n = 0.0, 0
    for begin, end in gaps:
        while n < STEPS and (n + 0.5) * each < passed + end - begin:
            yield begin + (n + 0.5) * each - passed, each
            n += 1
        passed += end - begin


def _waits(late: LateJob) -> Iterator[tuple[float, float]]:
    """Yields the intervals (begin, end) in which the job held no GPUs, from its first start in the replay on.

    The last interval ends with the job, or with the recorded period. If only the job's start was late, it ends when the
    job started.
    """
    job = late.job
    since = late.fate.first_start or 0.0
    until = since + late.seconds if job.ended is None else job.ended
    if not late.at_end and late.start is not None:
        until = late.start
    for attempt in job.attempts:
        if min(attempt.begins, until) > since:
            yield since, min(attempt.begins, until)
        since = max(since, attempt.ends)
    if until > since:
        yield since, until


def _beside_waiting(late: LateJob) -> dict[Cause, float]:
    """Returns the seconds that the job lost for reasons other than waiting, by cause.

    These causes are failed attempts and, if its end was late, repeated work, restarts and slower GPUs.
    """
    job, found = late.job, dict[Cause, float]()
    failed = math.fsum(attempt.ends - attempt.begins for attempt in job.attempts if attempt.failed)
    if failed > 0:
        found[Cause.FAILURE] = failed
    if not late.at_end:
        return found
    attempts = [attempt for attempt in job.attempts if not attempt.failed]
    alone = math.fsum(span.ends - span.begins for span in late.fate.spans)
    ran = math.fsum(attempt.ran for attempt in attempts)
    lost = math.fsum(attempt.lost for attempt in attempts)
    started = math.fsum(attempt.ready - attempt.begins for attempt in attempts)
    more = started + ran - alone
    if min(more, lost) > 0:
        found[Cause.LOST_WORK] = min(more, lost)
        more -= min(more, lost)
    again = math.fsum(attempt.ready - attempt.begins for attempt in attempts[1:])
    if min(more, again) > 0:
        found[Cause.SWITCHING] = min(more, again)
    if more - again > 0:
        found[Cause.SLOWER_GPUS] = more - again
    return found


def why_waiting(
    timeline: Timeline, late: LateJob, moment: float, *, is_behind: bool
) -> tuple[Cause | None, Sequence[Key]]:
    """Returns a pair: why the job waited at `moment`, and the attempts that were in its way.

    The cause is None if the wait does not count as lateness. `timeline` must have been moved to `moment`. `is_behind`:
    whether the tenant had received clearly fewer GPU-seconds by then than in the replay.
    """
    job = late.job
    ineligible = [one.cause for one in job.ineligible if one.begins <= moment < one.ends]
    for cause in ineligible:
        if cause is not Cause.IDLE_LIMIT:
            return cause, ()
    kinds = [k for k, speed in enumerate(job.speeds) if speed > 0 and _could_hold(timeline, job, k)]
    allowed, in_quota = _within_limits(timeline, job, kinds, moment)
    if kinds and not allowed:
        return Cause.QUOTA, in_quota
    free = timeline.usable - timeline.held
    for given, cause in ((free - timeline.kept, Cause.UNEXPLAINED), (free, Cause.RESERVATION)):
        if any(_slots(given[timeline.of_kind[k]], job) >= job.workers for k in allowed):
            kept = [key for key in timeline.reservations if timeline.attempt(key).generation in allowed]
            return cause, kept if cause is Cause.RESERVATION else ()
    for k in allowed:
        nodes = timeline.of_kind[k]
        if np.maximum(free[nodes], 0).sum() >= job.gpus:
            return Cause.FRAGMENTATION, _on_broken_nodes(timeline, k, free)
    claimed, beyond = _within_limits(timeline, job, allowed, moment, leaves_idle=True)
    if ineligible or (allowed and not claimed):
        return Cause.IDLE_LIMIT, beyond
    return _others_or_own(timeline, late, claimed, free, is_behind=is_behind)


def _could_hold(timeline: Timeline, job: PastJob, k: int) -> bool:
    return _slots(timeline.gpus[timeline.of_kind[k]], job) >= job.workers


def _slots(free: Ints, job: PastJob) -> int:
    return int((np.maximum(free, 0) // job.gpus_per_worker).sum())


def _within_limits(
    timeline: Timeline, job: PastJob, kinds: Sequence[int], moment: float, *, leaves_idle: bool = False
) -> tuple[list[int], list[Key]]:
    """Returns a pair: the generations among `kinds` on which limits let the job run at `moment`, and the attempts in
    its way.

    The attempts in its way count towards the exhausted limits. Only limits with this value of `leaves_idle` are
    checked; `PastLimit` describes it.
    """
    allowed, using = list(kinds), dict[Key, None]()
    for limit in timeline.limits[job.tenant]:
        if limit.leaves_idle != leaves_idle or limit.user not in {None, job.user}:
            continue
        if not limit.begins <= moment < limit.ends:
            continue
        counted = [limit.generation] if limit.generation is not None else range(timeline.past.generations)
        if timeline.held_under(limit, counted) + job.gpus > limit.gpus:
            allowed = [k for k in allowed if k not in counted]
            using |= timeline.attempts_under(limit, counted)
    return allowed, list(using)


def _on_broken_nodes(timeline: Timeline, k: int, free: Ints) -> list[Key]:
    """Returns the attempts that have a worker on a partly free node of generation `k`.

    The GPUs that are free on such nodes are too scattered for the waiting job. `free` has the free GPUs of each node.
    """
    broken = {int(node) for node in timeline.of_kind[k] if free[node] > 0}
    return [
        key
        for tenant in range(len(timeline.bought))
        for key in timeline.attempts[tenant, k]
        if not broken.isdisjoint(timeline.attempt(key).nodes)
    ]


def _others_or_own(
    timeline: Timeline, late: LateJob, kinds: Sequence[int], free: Ints, *, is_behind: bool
) -> tuple[Cause | None, Sequence[Key]]:
    """Returns a pair: why the job waited when no GPUs were free for it, and the attempts that were in its way.

    - OVER_BORROWING: other tenants held more GPUs than their private clusters have. The cause is None instead if the
      tenant had recently held its share on average.
    - HARDWARE: GPUs of the cluster were out of use, or the cluster had become smaller.
    - PRIORITY: other jobs of the tenant went first. The cause is None instead if `_is_order_alone` is true and the
      tenant is not behind.
    - UNEXPLAINED: none of these causes applies.

    None means that the wait does not count as lateness. `kinds`: the generations where limits let the job run. `free`:
    the free GPUs of each node. `is_behind` is described at `why_waiting`.
    """
    job, tenant, away = late.job, late.job.tenant, False
    for k in kinds:
        nodes = timeline.of_kind[k]
        mine, bought = int(timeline.by_tenant[tenant, k]), int(timeline.bought[tenant, k])
        # Others are at fault only if the tenant's unused part holds the gang, or is at least as large as the part that
        # it uses.
        if bought - mine < job.gpus and not 0 < bought - mine >= mine:
            continue
        there = int(np.maximum(free[nodes], 0).sum())
        missing = job.gpus - there
        gone = int((timeline.gpus[nodes] - timeline.usable[nodes]).sum())
        over = timeline.by_tenant[:, k] - timeline.bought[:, k]
        over[tenant] = 0
        over = np.maximum(over, 0)
        if over.sum() >= missing or (over.sum() > 0 and gone < missing):
            # The whole GPUs that a tenant buys may exceed its entitlement.
            worth = min(bought, timeline.past.parts[tenant] * float(timeline.bought[:, k].sum()))
            if timeline.held_lately(tenant)[k] >= worth - NOISE:
                return None, ()
            keys = [key for other in np.flatnonzero(over).tolist() for key in timeline.attempts[other, k]]
            return Cause.OVER_BORROWING, keys
        away = away or gone > 0
    if away or not kinds:
        return Cause.HARDWARE, ()
    own = [key for k in kinds for key in timeline.attempts[tenant, k]]
    if own:
        is_order = not is_behind and _is_order_alone(timeline, job, kinds, own)
        return (None if is_order else Cause.PRIORITY), own
    then = timeline.bought_at(late.fate.first_start or 0.0)
    shrunk = any(timeline.bought[tenant, k] < then[tenant, k] for k in kinds)
    return Cause.HARDWARE if shrunk else Cause.UNEXPLAINED, ()


def _is_order_alone(timeline: Timeline, job: PastJob, kinds: Sequence[int], own: Sequence[Key]) -> bool:
    """Returns whether the job waited only for its tenant's other jobs of equal priority.

    `own`: the tenant's attempts on the generations `kinds`. The result is also False if another user of the tenant
    holds more GPUs there than that user's tickets would buy from the tenant's private cluster.
    """
    held: dict[int, int] = {job.user: 0}
    for key in own:
        other = timeline.job(key)
        if other.priority != job.priority:
            return False
        held[other.user] = held.get(other.user, 0) + other.gpus
    tickets = timeline.past.user_tickets[job.tenant]
    bought = sum(int(timeline.bought[job.tenant, k]) for k in kinds)
    worth = bought / (math.fsum(tickets[user] for user in held) or 1.0)
    return all(gpus <= math.ceil(tickets[user] * worth) for user, gpus in held.items() if user != job.user)
