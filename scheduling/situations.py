"""What the policy of a cluster remembers: kept by account and generation from one round to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np

from fairshare import codec
from fairshare import model as fs
from fairshare.driver import Situation, realigned
from fairshare.policies import policy_named, policy_of, policy_type
from fairshare.policies.base import Happened, Policy
from scheduling.models import Cluster, PolicyState, Round, ShareBalance
from scheduling.snapshot import Legend


@dataclass(frozen=True, slots=True)
class Lasted:
    """What accounts held since the last round: GPU-seconds per (tenant, user, generation)."""

    seconds: float
    received: Mapping[tuple[int, int, int], float]

    @property
    def users(self) -> set[tuple[int, int]]:
        """(tenant, user) who held any."""
        return {(tenant, user) for tenant, user, _ in self.received}


def policy_of_cluster(cluster: Cluster) -> Policy:
    """The newest version of the policy that the cluster's settings name, with the options that they have."""
    known = {one.name for one in fields(policy_type(cluster.policy).options_type)}
    given = {"draw": str(cluster.draw), "trading": cluster.trading} | cluster.policy_options
    # What a former version had and this one has not is no obstacle.
    return policy_named(
        cluster.policy, options={name: value for name, value in given.items() if name in known}
    )


def options_as_json(policy: Policy) -> dict[str, Any]:
    return asdict(policy.options)


@dataclass(frozen=True, slots=True)
class Memory:
    """A stored PolicyState, read."""

    policy: tuple[str, int]
    accounts: Sequence[tuple[int, int | None]]
    generations: Sequence[int]
    state: Mapping[str, fs.Floats]
    plan: Mapping[str, fs.Floats]

    @classmethod
    def read(cls, cluster: Cluster) -> Self | None:
        row = PolicyState.objects.filter(cluster=cluster).first()
        if row is None:
            return None
        return cls(
            policy=(row.policy, row.version),
            accounts=[(tenant, user) for tenant, user in row.accounts],
            generations=row.generations,
            state=codec.decode_state(bytes(row.state)),
            plan=codec.decode_state(bytes(row.plan)),
        )

    @property
    def users(self) -> set[tuple[int, int]]:
        """(tenant, user) who had a share, which is still to be counted."""
        has = np.any(self.plan["share"] > 0, axis=1)
        return {
            (tenant, user)
            for (tenant, user), shares in zip(self.accounts, has, strict=True)
            if user is not None and shares
        }

    def aligned(
        self, arrays: Mapping[str, fs.Floats], view: fs.Snapshot, legend: Legend
    ) -> dict[str, fs.Floats]:
        """The arrays in the order of the view's accounts and generations, of which the legend tells.

        Accounts that the view has beyond the legend are new.
        """
        row = {account: i for i, account in enumerate(self.accounts)}
        column = {generation: k for k, generation in enumerate(self.generations)}
        rows = np.full(len(view.accounts.parent), fs.NOWHERE, dtype=np.int64)
        rows[: len(legend.accounts)] = [row.get(account, fs.NOWHERE) for account in legend.accounts]
        columns = np.array([column.get(k, fs.NOWHERE) for k in legend.generations], dtype=np.int64)
        return {name: realigned(array, rows, columns) for name, array in arrays.items()}


def situation_now(cluster: Cluster, view: fs.Snapshot, legend: Legend) -> Situation:
    """How the cluster's policy sees it, with what it remembered at the last round."""
    return _as_remembered(cluster, view, legend, Memory.read(cluster))


def _as_remembered(cluster: Cluster, view: fs.Snapshot, legend: Legend, memory: Memory | None) -> Situation:
    policy = policy_of_cluster(cluster)
    if memory is None or memory.policy != (policy.name, policy.version):
        return Situation.first(policy, view)
    return Situation(policy, view, memory.aligned(memory.state, view, legend))


def situation_of_round(
    cluster: Cluster, view: fs.Snapshot, legend: Legend, *, memory: Memory | None, lasted: Lasted | None
) -> Situation:
    """How the cluster's policy sees it when it was told what happened since the last round."""
    now = _as_remembered(cluster, view, legend, memory)
    if memory is None or lasted is None:
        return now
    known = memory.policy == (now.policy.name, now.policy.version)
    plan = memory.aligned(memory.plan, view, legend)
    happened = Happened(
        seconds=lasted.seconds,
        received=_by_leaf(lasted.received, legend),
        share=plan["share"],
        guaranteed=plan["guaranteed"],
        # What a policy begins with is corrected already.
        corrected=_by_leaf(_corrections(cluster) if known else {}, legend),
    )
    return Situation(now.policy, view, now.policy.observe(now.state, happened, view))


def situation_of_record(round_: Round) -> Situation:
    """What the policy of a round saw and remembered when it decided; of any round whose record is kept."""
    record = round_.record
    view = codec.decode_snapshot(bytes(record.snapshot))
    if round_.policy_options is None:
        policy = policy_of(view.settings, round_.policy, round_.policy_version)
    else:
        policy = policy_named(round_.policy, round_.policy_version, round_.policy_options)
    if record.state is None:
        return Situation.first(policy, view)
    return Situation(policy, view, codec.decode_state(bytes(record.state)))


def remember(cluster: Cluster, situation: Situation, plan: fs.Decision, legend: Legend) -> None:
    """Keeps what the policy remembers and what it decided until the next round."""
    nothing = np.zeros_like(plan.share)
    guaranteed = nothing if plan.guaranteed is None else plan.guaranteed
    PolicyState.objects.update_or_create(
        cluster=cluster,
        defaults={
            "policy": situation.policy.name,
            "version": situation.policy.version,
            "accounts": legend.accounts,
            "generations": legend.generations,
            "state": codec.encode_state(situation.state),
            "plan": codec.encode_state({"share": plan.share, "guaranteed": guaranteed}),
        },
    )


def forget(cluster: Cluster) -> None:
    """Lets the next round begin as if it were the first."""
    PolicyState.objects.filter(cluster=cluster).delete()


def _corrections(cluster: Cluster) -> dict[tuple[int, int, int], float]:
    rows = ShareBalance.objects.filter(cluster=cluster).exclude(corrected=0)
    return {
        (tenant, user, generation): amount
        for tenant, user, generation, amount in rows.values_list(
            "tenant_id", "user_id", "generation_id", "corrected"
        )
    }


def _by_leaf(amounts: Mapping[tuple[int, int, int], float], legend: Legend) -> fs.Floats:
    """(T, K)"""
    row = {account: t for t, account in enumerate(legend.accounts)}
    column = {generation: k for k, generation in enumerate(legend.generations)}
    found = np.zeros((len(row), len(column)))
    for (tenant, user, generation), amount in amounts.items():
        if (tenant, user) in row and generation in column:
            found[row[tenant, user], column[generation]] = amount
    return found
