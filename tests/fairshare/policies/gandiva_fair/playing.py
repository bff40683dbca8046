"""Plays rounds of the job selection for tests, with the shares that the policy computes or with given shares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from fairshare.model import NOWHERE, Floats, Jobs, Snapshot
from fairshare.policies.gandiva_fair.affinity import affinities
from fairshare.policies.gandiva_fair.balances import Balances, settle
from fairshare.policies.gandiva_fair.selection import Picks, select
from fairshare.policies.gandiva_fair.shares import Shares, share_out
from fairshare.quotas import limits_of
from fairshare.reasons import may_run
from fairshare.tree import Tree


def by_hand(guaranteed: list[list[float]], share: list[list[float]] | None = None) -> Shares:
    first = np.array(guaranteed, dtype=np.float64)
    return Shares(first, first, first if share is None else np.array(share, dtype=np.float64))


@dataclass
class Round:
    """One played round: the snapshot, the balances (GPU time that accounts are owed), the picked jobs, and the GPUs
    that accounts received."""

    given: Snapshot
    balances: Balances
    picks: Picks
    got: Floats  # (T, K) GPUs of leaves
    shares: Shares

    @property
    def runs(self) -> list[int]:
        return np.flatnonzero(self.picks.generation != NOWHERE).tolist()

    @property
    def stops(self) -> list[int]:
        ran = self.given.jobs.running_on != NOWHERE
        return np.flatnonzero(ran & (self.picks.generation == NOWHERE)).tolist()

    @property
    def moves(self) -> list[int]:
        jobs = self.given.jobs
        return [
            job
            for job in self.runs
            if jobs.running_on[job] != NOWHERE
            and sorted(self.picks.nodes[job].tolist())
            != sorted(jobs.place_node[jobs.place_start[job] : jobs.place_start[job + 1]].tolist())
        ]


@dataclass
class Played:
    rounds: list[Round] = field(default_factory=list)

    @property
    def mean(self) -> Floats:
        """Returns the mean number of GPUs that each account had per round, as an array (T,)."""
        mean: Floats = np.mean([one.got.sum(axis=1) for one in self.rounds], axis=0)
        return mean

    @property
    def by_generation(self) -> Floats:
        mean: Floats = np.mean([one.got for one in self.rounds], axis=0)
        return mean

    @property
    def stops(self) -> list[int]:
        return [job for one in self.rounds for job in one.stops]

    @property
    def moves(self) -> list[int]:
        return [job for one in self.rounds for job in one.moves]

    def ran(self, job: int) -> list[int]:
        """Returns the indices of the rounds in which a job ran."""
        return [i for i, one in enumerate(self.rounds) if one.picks.generation[job] != NOWHERE]


def decide(
    given: Snapshot, shares: Shares | None = None, balances: Balances | None = None, seed: int = 0
) -> Round:
    tree = Tree.of(given.accounts.parent)
    able, reason = may_run(given, tree)
    found = shares or share_out(given, tree, given.jobs.sharing(able))
    now = balances or Balances.none(*given.accounts.owed.shape)
    owing = replace(given, accounts=replace(given.accounts, owed=now.owed))
    limits = limits_of(owing.accounts, tree, found.entitled, given.settings)
    affinity = affinities(given.jobs, given.jobs.sharing(able), found.share, given.accounts.evenly)
    picks = select(owing, tree, able, reason, found, affinity, now, limits, np.random.default_rng(seed))
    got = np.zeros_like(given.accounts.owed)
    runs = np.flatnonzero(picks.generation != NOWHERE)
    if picks.preemptible is not None:
        runs = runs[~np.isin(runs, picks.preemptible)]
    np.add.at(
        got,
        (given.jobs.account[runs], picks.generation[runs]),
        (given.jobs.workers * given.jobs.gpus)[runs].astype(np.float64),
    )
    return Round(given, now, picks, got, found)


def play(given: Snapshot, rounds: int, shares: Shares | None = None, seed: int = 0) -> Played:
    played = Played()
    for one in rounds_of(given, rounds, shares, seed):
        played.rounds.append(one)
    return played


def rounds_of(
    given: Snapshot,
    rounds: int,
    shares: Shares | None = None,
    seed: int = 0,
    balances: Balances | None = None,
) -> Iterator[Round]:
    tree = Tree.of(given.accounts.parent)
    size = (given.jobs.workers * given.jobs.gpus).astype(np.float64)
    active = np.zeros((len(tree.parent), 1))
    largest = np.zeros((len(tree.parent), 1))
    np.add.at(active, given.jobs.account, 1.0)
    np.maximum.at(largest[:, 0], given.jobs.account, size)
    for level in tree.levels[:0:-1]:
        np.maximum.at(largest, tree.parent[level], largest[level])
    for number in range(rounds):
        one = decide(given, shares, balances, seed * 100_003 + number)
        yield one
        quantum = given.settings.quantum
        balances = settle(
            one.balances,
            one.shares,
            tree,
            one.got * quantum,
            quantum,
            given.settings,
            tree.sums(active)[:, 0] > 0,
            largest[:, 0],
        )
        given = replace(given, jobs=_moved(given.jobs, one.picks, quantum))


def _moved(jobs: Jobs, picks: Picks, quantum: float) -> Jobs:
    places, resident = [], np.zeros(len(jobs))
    for job in range(len(jobs)):
        before = jobs.place_node[jobs.place_start[job] : jobs.place_start[job + 1]]
        now = picks.nodes.get(job)
        places.append(before if now is None else now)
        if now is not None:
            stays = jobs.running_on[job] != NOWHERE and sorted(now.tolist()) == sorted(before.tolist())
            resident[job] = quantum + (jobs.resident[job] if stays else 0.0)
    had = (picks.generation[:, None] == np.arange(jobs.rate.shape[1])) * (jobs.workers * jobs.gpus)[:, None]
    return replace(
        jobs,
        running_on=picks.generation.copy(),
        resident=resident,
        place_start=np.cumsum([0, *map(len, places)]).astype(np.int64),
        place_node=np.concatenate([np.empty(0, dtype=np.int64), *places]).astype(np.int64),
        attained=None if jobs.attained is None else jobs.attained + had * quantum,
    )
