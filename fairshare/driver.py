"""Runs a policy: asks for a decision, validates it, and reports to the policy how much GPU time accounts received.

Live rounds, previews, forecasts, what-if analyses and replays all use this module.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from fairshare.advance import Apart
from fairshare.model import NOWHERE, Decision, Floats, Ints, Jobs, Settings, Snapshot
from fairshare.policies.base import Happened, Need, Policy, State
from fairshare.sizes import at_least_size, with_sizes
from fairshare.validate import validate


@dataclass(frozen=True, slots=True)
class Situation:
    """A moment at which a policy can decide: the policy, its view of the cluster (a snapshot), and its state."""

    policy: Policy
    view: Snapshot
    state: State

    @classmethod
    def first(cls, policy: Policy, view: Snapshot) -> Self:
        """Returns the situation before the policy's first decision."""
        return cls(policy, view, policy.start(view))

    def decide(self, seed: int) -> Decision:
        """Asks the policy which gangs run where until the next round, and returns the validated decision.

        Elastic gangs get the sizes of `fairshare.sizes`, whatever the policy. Raises InvalidPlan if the decision breaks
        a rule. A request for an early next round (`ask_again`) is dropped if it is not before the end of the quantum.

        GPUs of advance reservations are set apart before the policy is asked (`fairshare.advance`).
        """
        apart = None if self.view.advance is None else Apart.of(self.view)
        plan = (
            self._ask(self.view, seed) if apart is None else apart.decided(lambda view: self._ask(view, seed))
        )
        if plan.ask_again is not None and plan.ask_again >= self.view.settings.quantum:
            return replace(plan, ask_again=None)
        return plan

    def _ask(self, view: Snapshot, seed: int) -> Decision:
        base = at_least_size(view)
        plan = self.policy.decide(self.state, base, np.random.Generator(np.random.PCG64(seed)))
        validate(plan, base)
        if view.jobs.most is not None:
            plan = with_sizes(plan, base, view)
            validate(plan, view)
        return plan

    def fill(self, seed: int) -> Decision:
        """Returns the decision of an additional round before the current quantum ends. Raises InvalidPlan if it breaks
        a rule.

        Such a round takes back surplus if the policy supports that; otherwise it only fills free GPUs.
        """
        settings = between_quanta(self.policy, self.view.settings)
        return replace(self, view=replace(self.view, settings=settings)).decide(seed)

    def after(self, plan: Decision, seconds: float | None = None) -> Self:
        """Returns the situation after `plan` was in force for `seconds`, by default one quantum.

        Assumes that all gangs run where the plan put them, and that no job came or ended and no time was lost.
        """
        lasted = self.view.settings.quantum if seconds is None else seconds
        received = received_gpus(self.view, plan, shared=True) * lasted
        state = self.policy.observe(self.state, happened(plan, received, lasted), self.view)
        return replace(self, view=_moved(self.view, plan, lasted), state=state)


def between_quanta(policy: Policy, settings: Settings) -> Settings:
    """Returns the settings for a round between two quanta.

    If the policy supports it, such a round takes back surplus. Otherwise it stops no gang.
    """
    if Need.RECLAIM in policy.needs:
        return replace(settings, may_preempt=True, reclaim=True)
    return replace(settings, may_preempt=False)


def happened(plan: Decision, received: Floats, seconds: float) -> Happened:
    """Returns a report for the policy on the `seconds` in which `plan` was in force.

    `received` (T, K): GPU-seconds that each account received of each generation. The report contains no corrections of
    earlier reports.
    """
    nothing = np.zeros_like(plan.share)
    guaranteed = nothing if plan.guaranteed is None else plan.guaranteed
    return Happened(seconds, received, plan.share, guaranteed, corrected=nothing)


def realigned(array: Floats, rows: Ints, columns: Ints) -> Floats:
    """Returns a copy of the array that is rearranged for new lists of accounts and generations.

    `array` is (T,) or (T, K). `rows` has, for each account of the new list, its index in the old list. `columns` has
    the same for generations. NOWHERE in these lists means that the account or generation is new. New ones get 0.
    """
    # NOWHERE is -1 and so selects the zeros that are appended at the end.
    found: Floats = np.concatenate([array, np.zeros((1, *array.shape[1:]))])[rows]
    if array.ndim == 1:
        return found
    return np.concatenate([found, np.zeros((len(found), 1))], axis=1)[:, columns]


def owed_now(situation: Situation, plan: Decision) -> Floats:
    """Returns the GPU-seconds that each account is owed of each generation, as an array (T, K).

    A negative number means that the account received more than its share. The policy makes up for the difference in
    later rounds. Some policies keep only one total for each account. The total is then split among generations in
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
    """Returns the GPUs that each leaf account holds of each generation under the plan, as an array (T, K).

    With `shared`, GPUs that a gang has only because nobody else can use them are left out: those of preemptible gangs,
    and those beyond the least size of elastic gangs. They do not count towards a share.
    """
    jobs = view.jobs
    received = np.zeros_like(plan.share)
    size = plan.gpus(jobs).astype(np.float64)
    if shared and jobs.least is not None:
        size = np.minimum(size, (jobs.least * jobs.gpus)[plan.run])
    if shared and plan.preemptible is not None:
        size[np.isin(plan.run, plan.preemptible)] = 0.0
    np.add.at(received, (jobs.account[plan.run], plan.generation), size)
    return received


def _moved(view: Snapshot, plan: Decision, seconds: float) -> Snapshot:
    """Returns the view as it is `seconds` after the plan was carried out.

    Picked gangs are on their new nodes, and all other gangs are suspended. A suspended gang remembers its last nodes,
    which it prefers later.
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
        attained[plan.run, plan.generation] += plan.gpus(jobs) * seconds
    workers = jobs.workers
    if jobs.least is not None:
        workers = jobs.least.copy()
        workers[plan.run] = np.diff(plan.place_start)
    moved = replace(
        jobs,
        workers=workers,
        running_on=running_on,
        resident=np.where(picked, np.where(stays, jobs.resident, 0.0) + seconds, 0.0),
        place_start=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        place_node=place_node,
        unwarned=None,  # because every notice is over by then
        attained=attained,
    )
    return replace(view, jobs=moved, now=view.now + seconds)
