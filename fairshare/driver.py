"""Asks a policy for a decision, validates the answer, and reports to the policy what happened.

Live rounds, previews, forecasts, what-if analyses and replays all use this driver.
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
    """A moment at which a policy can be asked for a decision: the policy, its view of the cluster, and its state."""

    policy: Policy
    view: Snapshot
    state: State

    @classmethod
    def first(cls, policy: Policy, view: Snapshot) -> Self:
        """Returns the situation of a policy before its first decision."""
        return cls(policy, view, policy.start(view))

    def decide(self, seed: int) -> Decision:
        """Returns which gangs run where until the next decision. Raises InvalidPlan when the policy breaks a rule.

        Drops the plan's `ask_again` if it is not before the end of the quantum, when the next round happens anyway.
        """
        plan = self.policy.decide(self.state, self.view, np.random.Generator(np.random.PCG64(seed)))
        validate(plan, self.view)
        if plan.ask_again is not None and plan.ask_again >= self.view.settings.quantum:
            return replace(plan, ask_again=None)
        return plan

    def fill(self, seed: int) -> Decision:
        """Returns the decision of an extra round, held before the current quantum ends. Raises InvalidPlan if the
        policy breaks a rule."""
        settings = between_quanta(self.policy, self.view.settings)
        return replace(self, view=replace(self.view, settings=settings)).decide(seed)

    def after(self, plan: Decision, seconds: float | None = None) -> Self:
        """Returns the situation after the plan was in force for `seconds`, by default one quantum.

        Assumes that every gang is where the plan put it, no job came or ended, and no time was lost.
        """
        lasted = self.view.settings.quantum if seconds is None else seconds
        received = received_gpus(self.view, plan, shared=True) * lasted
        state = self.policy.observe(self.state, happened(plan, received, lasted), self.view)
        return replace(self, view=_moved(self.view, plan, lasted), state=state)


def between_quanta(policy: Policy, settings: Settings) -> Settings:
    """Returns the settings of a round between two quanta.

    Such a round takes back surplus if the policy supports that; otherwise it preempts nothing.
    """
    if Need.RECLAIM in policy.needs:
        return replace(settings, may_preempt=True, reclaim=True)
    return replace(settings, may_preempt=False)


def happened(plan: Decision, received: Floats, seconds: float) -> Happened:
    """Returns what happened while a plan for the same accounts was in force. All corrections are 0."""
    nothing = np.zeros_like(plan.share)
    guaranteed = nothing if plan.guaranteed is None else plan.guaranteed
    return Happened(seconds, received, plan.share, guaranteed, corrected=nothing)


def realigned(array: Floats, rows: Ints, columns: Ints) -> Floats:
    """Returns a copy of the array, of shape (T,) or (T, K), with accounts and generations in another order.

    `rows` and `columns` have the old index of each account and generation, or NOWHERE for a new one, which gets 0.
    """
    # NOWHERE is -1 and so selects the zeros that are appended at the end.
    found: Floats = np.concatenate([array, np.zeros((1, *array.shape[1:]))])[rows]
    if array.ndim == 1:
        return found
    return np.concatenate([found, np.zeros((len(found), 1))], axis=1)[:, columns]


def owed_now(situation: Situation, plan: Decision) -> Floats:
    """Returns the GPU-seconds that the next rounds will make good, as an array (T, K), according to the policy's state.

    Some policies make debts good on any generation and keep only a total for each account; the total is split in
    proportion to the account's share.
    """
    state, share = situation.state, plan.share
    if "total" not in state:
        return state.get("owed", np.zeros_like(share))
    total = share.sum(axis=1)[:, None]
    anywhere = np.full_like(share, 1 / max(share.shape[1], 1))
    owed: Floats = state["total"][:, None] * np.divide(share, total, out=anywhere, where=total > 0)
    return owed


def received_gpus(view: Snapshot, plan: Decision, *, shared: bool = False) -> Floats:
    """Returns the GPUs that the picked gangs of each leaf hold until the next decision, as an array (T, K).

    With `shared`, leaves out gangs on idle GPUs, which do not count as part of a share.
    """
    jobs = view.jobs
    received = np.zeros_like(plan.share)
    size = (jobs.workers * jobs.gpus)[plan.run].astype(np.float64)
    if shared and plan.preemptible is not None:
        size[np.isin(plan.run, plan.preemptible)] = 0.0
    np.add.at(received, (jobs.account[plan.run], plan.generation), size)
    return received


def _moved(view: Snapshot, plan: Decision, seconds: float) -> Snapshot:
    """Returns the view with picked gangs on the nodes of the plan, and all other gangs suspended.

    A suspended gang keeps its last nodes as a preference.
    """
    jobs: Jobs = view.jobs
    count, old = np.arange(len(jobs)), np.diff(jobs.place_start)
    running_on = np.full(len(jobs), NOWHERE, dtype=np.int64)
    running_on[plan.run] = plan.generation
    picked = running_on != NOWHERE
    sizes = old.copy()
    sizes[plan.run] = np.diff(plan.place_start)
    # Two arrays with the job of each entry of place_node: the entries before the plan, and those of the plan.
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
        unwarned=None,  # because every notice is over by then
        attained=attained,
    )
    return replace(view, jobs=moved, now=view.now + seconds)
