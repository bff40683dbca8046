"""Defines the promises: properties of a policy, each with a predicate over a simulated economy.

Where two promises seem to contradict each other, the field `reading` of a promise says how both can be kept. It also
says which deviations are tolerated.

An account's *savings* are the unused guarantee of earlier rounds. GPUs beyond its guarantee and its savings are
*surplus*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.stats import chi2

from fairshare.check.economy import INF
from fairshare.check.oracle import Oracle, all_fit
from fairshare.check.play import Placements, PlayedRound
from fairshare.check.played import Played, alone, siblings, used, would_fit
from fairshare.driver import Situation
from fairshare.model import Floats

EPSILON = 1e-6  # GPUs


@dataclass(frozen=True)
class Verdict:
    """The result of checking one promise in one economy.

    - `broken`: a sentence that says how the promise was broken, or None if it was kept.
    - `figure`: the worst measured value, or None. The promise's `measure` says what it counts.
    """

    broken: str | None = None  # a sentence that says how the promise was broken; None if it held
    figure: float | None = None  # the worst value of the promise's measure


UNTESTED = None  # the economy does not test the promise


@dataclass(frozen=True)
class Promise:
    """A property that a policy promises, and the predicate that checks it."""

    name: str
    title: str
    reading: str
    measure: str  # what the figures count
    judge: Callable[[Played], Verdict | None]


def _verdict(broken: list[str], figure: float | None = None) -> Verdict:
    return Verdict(broken[0] if broken else None, len(broken) if figure is None else figure)


# ---- 1 and 14: gangs within their account's guarantee go before all surplus gangs


def _surplus(played: Played, one: PlayedRound, account: int) -> list[Placements]:
    """Returns the surplus gangs of an account in the round `one`, each with its nodes.

    Which gangs are surplus depends on the order in which the gangs are counted. The result has one entry for each of
    five orders. Gangs within their minimum hold are left out.
    """
    economy = played.economy
    allowed = played.oracle(one).guarantee[2][account] + played.credit[one.number][account] + EPSILON
    own = [j for j in one.after if account in economy.paths[economy.jobs[j].account]]
    pinned = {j for j in own if one.resident.get(j, np.inf) < economy.settings.min_hold}
    keys: list[Callable[[int], tuple[float, ...]]] = [
        lambda j: (economy.jobs[j].priority, -j),
        lambda j: (economy.jobs[j].size, -j),
        lambda j: (-economy.jobs[j].size, -j),
        lambda j: (j in one.before, -j),
        lambda j: (j not in one.before, -j),
    ]
    found = []
    for key in keys:
        rest = sum(economy.jobs[j].size for j in own)
        above: Placements = {}
        for j in sorted(own, key=key):
            if rest <= allowed:
                break
            rest -= economy.jobs[j].size
            if j not in pinned:
                above[j] = one.after[j]
        found.append(above)
    return found


def _kept_out(played: Played, one: PlayedRound, job: int) -> str | None:
    """Returns a sentence if surplus gangs of other accounts keep a waiting job out in the round `one`, otherwise None.

    They keep the job out if it would fit without them, and its account would then still be within its guarantee. The
    sentence names the accounts that have surplus gangs.
    """
    economy, size = played.economy, played.economy.jobs[job].size
    fewest, use = played.oracle(one).guarantee[1], used(economy, one.after)
    ways: list[list[Placements]] = []
    above = []
    for account in economy.paths[economy.jobs[job].account]:
        if use[account] + size > fewest[account] + EPSILON:
            break
        for other in siblings(economy, account):
            surplus = _surplus(played, one, other)
            if any(surplus):
                above.append(other)
                ways.append([way for i, way in enumerate(surplus) if way not in surplus[:i]])
    # The order in which surplus is counted may differ from account to account.
    gone = (set().union(*way) for way in product(*ways))
    left = ({j: nodes for j, nodes in one.after.items() if j not in some} for some in gone)
    if not above or not all(would_fit(economy, job, rest) for rest in left):
        return None
    leaf = economy.jobs[job].account
    having = ", ".join(
        f"account {t} has {use[t]:g} GPUs, although its guarantee is {played.oracle(one).guarantee[2][t]:.2f} GPUs and"
        f" its savings are at most {played.credit[one.number][t]:.2f} GPU-quanta (GPUs × quanta)"
        for t in above
    )
    return f"account {leaf} has only {use[leaf]:g} of its {fewest[leaf]:.2f} guaranteed GPUs, while {having}"


def _is_next(played: Played, one: PlayedRound, job: int) -> bool:
    """Returns whether, in the round `one`, the owner prefers `job` to all other waiting jobs of the account that can
    run."""
    leaf = played.economy.jobs[job].account
    return not any(
        played.economy.jobs[j].account == leaf
        and played.economy.able[j].any()
        and played.may_go_first(j, job)
        for j in one.waiting
    )


def _within_guarantee(played: Played, *, ran: bool) -> Verdict | None:
    if played.economy.settings.trading:
        return UNTESTED
    broken = []
    for one in played.rounds_and_between:
        if played.economy.settings.ordering == "lottery" and not one.before:
            continue  # all jobs take part in the first lottery
        for job in one.waiting:
            if (job in one.before) == ran and played.economy.able[job].any() and _is_next(played, one, job):
                why = _kept_out(played, one, job)
                if why:
                    broken.append(f"round {one.number}: job {job} {'is stopped' if ran else 'waits'}: {why}")
    return _verdict(broken)


# ---- 12: a market


def _is_market(played: Played) -> Verdict | None:
    economy = played.economy
    if any(account.cap or account.cap_total < INF for account in economy.accounts):
        return UNTESTED
    broken, worst = [], 0.0
    for one in [phase[0] for phase in played.phases[:3]]:
        oracle = played.oracle(one)
        income = oracle.entitled.sum(axis=1)
        left = np.maximum(economy.capacity - one.share[oracle.leaves].sum(axis=0), 0.0)
        for t in oracle.leaves:
            has = oracle.progress_of(one.share[t], t)
            better = {
                f"the share of account {o}": one.share[o] * income[t] / income[o] for o in oracle.leaves
            }
            better |= {
                "its private cluster": oracle.entitled[t],
                "all unused GPUs in addition to its share": one.share[t] + left,
            }
            for what, gpus in better.items():
                could = oracle.progress_of(gpus, t)
                worst = max(worst, could - has)
                if could > has * 1.005 + 0.005:
                    broken.append(
                        f"round {one.number}: the jobs of account {t} make as much progress as on {has:.3f} GPUs at"
                        f" full speed; with {what}, they would make as much as on {could:.3f} GPUs"
                    )
    return _verdict(broken, worst)


# ---- 13: services and sessions


def _services_stay(played: Played) -> Verdict | None:
    economy, broken, judged = played.economy, [], False
    for one in played.rounds:
        ran = [j for j in one.before if economy.jobs[j].keeps]
        use = np.zeros(len(economy.accounts))
        for j in ran:
            use[economy.paths[economy.jobs[j].account]] += economy.jobs[j].size
        within = use <= (played.oracle(one).guarantee[1] if ran else use) + EPSILON
        for j in ran:
            if within[economy.paths[economy.jobs[j].account]].all():
                judged = True
                if j in one.stopped or j in one.moved:
                    how = "is stopped" if j in one.stopped else "moves"
                    broken.append(
                        f"round {one.number}: service {j} {how}, although its account is within its guarantee"
                    )
    return _verdict(broken) if judged else UNTESTED


# ---- 2: an account's own order


def _own_order(played: Played) -> Verdict | None:
    economy, broken = played.economy, []
    for one in played.rounds:
        for job in one.stopped:
            leaf = economy.jobs[job].account
            instead = [
                j for j in one.started if economy.jobs[j].account == leaf and played.wants_more(job, j)
            ]
            rest = {j: nodes for j, nodes in one.after.items() if j not in instead}
            if instead and would_fit(economy, job, rest):
                broken.append(
                    f"round {one.number}: job {job} is stopped, and jobs {instead} of the same account start instead"
                )
    return _verdict(broken)


# ---- 3: all jobs run if they fit


def _stays(played: Played) -> Verdict | None:
    economy = played.economy
    if economy.settings.trading or any(job.keeps for job in economy.jobs):
        return UNTESTED
    grace = int(np.ceil(economy.settings.min_hold / economy.settings.quantum))
    broken, judged, moves = [], False, 0
    for phase in played.phases:
        oracle = played.oracle(phase[0])
        is_leaf = np.isin(np.arange(len(economy.accounts)), oracle.leaves)
        least = None if oracle.plain else np.where(is_leaf, oracle.guarantee[0], 0.0)
        if len(phase) < grace + 2 or all_fit(economy, phase[0].active, least=least) is not True:
            continue
        judged = True
        for i, one in enumerate(phase[grace:]):
            waits = [j for j in one.waiting if economy.able[j].any()]
            if waits:
                broken.append(f"round {one.number}: jobs {waits} wait although all jobs fit")
            if i:
                moved = one.moved if played.oracle(one).plain else []
                moves += len(moved) + len(one.stopped)
                if moved or one.stopped:
                    broken.append(
                        f"round {one.number}: jobs {moved} move and jobs {one.stopped} stop although nothing changed"
                    )
    return _verdict(broken, float(moves)) if judged else UNTESTED


# ---- 4: progress of the private cluster


def _first_wanted(played: Played, oracle: Oracle) -> list[int]:
    """Returns the jobs that the owners of leaf accounts want most, as one list.

    The jobs of each leaf account are taken in its owner's order until they need at least as many GPUs as its private
    cluster has.
    """
    economy, found = played.economy, []
    for t in oracle.leaves:
        left = float(oracle.entitled[t].sum())
        own = [j for j in oracle.active if economy.jobs[j].account == t]
        for j in sorted(own, key=lambda j: (-economy.jobs[j].priority, j)):
            if left > EPSILON:
                found.append(j)
            left -= economy.jobs[j].size
    return found


def _not_locked_out(played: Played) -> Verdict | None:
    economy = played.economy
    if not economy.is_still or economy.settings.trading or economy.settings.ordering == "lottery":
        return UNTESTED
    if economy.settings.min_hold or len(played.rounds) < 40 or not played.oracle(played.rounds[0]).leaves:
        return UNTESTED
    wanted = _first_wanted(played, played.oracle(played.rounds[0]))
    oracle = Oracle(economy, wanted)
    own = {t: [j for j in wanted if economy.jobs[j].account == t] for t in oracle.leaves}
    due = np.zeros(len(economy.accounts))
    for t, jobs in own.items():
        due[t] = min(oracle.in_order(t, jobs), alone(economy, jobs)) * len(played.rounds) * played.served
    got, had = played.progress(), np.sum(played.used, axis=0)
    team = played.oracle(played.rounds[0]).guarantee[1] * len(played.rounds) * played.served
    broken, worst = [], 1.0
    for t in oracle.leaves:
        if due[t] > EPSILON and all(had[above] < team[above] for above in economy.paths[t][1:]):
            # The order of turns may leave an account behind by two of the largest gangs.
            worst = min(worst, (got[t] + 2 * played.fluid) / due[t])
            if got[t] < 0.95 * due[t] - 2 * played.fluid:
                broken.append(
                    f"in {len(played.rounds)} rounds, the jobs of account {t} progressed by {got[t]:.1f} GPU-quanta"
                    " (GPUs at full speed × quanta); in its private cluster, they would have progressed by"
                    f" {due[t]:.1f}"
                )
    return _verdict(broken, worst)


# ---- 5: shares


def _max_min(played: Played, *, limited: bool) -> Verdict | None:
    economy = played.economy
    if economy.settings.trading or any(account.cap for account in economy.accounts) != limited:
        return UNTESTED
    broken, worst, judged = [], 0.0, False
    for phase in played.phases[:3]:
        oracle = played.oracle(phase[0])
        if not oracle.plain:
            continue
        judged = True
        why, gain = oracle.unfair(phase[0].share)
        worst = max(worst, gain)
        if why:
            broken.append(
                f"round {phase[0].number}: {why}; shares are {np.round(phase[0].share, 3).tolist()}"
            )
    return _verdict(broken, worst) if judged else UNTESTED


# ---- 6 and 7: bounded lag, with and without a minimum hold


def _saturated(oracle: Oracle) -> bool:
    """Returns whether every leaf account can use its whole private cluster, so that its share equals its guarantee.

    Always returns False if a job is faster on one generation than on another.
    """
    progress = oracle.guarantee[0]
    return oracle.plain and all(
        abs(progress[t] - oracle.entitled[t].sum()) < EPSILON * 100 for t in oracle.leaves
    )


def _bounded_lag(played: Played) -> Verdict | None:
    settings = played.economy.settings
    if settings.trading or settings.ordering == "lottery" or settings.min_hold or len(played.rounds) < 40:
        return UNTESTED
    if not all(_saturated(played.oracle(one)) for one in played.rounds if played.oracle(one).leaves):
        return UNTESTED
    return _lag(played, 1.25 * played.fluid + 1.0, np.abs(played.lag))


def _held_lag(played: Played) -> Verdict | None:
    settings = played.economy.settings
    if settings.trading or settings.ordering == "lottery" or not settings.min_hold or len(played.rounds) < 40:
        return UNTESTED
    if not all(_saturated(played.oracle(one)) for one in played.rounds if played.oracle(one).leaves):
        return UNTESTED
    # While other gangs keep their GPUs for the minimum hold, an account goes on earning time that it cannot use yet.
    most = max(float(share.max(initial=0.0)) for share in played.shares)
    bound = 1.25 * played.fluid + 1.0 + most * np.ceil(settings.min_hold / settings.quantum)
    return _lag(played, bound, np.maximum(-played.lag, 0.0))


def _lag(played: Played, bound: float, off: Floats) -> Verdict:
    worst = float(off.max(initial=0.0))
    if worst <= bound:
        return Verdict(None, worst / played.fluid if played.fluid else 0.0)
    number, account = np.unravel_index(int(off.argmax()), off.shape)
    lag = played.lag[number, account]
    return Verdict(
        f"round {number}: account {account} has received {abs(lag):.1f} GPU-quanta (GPUs × quanta)"
        f" {'more' if lag > 0 else 'less'} than it was due; at most {bound:.1f} are allowed. Under an ideal stride"
        f" scheduler, the difference is at most {played.fluid:.1f}",
        worst / played.fluid,
    )


# ---- 8: no GPU idles while it could be used


def _busy(played: Played) -> Verdict | None:
    economy, broken = played.economy, []
    idle, total = 0.0, economy.capacity.sum()
    for one in played.rounds:
        free = total - sum(economy.jobs[j].size for j in one.after)
        waits = [j for j in one.waiting if economy.able[j].any()]
        if not free or not waits:
            continue
        idle += free
        for job in waits:
            if economy.jobs[job].size <= free and would_fit(economy, job, one.after):
                broken.append(f"round {one.number}: job {job} waits although the free GPUs have room for it")
                break
    return _verdict(broken, float(idle / total / len(played.rounds)))


def _equal_claim(played: Played, one: PlayedRound, leaf: int, more: int) -> bool:
    """Returns whether `more` additional GPUs would be of the same kind as the GPUs that a leaf holds in the round
    `one`.

    There are two cases:
    - Guaranteed: with the additional GPUs, the leaf and all accounts above it are still within their guarantees.
    - Surplus: the leaf or an account above it already has surplus GPUs.
    """
    oracle, use = played.oracle(one), played.used[one.number]
    path = played.economy.paths[leaf]
    within = all(use[t] + more <= oracle.guarantee[1][t] + EPSILON for t in path)
    return within or any(use[t] > oracle.guarantee[2][t] + played.credit[one.number][t] for t in path)


def _well_packed(played: Played) -> Verdict | None:
    """Checks that no job starts on a node and leaves GPUs free there if a larger waiting job would have filled the
    node.

    Only jobs of one worker are compared, of the same account and priority. The waiting job needs exactly the GPUs of
    the starting job plus the GPUs that stay free.
    """
    economy, broken = played.economy, []
    if economy.settings.ordering == "lottery":
        return UNTESTED
    for one in played.rounds:
        free = [gpus for _, gpus in economy.nodes]
        for j, nodes in one.after.items():
            for node in nodes:
                free[node] -= economy.jobs[j].gpus
        for job in one.started:
            mine = economy.jobs[job]
            gap = free[one.after[job][0]] if mine.workers == 1 else 0
            for other in one.waiting if gap else ():
                its = economy.jobs[other]
                alike = (its.account, its.priority, its.workers) == (mine.account, mine.priority, 1)
                fills = alike and other not in one.before and its.gpus == mine.gpus + gap
                if fills and _equal_claim(played, one, mine.account, gap):
                    rest = {j: nodes for j, nodes in one.after.items() if j != job}
                    own = [j for j in one.stopped if economy.jobs[j].account == mine.account]
                    # A job that was stopped for this job goes before jobs that its account wants less (promise 2).
                    again = any(played.wants_more(j, other) and would_fit(economy, j, rest) for j in own)
                    if would_fit(economy, other, rest) and not again:
                        broken.append(
                            f"round {one.number}: job {job} starts on node {one.after[job][0]} and leaves {gap} GPUs"
                            f" idle, which job {other} of the same account would fill"
                        )
                        break
    return _verdict(broken)


# ---- 9: the first of an account's own jobs gets its turn


def _fills_instead(played: Played, one: PlayedRound, first: int) -> bool:
    """Returns whether a job starts in the round `one` that may start before the job `first` because it fills a node.

    It has one worker, is larger than `first`, has the same account and priority, and leaves no GPU of its node free.
    """
    jobs, nodes = played.economy.jobs, played.economy.nodes
    used = [0] * len(nodes)
    for j, places in one.after.items():
        for node in places:
            used[node] += jobs[j].gpus
    mine = jobs[first]
    return any(
        (jobs[j].account, jobs[j].priority, jobs[j].workers) == (mine.account, mine.priority, 1)
        and jobs[j].gpus > mine.size
        and used[one.after[j][0]] == nodes[one.after[j][0]][1]
        for j in one.started
    )


def _saved_for(played: Played, first: int) -> float:
    """Returns an upper bound on the GPU-quanta that were available for `first`, the job that its account wants most.

    The bound is the lowest of three sums over all rounds, for the job's account and for each account above it:
    - the account's guarantee minus the GPUs that its other jobs hold
    - the account's share minus the GPUs that its other jobs hold
    - the GPUs of the account's private cluster on which `first` may run

    The other jobs of an account include the jobs of all accounts below it. Their GPUs do not count in a round in which
    `first` waits although it, or a job of another account, could have run instead of them.
    """
    economy = played.economy
    # Guarantee, share and private cluster are multiplied by `served`, because whole gangs cannot use every GPU.
    oracle, found = played.oracle(played.rounds[0]), np.inf
    for account in economy.paths[economy.jobs[first].account]:
        saved = beside = 0.0
        for one in played.rounds:
            own = [j for j in one.after if account in economy.paths[economy.jobs[j].account] and j != first]
            rest = {j: nodes for j, nodes in one.after.items() if j not in own}
            others = [j for j in one.waiting if account not in economy.paths[economy.jobs[j].account]]
            ahead = played.lag[one.number - 1] if one.number else np.zeros(len(economy.accounts))
            # Would a waiting job of an outsider who is not ahead of its share fit if the other jobs were gone?
            contested = any(
                ahead[economy.jobs[j].account] < EPSILON and would_fit(economy, j, rest) for j in others
            )
            had = sum(economy.jobs[j].size for j in own)
            # The other jobs do not count while `first` waits, unless a larger job started instead to fill a node (8b).
            could_run = contested or would_fit(economy, first, rest)
            if could_run and first not in one.after and not _fills_instead(played, one, first):
                had = 0
            # GPUs beyond the guarantee count only in contested rounds.
            least = -np.inf if contested else 0.0
            saved += max(oracle.guarantee[1][account] * played.served - had, least)
            beside += oracle.share[account] * played.served - had
        there = float(oracle.entitled[account] @ economy.able[first]) * played.served * len(played.rounds)
        found = min(found, saved, beside, there)
    return max(found, 0.0)


def _wanted_most(played: Played, one: PlayedRound) -> list[int]:
    """Returns the job that each account wants most. There may be several for an account whose jobs share evenly."""
    jobs, active = played.economy.jobs, played.oracle(one).active
    first: dict[int, int] = {}
    for j in sorted(active, key=lambda j: (-jobs[j].priority, j)):
        first.setdefault(jobs[j].account, j)
    return [j for j in active if not played.wants_more(first[jobs[j].account], j)]


def _first_gets_turns(played: Played) -> Verdict | None:
    economy, rounds = played.economy, played.rounds
    if not economy.is_still or economy.settings.trading or economy.settings.min_hold:
        return UNTESTED
    if any(job.keeps for job in economy.jobs):
        return UNTESTED
    oracle, firsts = played.oracle(rounds[0]), _wanted_most(played, rounds[0])
    broken, worst, judged = [], 1.0, False
    for first in firsts:
        t, size = economy.jobs[first].account, economy.jobs[first].size
        if economy.accounts[t].evenly:
            continue
        opposed = [j for j in firsts if j != first]
        room = sum(
            would_fit(economy, first, {j: one.after[j] for j in opposed if j in one.after}) for one in rounds
        )
        ideal = min(_saved_for(played, first) / size, room)
        if ideal < 5:
            continue
        judged = True
        turns = sum(first in one.after for one in rounds)
        worst = min(worst, turns / ideal)
        if turns < 0.75 * ideal - 3:
            broken.append(
                f"account {t} wants job {first} most. The job ran in {turns} of {len(rounds)} rounds, but the account's"
                f" guarantee is enough for {ideal:.1f} rounds (guarantee: {oracle.guarantee[1][t]:.2f} GPUs; the job"
                f" needs {size} GPUs)"
            )
    return _verdict(broken, worst) if judged else UNTESTED


def _takes_turns(played: Played) -> Verdict | None:
    """Checks that similar jobs run equally often, if their account lets its jobs share evenly.

    Similar jobs have the same shape, account, priority and accepted generations.
    """
    economy = played.economy
    settings = economy.settings
    if not economy.is_still or settings.trading or settings.min_hold or settings.ordering == "lottery":
        return UNTESTED
    alike: dict[tuple[object, ...], list[int]] = {}
    for j in played.oracle(played.rounds[0]).active:
        job = economy.jobs[j]
        if economy.accounts[job.account].evenly and not job.rate:
            key = (job.account, job.priority, job.workers, job.gpus, tuple(economy.able[j].tolist()))
            alike.setdefault(key, []).append(j)
    broken, worst = [], 0
    for jobs in alike.values():
        turns = {j: sum(j in one.after for one in played.rounds) for j in jobs}
        most, least = max(jobs, key=lambda j: turns[j]), min(jobs, key=lambda j: turns[j])
        worst = max(worst, turns[most] - turns[least])
        if turns[most] - turns[least] > 3:
            broken.append(f"job {most} ran in {turns[most]} rounds and job {least} in {turns[least]}")
    return _verdict(broken, float(worst)) if any(len(jobs) > 1 for jobs in alike.values()) else UNTESTED


# ---- 10: trades


def _trades_pay(played: Played) -> Verdict | None:
    economy, first = played.economy, 10
    if not economy.settings.trading or not economy.is_still or len(played.rounds) < 60:
        return UNTESTED
    without, traded = (one.progress(since=first) for one in (played.without_trading(), played))
    wanted = _first_wanted(played, played.oracle(played.rounds[0]))
    oracle = Oracle(economy, wanted)
    largest = max(job.size for job in economy.jobs)
    broken, worst = [], 1.0
    for t in oracle.leaves:
        own = [j for j in wanted if economy.jobs[j].account == t]
        due = min(without[t], oracle.in_order(t, own) * (len(played.rounds) - first))
        ratio = (traded[t] + 2 * largest) / due if due else 1.0
        worst = min(worst, ratio)
        if ratio < 0.98:
            broken.append(
                f"with trading, the jobs of account {t} progress by {traded[t]:.1f} GPU-quanta (GPUs at full speed ×"
                f" quanta); the promise is at least {0.98 * due - 2 * largest:.1f}. Without trading, they progress by"
                f" {without[t]:.1f}"
            )
    return _verdict(broken, worst)


# ---- 15: lotteries


def _fair_chances(played: Played) -> Verdict | None:
    economy = played.economy
    if economy.settings.ordering != "lottery" or economy.nodes != ((0, 1),):
        return UNTESTED
    oracle = played.oracle(played.rounds[0])
    leaves, draws = oracle.leaves, 400
    if len(leaves) < 2 or not economy.is_still:
        return UNTESTED
    view = economy.snapshot(economy.active(0), {}, {}, {}, {})
    first = Situation.first(played.judged.make(economy.settings), view)
    wins = np.zeros(len(economy.accounts))
    for seed in range(draws):
        decision = first.decide(1000 * played.seed + seed)
        wins[view.jobs.account[decision.run]] += 1
        if seed < 3:
            again = first.decide(1000 * played.seed + seed)
            if again.run.tolist() != decision.run.tolist():
                return Verdict(
                    f"two draws with seed {seed} differ: one picks jobs {decision.run.tolist()}, the other picks"
                    f" jobs {again.run.tolist()}"
                )
    expected = draws * oracle.entitled[leaves, 0]
    distance = float(((wins[leaves] - expected) ** 2 / expected).sum())
    chance = float(chi2.sf(distance, len(leaves) - 1))
    if chance < 1e-6:  # one in a million over all economies that are checked
        return Verdict(
            f"accounts {leaves} win {wins[leaves].tolist()} of {draws} lotteries; by their tickets, about"
            f" {expected.tolist()} are expected. The probability of this result is {chance:.1e}",
            chance,
        )
    return Verdict(None, chance)


PROMISES = (
    Promise(
        "1",
        "No gang within a guarantee is stopped for gangs beyond a guarantee",
        "A gang within its account's guarantee is not stopped if it would fit in place of surplus gangs. Surplus gangs"
        " are gangs beyond their account's guarantee and savings. A guarantee is the best use of the account's private"
        " cluster. Savings are the unused guarantee of earlier rounds. Which gangs of an account are surplus depends"
        " on the order in which they are counted. Several orders are tried. The promise is broken only if the stopped"
        " gang would fit under every order. An account may save GPU time for its next gang. Later gangs of the account"
        " cannot use this time (promise 9).",
        "stops",
        lambda played: _within_guarantee(played, ran=True),
    ),
    Promise(
        "2",
        "No job is stopped so that a less wanted job of its account can run",
        "No job is stopped if, within all limits, it would fit in place of less wanted jobs of its account that"
        " start in the same round. An account wants jobs of higher priority more and, among jobs of one priority,"
        " older jobs more. If an account shares evenly, it has no preference among jobs of one priority. Exception:"
        " if another account's turn leaves too few GPUs for the stopped job, smaller jobs may use them.",
        "stops",
        _own_order,
    ),
    Promise(
        "3",
        "If all jobs fit, all of them run and none is stopped",
        "If all jobs fit, all of them run and none is stopped. If each job is equally fast on all GPUs where it may"
        " run, no job moves. Jobs fit under two conditions. All of them can run at the same time. Each account then"
        " makes at least the progress that it would make in its private cluster (promise 4). After jobs have come or"
        " gone, running jobs may stay until their minimum hold is over. In the next round all jobs run, but some of"
        " them may move. From then on, the whole promise applies. Exception: economies with services are not checked,"
        " because services stay where they run (promise 13) and may leave no room for a gang.",
        "stops and moves of jobs",
        _stays,
    ),
    Promise(
        "4",
        "No account makes less progress than in its private cluster",
        "Each account without subaccounts makes at least 95 % of the progress that its most wanted jobs would make in"
        " its private cluster. These are the first jobs in the account's own order (promise 2) that together need at"
        " least as many GPUs as the private cluster has. The account's order decides which jobs run (promises 2 and"
        " 9), and the speeds of jobs decide where they run. Exceptions: the account may be behind by twice the lag of"
        " an ideal stride scheduler (promise 6). An account is not checked if a team above it got its whole guarantee."
        " GPUs that no whole gang can use do not count. No account is due more progress than its gangs would make in"
        " an empty cluster.",
        "progress divided by the progress in the private cluster",
        _not_locked_out,
    ),
    Promise(
        "5",
        "Shares are max-min fair by tickets",
        "No account can gain GPUs without harm to other accounts. Only GPUs that the account can use count. There is"
        " harm if a guarantee is broken, or if a sibling account with the same or fewer GPUs per ticket loses GPUs."
        " The tolerance is 1e-4 GPUs. In the economies of this promise, a limit applies to the GPUs of all generations"
        " together. Promise 5b covers limits on the GPUs of one generation. If jobs have different speeds, promise 4"
        " checks which fast GPUs an account keeps.",
        "GPUs missed",
        lambda played: _max_min(played, limited=False),
    ),
    Promise(
        "5b",
        "Shares are max-min fair by tickets, also with limits on one generation",
        "Shares are max-min fair as in promise 5. In the economies of this promise, some accounts have a limit on"
        " their GPUs of one generation.",
        "GPUs missed",
        lambda played: _max_min(played, limited=True),
    ),
    Promise(
        "6",
        "No account is far ahead of or behind the GPU time that it is due",
        "No account is ahead or behind by more than a bound. The lag is the GPU time that an account received minus"
        " the GPU time that it was due. The bound is 1.25 times the largest lag under an ideal stride scheduler,"
        " plus one GPU for one quantum. The ideal scheduler's lag counts as at least the GPU time of the largest"
        " gang in one quantum. The promise applies only if all accounts can use their whole private clusters."
        " Otherwise GPUs are lent, and a borrower owes nothing for lent GPUs (promise 1). Exceptions: an account"
        " that is ahead may get GPUs on which no job of another account fits (promise 8a). No account is due more"
        " GPU time than its gangs could use in an empty cluster.",
        "lag divided by the lag of an ideal stride scheduler",
        _bounded_lag,
    ),
    Promise(
        "7",
        "A minimum hold starves no account",
        "An account that waits while other gangs keep their GPUs for the minimum hold may be behind by more than"
        " promise 6 allows. The additional lag is at most the GPU time that the largest share in the cluster earns"
        " during one minimum hold.",
        "lag divided by the lag of an ideal stride scheduler",
        _held_lag,
    ),
    Promise(
        "8a",
        "No GPU is idle while a waiting job that may use it fits",
        "A job fits if it can start within all limits and without moving a gang.",
        "idle part",
        _busy,
    ),
    Promise(
        "8b",
        "Jobs that fill a node start before jobs that leave GPUs on it idle",
        "A job that would leave GPUs of its node idle does not start if another waiting job would fill the node"
        " exactly. The two jobs are compared only if they have the same account and priority. The GPUs that the other"
        " job would use in addition must be within the account's guarantee, or the account must already hold surplus"
        " GPUs. Exceptions: no running job is stopped to fill a node. A job that was just stopped goes before jobs"
        " that its account wants less (promise 2).",
        "gaps",
        _well_packed,
    ),
    Promise(
        "9",
        "The job that an account wants most gets its turns",
        "The job that an account wants most (promise 2) runs in at least three quarters of the rounds in which it"
        " should run, minus three rounds. The job should run in as many rounds as the account's guarantee is enough"
        " for, on GPUs where the job may run. A round does not count if the most wanted jobs of other accounts leave"
        " no room for the job. While the job waits, the account saves its guarantee for this job. Exceptions: other"
        " jobs of the account or its team may use GPUs that this job could get only if jobs of other accounts were"
        " stopped, because promise 1 forbids such a stop. A larger job of the same account and priority may go first if"
        " it fills a node that this job would not fill (promise 8b). Economies with services are not checked, because"
        " services stay where they run (promise 13).",
        "rounds in which the job ran, divided by the rounds in which it should have run",
        _first_gets_turns,
    ),
    Promise(
        "9b",
        "Jobs that share their account's GPUs evenly take turns",
        "At any time, the numbers of rounds in which two similar jobs of an account ran differ by at most three."
        " Jobs are similar if they have the same shape (workers and GPUs), priority and accepted generations. The"
        " promise applies to accounts whose jobs of one priority share the GPUs evenly. There are three reasons for"
        " a difference. A job may continue to the end of its quantum. One of the jobs may have had its turn already"
        " while the other still waits for it. Free GPUs may have room for only one of the two jobs.",
        "rounds apart",
        _takes_turns,
    ),
    Promise(
        "10",
        "Trading does not slow any account down",
        "With trading, each account makes at least 98 % of the progress that it would make without trading."
        " Exceptions: the account may be behind by the progress that two of the largest gangs make in one quantum."
        " Progress without trading counts only up to a maximum: the progress that the account's jobs would make in its"
        " private cluster, in the account's own order. Progress beyond this maximum comes from GPU time that other"
        " accounts do not want. The account may sell such time instead.",
        "progress divided by the progress without trading",
        _trades_pay,
    ),
    Promise(
        "12",
        "Shares form a market equilibrium: no account gains by an exchange",
        "None of three exchanges would bring an account more progress, measured by the speeds of its own jobs."
        " First, it could get another account's share, scaled by the ratio of their incomes, instead of its own"
        " share. Second, it could get its private cluster instead. Third, it could get all unused GPUs in addition"
        " to its share. In the market, an account's tickets are its income. The tolerance is 0.5 % and 0.005"
        " GPUs. The promise applies if no account has a limit, and only to policies with a market.",
        "progress that an exchange would add, in GPUs at full speed",
        _is_market,
    ),
    Promise(
        "13",
        "Services and sessions are not time-sliced",
        "A running service or session is neither stopped nor moved while its account, and each account above, is"
        " within its guarantee. Only the GPUs of running services and sessions count here.",
        "stops and moves of jobs",
        _services_stay,
    ),
    Promise(
        "14",
        "A waiting gang starts as soon as its account's guarantee covers it",
        "If an account's guarantee covers its next gang, this gang starts in the same round. The promise applies to"
        " rounds at the end of a quantum. It also applies to extra rounds, which take place within a quantum when"
        " jobs come or go. Exceptions: the gang may wait for surplus gangs (promise 1) whose minimum hold is not"
        " over. Under the ordering lottery, a cluster's first round is not checked, because all accounts take part"
        " in the draw of that round (promise 15).",
        "waits",
        lambda played: _within_guarantee(played, ran=False),
    ),
    Promise(
        "15",
        "A lottery follows tickets, and the same seed repeats it",
        "Checked by a chi-square test of 400 lotteries for one GPU. The promise is broken if the probability of"
        " the observed result is below one in a million.",
        "chance",
        _fair_chances,
    ),
)
