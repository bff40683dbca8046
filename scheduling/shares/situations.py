"""Stores a policy's state between rounds, and builds the Situation that the policy decides from.

A Situation consists of the policy, the snapshot and the policy's state. States are stored by account and generation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np

from fairshare import codec
from fairshare import model as fs
from fairshare.driver import Situation, realigned
from fairshare.policies import policy_named, policy_of, policy_type
from fairshare.policies.base import Happened, Need, Policy
from scheduling.models import Cluster, PolicyState, Round, ShadowRound, ShareBalance
from scheduling.shares.snapshot import Axes

# Policy options that are fields of Cluster for historical reasons.
OWN_SETTINGS = frozenset({"ordering", "trading"})


@dataclass(frozen=True, slots=True)
class Lasted:
    """The time since the last round, and the GPU time that accounts held since then.

    - `seconds`: the length of this time.
    - `received`: the GPU-seconds that each account held in this time. The keys are (tenant, user, generation).
    """

    seconds: float
    received: Mapping[tuple[int, int, int], float]

    @property
    def users(self) -> set[tuple[int, int]]:
        """Returns the (tenant, user) pairs that held GPUs."""
        return {(tenant, user) for tenant, user, _ in self.received}


def policy_of_cluster(cluster: Cluster) -> Policy:
    """Returns the cluster's policy in its newest version, with the cluster's options."""
    return _with_settings(cluster, cluster.policy, None, cluster.policy_options)


def some_cluster_lets_jobs_take_turns() -> bool:
    """Returns whether at least one cluster has a policy that supports the job order EVEN. With EVEN, the jobs of an
    owner share GPU time evenly."""
    in_use = Cluster.objects.order_by().values_list("policy", flat=True).distinct()
    return any(Need.OWN_ORDER in policy_type(name).needs for name in in_use)


def shadow_of_cluster(cluster: Cluster) -> Policy | None:
    """Returns the cluster's shadow policy; None if the cluster has none.

    The shadow policy gets the cluster's ordering and trading settings. If it is another version of the cluster's own
    policy, it also gets that policy's options. Options that the shadow policy does not know are left out.
    """
    if cluster.shadow is None:
        return None
    name, version = cluster.shadow
    options = cluster.policy_options if name == cluster.policy else {}
    return _with_settings(cluster, name, version, options)


def policy_for(cluster: Cluster, name: str, options: Mapping[str, object]) -> Policy:
    """Returns the newest version of the policy named `name`, with `options` and with the cluster's settings for
    ordering and trading."""
    return _with_settings(cluster, name, None, options)


def _with_settings(cluster: Cluster, name: str, version: int | None, options: Mapping[str, object]) -> Policy:
    known = {one.name for one in fields(policy_type(name, version).options_type)}
    given = {one: getattr(cluster, one) for one in OWN_SETTINGS} | dict(options)
    # Ignores options that this version of the policy does not have.
    return policy_named(name, version, {one: value for one, value in given.items() if one in known})


def options_as_json(policy: Policy) -> dict[str, Any]:
    return asdict(policy.options)


@dataclass(frozen=True, slots=True)
class Memory:
    """The state and the plan (shares and guarantees) of a policy after a round, decoded from a PolicyState or
    ShadowRound."""

    policy: tuple[str, int]
    axes: Axes
    state: Mapping[str, fs.Floats]
    plan: Mapping[str, fs.Floats]

    @classmethod
    def read(cls, cluster: Cluster) -> Self | None:
        row = PolicyState.objects.filter(cluster=cluster).first()
        if row is None:
            return None
        return cls.of(row, Axes.stored({"accounts": row.accounts, "generations": row.generations}))

    @classmethod
    def of(cls, row: PolicyState | ShadowRound, axes: Axes) -> Self:
        return cls(
            policy=(row.policy, row.version),
            axes=axes,
            state=codec.decode_state(bytes(row.state)),
            plan=codec.decode_state(bytes(row.plan)),
        )

    @property
    def users(self) -> set[tuple[int, int]]:
        """Returns the (tenant, user) pairs to which the policy's plan gave a share."""
        has = np.any(self.plan["share"] > 0, axis=1)
        return {
            (tenant, user)
            for (tenant, user), shares in zip(self.axes.accounts, has, strict=True)
            if user is not None and shares
        }

    def aligned(self, arrays: Mapping[str, fs.Floats], view: fs.Snapshot, axes: Axes) -> dict[str, fs.Floats]:
        """Returns stored arrays, rearranged for the accounts and generations of the snapshot `view`.

        - `arrays`: the policy's state or plan, by account (T,) or by account and generation (T, K), in the stored
          order.
        - `axes`: the primary keys of the accounts and generations of `view`.

        In the result, accounts and generations that `arrays` do not contain get 0.
        """
        row = {account: i for i, account in enumerate(self.axes.accounts)}
        column = {generation: k for k, generation in enumerate(self.axes.generations)}
        rows = np.full(len(view.accounts.parent), fs.NOWHERE, dtype=np.int64)
        rows[: len(axes.accounts)] = [row.get(account, fs.NOWHERE) for account in axes.accounts]
        columns = np.array([column.get(k, fs.NOWHERE) for k in axes.generations], dtype=np.int64)
        return {name: realigned(array, rows, columns) for name, array in arrays.items()}


def situation_now(cluster: Cluster, view: fs.Snapshot, axes: Axes) -> Situation:
    """Returns the present situation of the cluster's policy: the snapshot `view`, and the policy's state after the last
    round."""
    return _as_remembered(policy_of_cluster(cluster), view, axes, Memory.read(cluster))


def _as_remembered(policy: Policy, view: fs.Snapshot, axes: Axes, memory: Memory | None) -> Situation:
    if memory is None or memory.policy != (policy.name, policy.version):
        return Situation.first(policy, view)
    return Situation(policy, view, memory.aligned(memory.state, view, axes))


def situation_of_round(
    cluster: Cluster, view: fs.Snapshot, axes: Axes, *, memory: Memory | None, lasted: Lasted | None
) -> tuple[Situation, Happened | None]:
    """Returns the situation in which the cluster's policy decides a round, and what happened since the last round.

    - `memory`: the policy's stored state and plan; None if none is stored.
    - `lasted`: the time since the last round, with the GPU-seconds that accounts held in this time; None if unknown.

    If `memory` or `lasted` is None, the second element of the result is also None.
    """
    now = _as_remembered(policy_of_cluster(cluster), view, axes, memory)
    if memory is None or lasted is None:
        return now, None
    known = memory.policy == (now.policy.name, now.policy.version)
    happened = Happened(
        seconds=lasted.seconds,
        received=_by_leaf(lasted.received, axes),
        # A policy's first state contains the corrections already.
        corrected=_by_leaf(_corrections(cluster) if known else {}, axes),
        **memory.aligned(memory.plan, view, axes),
    )
    return Situation(now.policy, view, now.policy.observe(now.state, happened, view)), happened


def situation_of_record(round_: Round) -> Situation:
    """Returns the situation (policy, snapshot and state) from which a recorded round was decided."""
    record = round_.record
    view = codec.decode_snapshot(bytes(record.snapshot))
    if round_.policy_options is None:
        policy = policy_of(view.settings, round_.policy, round_.policy_version)
    else:
        policy = policy_named(round_.policy, round_.policy_version, round_.policy_options)
    if record.state is None:
        return Situation.first(policy, view)
    return Situation(policy, view, codec.decode_state(bytes(record.state)))


def situation_of_shadow(policy: Policy, round_: Round, memory: Memory | None) -> Situation:
    """Returns the situation in which `policy`, a shadow policy, decides a recorded round.

    First lets the policy observe what happened before the round. `memory` is the policy's state and plan after the
    preceding round; None if the policy did not decide that round.
    """
    record = round_.record
    view, axes = codec.decode_snapshot(bytes(record.snapshot)), Axes.stored(record.legend)
    now = _as_remembered(policy, view, axes, memory if record.happened else None)
    if memory is None or record.happened is None:  # nobody had jobs before, or the policy was not asked
        return now
    told = codec.decode_state(bytes(record.happened))
    happened = Happened(
        seconds=float(told["seconds"]),
        received=told["received"],
        corrected=told["corrected"],
        **memory.aligned(memory.plan, view, axes),
    )
    return Situation(policy, view, policy.observe(now.state, happened, view))


def happened_as_bytes(happened: Happened | None) -> bytes | None:
    """Returns those parts of `happened` that are the same for every policy, encoded; None if `happened` is None.

    These are the length of the time since the last round (`seconds`), the GPU-seconds that accounts held in this time
    (`received`), and corrections of earlier rounds (`corrected`).
    """
    if happened is None:
        return None
    return codec.encode_state(
        {
            "seconds": np.array(happened.seconds),
            "received": happened.received,
            "corrected": happened.corrected,
        }
    )


def remember(cluster: Cluster, situation: Situation, plan: fs.Decision, axes: Axes) -> None:
    """Stores the policy's state and plan, so that the next round can read them."""
    PolicyState.objects.update_or_create(
        cluster=cluster,
        defaults={
            "policy": situation.policy.name,
            "version": situation.policy.version,
            "accounts": axes.accounts,
            "generations": axes.generations,
            "state": codec.encode_state(situation.state),
            "plan": plan_as_bytes(plan),
        },
    )


def plan_as_bytes(plan: fs.Decision) -> bytes:
    """Returns the shares and guarantees of a decision, encoded. The next round passes them to the policy."""
    guaranteed = np.zeros_like(plan.share) if plan.guaranteed is None else plan.guaranteed
    return codec.encode_state({"share": plan.share, "guaranteed": guaranteed})


def forget(cluster: Cluster) -> None:
    """Deletes the stored state of the cluster's policy, so that the policy begins again with its initial state in the
    next round."""
    PolicyState.objects.filter(cluster=cluster).delete()


def _corrections(cluster: Cluster) -> dict[tuple[int, int, int], float]:
    rows = ShareBalance.objects.filter(cluster=cluster).exclude(corrected=0)
    return {
        (tenant, user, generation): amount
        for tenant, user, generation, amount in rows.values_list(
            "tenant_id", "user_id", "generation_id", "corrected"
        )
    }


def _by_leaf(amounts: Mapping[tuple[int, int, int], float], axes: Axes) -> fs.Floats:
    """Returns amounts as an array by account and generation (T, K). The keys of `amounts` are (tenant, user,
    generation).

    Leaves out amounts of accounts and generations that are not in `axes`.
    """
    row = {account: t for t, account in enumerate(axes.accounts)}
    column = {generation: k for k, generation in enumerate(axes.generations)}
    found = np.zeros((len(row), len(column)))
    for (tenant, user, generation), amount in amounts.items():
        if (tenant, user) in row and generation in column:
            found[row[tenant, user], column[generation]] = amount
    return found
