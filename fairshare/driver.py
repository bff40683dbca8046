"""Asks a policy, validates what it answers, and tells it what happened: the only way to a decision.

Live rounds, previews, forecasts, what-if and replays all come this way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from fairshare.model import NOWHERE, Decision, Floats, Ints, Jobs, Settings, Snapshot
from fairshare.policies.base import Happened, Need, Policy, State
from fairshare.validate import validate


@dataclass(frozen=True, slots=True)
class Situation:
    """A moment at which a policy can be asked: what it sees, and what it remembers."""

    policy: Policy
    view: Snapshot
    state: State

    @classmethod
    def first(cls, policy: Policy, view: Snapshot) -> Self:
        """The situation of a policy that was never asked before."""
        return cls(policy, view, policy.start(view))

    def decide(self, seed: int) -> Decision:
        """Returns who runs where until the next decision; raises InvalidPlan where the policy breaks a rule.

        A policy that asks for a round when the quantum is over, or later, asks for none: there is one in any case.
        """
        plan = self.policy.decide(self.state, self.view, np.random.Generator(np.random.PCG64(seed)))
        validate(plan, self.view)
        if plan.ask_again is not None and plan.ask_again >= self.view.settings.quantum:
            return replace(plan, ask_again=None)
        return plan

    def fill(self, seed: int) -> Decision:
        """Like `decide`, by a round between two quanta."""
        settings = between_quanta(self.policy, self.view.settings)
        return replace(self, view=replace(self.view, settings=settings)).decide(seed)

    def after(self, plan: Decision, seconds: float | None = None) -> Self:
        """Returns the situation when the plan was in force for that long, by default for a quantum.

        Every gang is where the plan put it, nobody came or went, and no time was lost.
        """
        lasted = self.view.settings.quantum if seconds is None else seconds
        received = received_gpus(self.view, plan, shared=True) * lasted
        state = self.policy.observe(self.state, happened(plan, received, lasted), self.view)
        return replace(self, view=_moved(self.view, plan, lasted), state=state)


def between_quanta(policy: Policy, settings: Settings) -> Settings:
    """The settings of a round between two quanta: it takes surplus back if the policy can, and stops nobody else."""
    if Need.RECLAIM in policy.needs:
        return replace(settings, may_preempt=True, reclaim=True)
    return replace(settings, may_preempt=False)


def happened(plan: Decision, received: Floats, seconds: float) -> Happened:
    """What happened while a plan for the same accounts was in force, with nothing to correct."""
    nothing = np.zeros_like(plan.share)
    guaranteed = nothing if plan.guaranteed is None else plan.guaranteed
    return Happened(seconds, received, plan.share, guaranteed, corrected=nothing)


def realigned(array: Floats, rows: Ints, columns: Ints) -> Floats:
    """The (T,) or (T, K) array in another order of accounts and generations.

    `rows` and `columns` have the former place of each account and generation, NOWHERE for new ones, which get 0.
    """
    # NOWHERE is -1, the place of what is added at the end.
    found: Floats = np.concatenate([array, np.zeros((1, *array.shape[1:]))])[rows]
    if array.ndim == 1:
        return found
    return np.concatenate([found, np.zeros((len(found), 1))], axis=1)[:, columns]


def owed_now(situation: Situation, plan: Decision) -> Floats:
    """(T, K) GPU-seconds that the next rounds will make good, as far as the policy says.

    Where it makes them good on whichever generation, each has the part of them that the account's share has there.
    """
    state, share = situation.state, plan.share
    if "total" not in state:
        return state.get("owed", np.zeros_like(share))
    total = share.sum(axis=1)[:, None]
    anywhere = np.full_like(share, 1 / max(share.shape[1], 1))
    owed: Floats = state["total"][:, None] * np.divide(share, total, out=anywhere, where=total > 0)
    return owed


def received_gpus(view: Snapshot, plan: Decision, *, shared: bool = False) -> Floats:
    """(T, K) GPUs that each leaf's picked gangs hold until the next decision.

    With `shared` without those that they only have as nobody else wants them, which count for nobody's share.
    """
    jobs = view.jobs
    received = np.zeros_like(plan.share)
    size = (jobs.workers * jobs.gpus)[plan.run].astype(np.float64)
    if shared and plan.preemptible is not None:
        size[np.isin(plan.run, plan.preemptible)] = 0.0
    np.add.at(received, (jobs.account[plan.run], plan.generation), size)
    return received


def _moved(view: Snapshot, plan: Decision, seconds: float) -> Snapshot:
    """The picked gangs where they were put; the others suspended, with the nodes where they ran last."""
    jobs: Jobs = view.jobs
    count, old = np.arange(len(jobs)), np.diff(jobs.place_start)
    running_on = np.full(len(jobs), NOWHERE, dtype=np.int64)
    running_on[plan.run] = plan.generation
    picked = running_on != NOWHERE
    sizes = old.copy()
    sizes[plan.run] = np.diff(plan.place_start)
    # Whose node each entry of place_node is: before, in the plan, and now.
    before, now = np.repeat(count, old), np.repeat(count, sizes)
    decided = np.repeat(plan.run, np.diff(plan.place_start))
    place_node = np.empty(len(now), dtype=np.int64)
    place_node[~picked[now]] = jobs.place_node[~picked[before]]
    place_node[picked[now]] = plan.place_node[np.argsort(decided, kind="stable")]
    stays = picked & (running_on == jobs.running_on) & (sizes == old)
    elsewhere = place_node[stays[now]] != jobs.place_node[stays[before]]
    stays[now[stays[now]][elsewhere]] = False
    attained = jobs.attained
    if attained is not None:
        attained = attained.copy()
        attained[plan.run, plan.generation] += (jobs.workers * jobs.gpus)[plan.run] * seconds
    moved = replace(
        jobs,
        running_on=running_on,
        resident=np.where(picked, np.where(stays, jobs.resident, 0.0) + seconds, 0.0),
        place_start=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        place_node=place_node,
        unwarned=None,  # a notice is over by then
        attained=attained,
    )
    return replace(view, jobs=moved, now=view.now + seconds)
