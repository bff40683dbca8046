"""Reads a cluster's state from PostgreSQL into a snapshot: the arrays from which a policy decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import numpy as np
from django.db.models import (
    BigIntegerField,
    BooleanField,
    DateTimeField,
    DurationField,
    ExpressionWrapper,
    F,
    FloatField,
    Func,
    Q,
    Sum,
    Value,
)
from django.db.models.functions import Coalesce

from accounting.core.columns import find, read_columns, seconds
from accounting.models import Membership, Quota, Tenant, User
from accounting.models.tenants import members_among
from fairshare import model as fs
from fairshare.policies import policy_type
from fairshare.policies.base import Need
from fairshare.reasons import may_run
from fairshare.tree import Tree
from scheduling.limits.caps import RoundLimits
from scheduling.limits.trade_limits import read_trade_limits
from scheduling.models import Cluster, HeldGpu, Job, JobLabel, JobSpeed, Lease, Node, ShareBalance
from scheduling.shares.advance import latest_ends_of_sessions, read_advance

DEFAULT_TICKETS = 100.0
RATE_DIGITS = 3
# Jobs of several teams with the same value of this label run the same model, so their speeds are comparable.
MODEL_LABEL = "model"


@dataclass(frozen=True, slots=True)
class Axes:
    """The primary keys of the accounts and generations to which the rows and columns of arrays of shape (T, K)
    refer."""

    accounts: list[tuple[int, int | None]]  # (tenant, user); the user is None for the team itself
    generations: list[int]

    @classmethod
    def stored(cls, legend: Mapping[str, Any]) -> Self:
        """Returns the axes from their stored JSON form."""
        return cls([(tenant, user) for tenant, user in legend["accounts"]], legend["generations"])


@dataclass(frozen=True, slots=True)
class SnapshotIndex:
    """The primary keys of the accounts, generations, nodes and jobs to which the indices of a snapshot's arrays
    refer."""

    generations: list[int]
    nodes: list[int]
    accounts: list[tuple[int, int | None]]  # (tenant, user); the user is None for the team itself
    jobs: list[int]
    # The stored reason of each job. Not needed to interpret indices, so RoundRecord.legend leaves it out.
    reasons: fs.Ints
    limits: RoundLimits  # also left out of RoundRecord.legend

    @property
    def axes(self) -> Axes:
        return Axes(self.accounts, self.generations)

    def to_json(self) -> dict[str, Any]:
        return {
            "generations": self.generations,
            "nodes": self.nodes,
            "accounts": self.accounts,
            "jobs": self.jobs,
        }


# Stands for "no start time" or "no deadline", so that columns have no nulls.
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _JobColumns:
    """The jobs that a round considers, in order of their ids. Each attribute is an array with one value per job."""

    id: fs.Ints
    tenant: fs.Ints
    owner: fs.Ints
    workers: fs.Ints
    max_workers: fs.Ints  # of elastic jobs; 0: the job is not elastic
    gpus_per_worker: fs.Ints
    choice: fs.Ints  # hash of the list of acceptable generations
    priority: fs.Ints
    not_before: fs.Ints  # times, encoded as `read_columns` returns them
    retries: fs.Bools  # whether the job's program failed after its last start
    reason: fs.Ints
    preemptible: fs.Bools
    keeps: fs.Bools
    submitted: fs.Ints  # times, as `not_before`
    expected: fs.Floats  # seconds; NaN: unknown
    deadline: fs.Ints  # times, as `not_before`

    @classmethod
    def read(cls, cluster: Cluster) -> Self:
        in_play = [*Job.WAITING, Job.State.STARTING, Job.State.RUNNING]
        moving = Lease.objects.filter(
            cluster=cluster, state=Lease.State.RESERVED, job__state=Job.State.STOPPING
        )
        jobs = Job.objects.filter(Q(state__in=in_play) | Q(pk__in=moving.values("job")), cluster=cluster)
        columns: list[tuple[Any, str]] = [
            ("id", "i8"),
            ("tenant_id", "i8"),
            ("owner_id", "i8"),
            ("workers", "i4"),
            (Coalesce("max_workers", 0), "i4"),
            ("gpus_per_worker", "i4"),
            (Func("generation_ids", 0, function="hash_array_extended", output_field=BigIntegerField()), "i8"),
            ("priority", "i4"),
            (Coalesce("not_before", Value(LONG_AGO, DateTimeField())), "i8"),
            (ExpressionWrapper(Q(failures__gt=0, failed_starts=0), BooleanField()), "?"),
            ("reason", "i2"),
            ("preemptible", "?"),
            (ExpressionWrapper(Q(kind__in=Job.UNSLICED), BooleanField()), "?"),
            ("created_at", "i8"),
            (Coalesce("expected_seconds", Value(np.nan, FloatField())), "f8"),
            (Coalesce("deadline", Value(LONG_AGO, DateTimeField())), "i8"),
        ]
        asked, kinds = zip(*columns, strict=True)
        return cls(*read_columns(jobs.order_by("id").values_list(*asked), *kinds))

    def accounts(self) -> tuple[list[tuple[int, int]], fs.Ints]:
        """Returns the sorted list of (tenant, user) pairs that have jobs, and the index of each job's pair in this list
        (J,)."""
        tenants, tenant = np.unique(self.tenant, return_inverse=True)
        users, user = np.unique(self.owner, return_inverse=True)
        pairs, place = np.unique(tenant * len(users) + user, return_inverse=True)
        of_tenant, of_user = np.divmod(pairs, max(len(users), 1))
        return list(zip(tenants[of_tenant].tolist(), users[of_user].tolist(), strict=True)), place


def read_snapshot(
    cluster: Cluster,
    *,
    now: datetime,
    lock: bool = False,
    also: Collection[tuple[int, int]] = (),
    between: bool = False,
) -> tuple[fs.Snapshot, SnapshotIndex]:
    """Returns the snapshot from which a round at `now` decides, and the index of its arrays.

    - `lock`: whether to lock the limits until the transaction ends, so that rounds of two clusters cannot use the same
      remainder.
    - `also`: (tenant, user) pairs that get an account even if the user has no jobs.
    - `between`: True for a round between two quantum rounds. In such a round, running gangs continue even if a limit on
      GPU-hours or money is used up, or if their owner may no longer submit.

    GPUs of stopping gangs count as free. A gang that moves counts at its new place. The caller holds the cluster's
    scheduling lock.
    """
    limits = RoundLimits.read(cluster, now=now, lock=lock)
    snapshot, legend = _read_snapshot(cluster, limits, now=now, lock=lock, also=also)
    if between:
        jobs = snapshot.jobs
        goes_on = np.where(jobs.running_on == fs.NOWHERE, jobs.blocked, 0)
        snapshot = replace(snapshot, jobs=replace(jobs, blocked=goes_on))
    return within_limits(snapshot, legend, between=between), legend


def _read_snapshot(
    cluster: Cluster,
    limits: RoundLimits,
    *,
    now: datetime,
    lock: bool = False,
    also: Collection[tuple[int, int]] = (),
) -> tuple[fs.Snapshot, SnapshotIndex]:
    """Returns the snapshot before limits on usage are applied, and the index of its arrays.

    `limits` are stored in the index, to be applied later. `lock` and `also` have the same meaning as for
    `read_snapshot`.
    """
    nodes = list(Node.objects.filter(cluster=cluster).select_related("generation").order_by("id"))
    generation_names = {node.generation_id: node.generation.name for node in nodes}
    generations = sorted(generation_names)
    column = {generation: k for k, generation in enumerate(generations)}
    jobs = _JobColumns.read(cluster)
    accounts, account = _read_accounts(cluster, jobs, column, lock=lock, also=also)
    legend = SnapshotIndex(
        generations=generations,
        nodes=[node.pk for node in nodes],
        accounts=accounts.keys,
        jobs=jobs.id.tolist(),
        reasons=jobs.reason,
        limits=limits,
    )
    advance = read_advance(cluster, legend.nodes, legend.accounts, now=now)
    their_jobs = _read_jobs(cluster, jobs, account, legend, accounts=accounts, now=now)
    if advance is not None and jobs.keeps.any():
        their_jobs = replace(their_jobs, until=latest_ends_of_sessions(cluster, legend.jobs, now=now))
    snapshot = fs.Snapshot(
        cluster=_hardware(cluster, nodes, column, generation_names),
        accounts=accounts.arrays,
        jobs=their_jobs,
        settings=fs.Settings(
            quantum=cluster.effective_quantum,
            ordering=fs_ordering(cluster),
            trading=cluster.trading,
            min_hold=cluster.min_hold_seconds,
            switch_cost=cluster.switch_seconds,
        ),
        now=now.timestamp(),
        advance=advance,
    )
    return snapshot, legend


def within_limits(snapshot: fs.Snapshot, legend: SnapshotIndex, *, between: bool = False) -> fs.Snapshot:
    """Returns `snapshot` with the limits in `legend` applied.

    Accounts get maximum numbers of GPUs (caps). A gang no longer accepts a generation if its account's GPU-hours or
    money for it are nearly spent. If `between` is True (a round between quantum rounds), a running gang still accepts
    the generation on which it runs.
    """
    accounts = legend.limits.on(snapshot.accounts, legend.accounts, legend.generations)
    return _without_spent_hours(replace(snapshot, accounts=accounts), legend, between=between)


@dataclass(frozen=True, slots=True)
class Change:
    """A proposed change that is not stored: new tickets of a tenant or of a user in it, or a new limit."""

    tenant: Tenant
    tickets: int | None = None
    user: User | None = None  # the user whose tickets change; None: the tenant's own tickets change
    quota: Quota | None = None
    removed: Quota | None = None  # the stored limit to remove, or to replace by `quota`


def before_and_after(
    cluster: Cluster, change: Change, *, now: datetime
) -> tuple[fs.Snapshot, fs.Snapshot, SnapshotIndex]:
    """Returns two snapshots for a quantum round at `now`, without and with `change`, and the index of their arrays."""
    limits = RoundLimits.read(cluster, now=now)
    snapshot, legend = _read_snapshot(cluster, limits, now=now)
    before = within_limits(snapshot, legend)
    changed = replace(legend, limits=limits.changed(change.removed, change.quota))
    account = change.tenant.pk, change.user and change.user.pk
    if change.tickets is not None and account in legend.accounts:
        tickets = snapshot.accounts.tickets.copy()
        tickets[legend.accounts.index(account)] = change.tickets
        snapshot = replace(snapshot, accounts=replace(snapshot.accounts, tickets=tickets))
    return before, within_limits(snapshot, changed), legend


def fs_ordering(cluster: Cluster) -> Any:
    """Returns the cluster's ordering (stride or lottery) as a value for `fairshare`, which uses the same names."""
    return str(cluster.ordering)


def _hardware(
    cluster: Cluster, nodes: list[Node], column: Mapping[int, int], names: Mapping[int, str]
) -> fs.Cluster:
    # Gangs may continue on a node where nothing new may start (drained, closed or down).
    stays = [node.pk for node in nodes if node.state != Node.State.READY]
    held = HeldGpu.objects.filter(
        node__in=stays, lease__state__in=(Lease.State.STARTING, Lease.State.RUNNING)
    ).order_by()
    kept = Counter(held.values_list("node_id", flat=True)) if stays else Counter()
    installed = np.array([node.gpus for node in nodes], dtype=np.int64)
    hosts = [node.host or f"/{node.pk}" for node in nodes]
    machine = {host: i for i, host in enumerate(dict.fromkeys(hosts))}
    # Weights express speeds only once an operator has set them, so equal weights give no table.
    weights = {node.generation_id: float(node.generation.weight) for node in nodes}
    table = np.array([weights[generation] for generation in column])
    closed = np.array([node.pk in kept for node in nodes], dtype=bool)
    return fs.Cluster(
        generations=tuple(names[generation] for generation in column),
        node_generation=np.array([column[node.generation_id] for node in nodes], dtype=np.int64),
        capacity=np.array([kept[node.pk] or node.usable_gpus for node in nodes], dtype=np.int64),
        installed=installed,
        closed=closed if kept else None,
        table=table if len(set(weights.values())) > 1 else None,
        machine=np.array([machine[host] for host in hosts]) if len(machine) < len(nodes) else None,
    )


@dataclass(frozen=True, slots=True)
class _Accounts:
    keys: list[tuple[int, int | None]]
    arrays: fs.Accounts
    archived: Set[int]  # ids of tenants
    without_right: Set[tuple[int, int]]  # (tenant, user) pairs that may not submit


def _read_accounts(
    cluster: Cluster,
    jobs: _JobColumns,
    column: Mapping[int, int],
    *,
    lock: bool,
    also: Collection[tuple[int, int]],
) -> tuple[_Accounts, fs.Ints]:
    """Returns the tree of accounts of the jobs' owners, with tickets, and the index of each job's account in the tree
    (J,).

    In the tree, the tenants come first, parents before children. The users follow as leaves.

    - `column`: the array column of each generation id.
    - `lock`: whether to lock the trade limits until the transaction ends, so that rounds of two clusters cannot use the
      same remainder.
    - `also`: (tenant, user) pairs that get an account even if the user has no jobs.
    """
    having, place = jobs.accounts()
    with_jobs = {tenant for tenant, _ in having}
    by_id = {tenant.pk: tenant for tenant in Tenant.objects.all()}
    pairs = sorted({*having, *(pair for pair in also if pair[0] in by_id)})
    needed = {step for tenant, _ in pairs for step in by_id[tenant].lineage}
    # Parents come before their children.
    tenants = sorted((by_id[pk] for pk in needed), key=lambda tenant: tenant.path.count("/"))
    keys: list[tuple[int, int | None]] = [(tenant.pk, None) for tenant in tenants]
    index = {tenant.pk: i for i, tenant in enumerate(tenants)}
    leaf_of = {pair: len(tenants) + i for i, pair in enumerate(pairs)}
    keys += pairs
    user_tickets = {
        (tenant, user): tickets
        for tenant, user, tickets in Membership.objects.filter(tenant__in=with_jobs).values_list(
            "tenant_id", "user_id", "tickets"
        )
    }
    count, kinds = len(keys), len(column)
    parent = [index[t.parent_id] if t.parent_id else fs.NOWHERE for t in tenants]
    parent += [index[tenant] for tenant, _ in pairs]
    tickets = [float(t.tickets) for t in tenants]
    tickets += [float(user_tickets.get(pair, DEFAULT_TICKETS)) for pair in pairs]
    owed = np.zeros((count, kinds))
    balances = ShareBalance.objects.filter(cluster=cluster)
    for tenant, user, generation, amount in balances.values_list(
        "tenant_id", "user_id", "generation_id", "owed"
    ):
        leaf = leaf_of.get((tenant, user))
        if leaf is not None and generation in column:
            owed[leaf, column[generation]] = amount
    limits = read_trade_limits(cluster, index, column, count, lock=lock)
    even = set(User.objects.filter(job_order=User.JobOrder.EVEN).values_list("pk", flat=True))
    evenly = np.array([user in even for _, user in keys], dtype=bool)
    arrays = fs.Accounts(
        parent=np.array(parent, dtype=np.int64),
        tickets=np.array(tickets),
        trades=np.array([user is None and tenant in with_jobs for tenant, user in keys], dtype=bool),
        owed=owed,
        cap=np.full((count, kinds), np.inf),
        cap_total=np.full(count, np.inf),
        deals=limits.deals,
        give_most=limits.give_most,
        give_part=limits.give_part,
        evenly=evenly if evenly.any() else None,
    )
    archived = {tenant.pk for tenant in tenants if tenant.archived_at}
    account = np.array([leaf_of[pair] for pair in having], dtype=np.int64)[place]
    return _Accounts(keys, arrays, archived, set(pairs) - members_among(pairs)), account


def _read_jobs(
    cluster: Cluster,
    jobs: _JobColumns,
    account: fs.Ints,
    legend: SnapshotIndex,
    *,
    accounts: _Accounts,
    now: datetime,
) -> fs.Jobs:
    count, column = len(jobs.id), {generation: k for k, generation in enumerate(legend.generations)}
    running_on = np.full(count, fs.NOWHERE, dtype=np.int64)
    resident = np.zeros(count)
    places: dict[int, list[int]] = {}
    node_index = {node: n for n, node in enumerate(legend.nodes)}
    keeps = jobs.keeps
    unwarned, notice = keeps.copy(), timedelta(seconds=cluster.notice_seconds)
    leases = list(_places(cluster))
    for i, lease in zip(find(jobs.id, [one.job_id for one in leases]).tolist(), leases, strict=True):
        if i == fs.NOWHERE or not node_index.keys() >= set(lease.nodes):
            continue  # or it has a node added since the nodes were read, which a reader without the lock may see
        places[i] = [node_index[node] for node in lease.nodes]
        if lease.state != Lease.State.CLOSED and lease.generation_id in column:
            running_on[i] = column[lease.generation_id]
            resident[i] = (now - lease.held_from).total_seconds() if lease.held_from else 0.0
        if lease.notice_since and lease.notice_since + notice <= now:
            unwarned[i] = False
    ends = seconds(jobs.deadline)
    deadline = np.where(ends > 0, ends, np.inf)
    sizes = np.zeros(count, dtype=np.int64)
    for i, nodes in places.items():
        sizes[i] = len(nodes)
    # Also marks a gang whose owner has fixed its size, as long as it runs with another.
    resized = (running_on != fs.NOWHERE) & (sizes != jobs.workers)
    is_elastic = bool(jobs.max_workers.any() or resized.any())
    return fs.Jobs(
        account=account,
        workers=np.where(resized, sizes, jobs.workers) if is_elastic else jobs.workers,
        gpus=jobs.gpus_per_worker,
        accepts=_accepted(jobs, legend.generations),
        rate=_rates(cluster, jobs, legend.generations),
        priority=jobs.priority,
        running_on=running_on,
        resident=resident,
        blocked=_blocked(cluster, jobs, account, running_on, accounts, now=now),
        place_start=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        place_node=np.array([node for i in sorted(places) for node in places[i]], dtype=np.int64),
        preemptible=jobs.preemptible if jobs.preemptible.any() else None,
        keeps=keeps if keeps.any() else None,
        unwarned=unwarned if keeps.any() else None,
        attained=_attained(cluster, jobs, legend.generations, accounts.arrays, now=now),
        model=_models(cluster, jobs),
        submitted=seconds(jobs.submitted),
        expected=jobs.expected if np.isfinite(jobs.expected).any() else None,
        deadline=deadline if np.isfinite(deadline).any() else None,
        least=jobs.workers if is_elastic else None,
        most=np.maximum(jobs.workers, jobs.max_workers) if is_elastic else None,
    )


def _rates(cluster: Cluster, jobs: _JobColumns, generations: Sequence[int]) -> fs.Floats:
    """Returns the measured steps per second by job and generation (J, K); NaN where a job was not measured.

    Rounded to RATE_DIGITS digits, so that the terms of trades stay the same while jobs are being measured. All rates
    are NaN if neither the policy nor the shadow policy needs them.
    """
    rate = np.full((len(jobs.id), len(generations)), np.nan)
    if Need.RATES not in _needs(cluster):
        return rate
    measured = JobSpeed.objects.filter(job__cluster=cluster, job__state__in=Job.UNFINISHED, seconds__gt=0)
    job, generation, steps, lasted = read_columns(
        measured.values_list("job_id", "generation_id", "steps", "seconds"), "i8", "i8", "f8", "f8"
    )
    row, column = find(jobs.id, job), find(np.array(generations), generation)
    there = (row != fs.NOWHERE) & (column != fs.NOWHERE)
    rate[row[there], column[there]] = _rounded((steps / lasted)[there])
    return rate


def _rounded(rate: fs.Floats) -> fs.Floats:
    """Returns nonnegative rates (N,), rounded to RATE_DIGITS significant digits."""
    digits = np.floor(np.log10(rate, out=np.zeros_like(rate), where=rate > 0)) - (RATE_DIGITS - 1)
    found: fs.Floats = np.round(rate / 10.0**digits) * 10.0**digits
    return found


def _models(cluster: Cluster, jobs: _JobColumns) -> fs.Ints | None:
    """Returns, for each job (J,), an integer that stands for the value of its label `model`; -1 for a job without this
    label.

    Returns None if no job has the label.
    """
    labels = JobLabel.objects.filter(
        key=MODEL_LABEL, job__cluster=cluster, job__state__in=Job.UNFINISHED
    ).exclude(value="")
    said = list(labels.names(MODEL_LABEL, None))
    row = find(jobs.id, [job for job, _ in said])
    values = [value for (_, value), i in zip(said, row.tolist(), strict=True) if i != fs.NOWHERE]
    if not values:
        return None
    found = np.full(len(jobs.id), fs.NOWHERE, dtype=np.int64)
    found[row[row != fs.NOWHERE]] = np.unique(values, return_inverse=True)[1]
    return found


def _attained(
    cluster: Cluster,
    jobs: _JobColumns,
    generations: Sequence[int],
    accounts: fs.Accounts,
    *,
    now: datetime,
) -> fs.Floats | None:
    """Returns the GPU-seconds that each job has held so far, by job and generation (J, K).

    Some policies need the values only of jobs whose owner has chosen the job order EVEN. For these policies, other jobs
    get 0, and the result is None if no owner has chosen EVEN. With EVEN, the jobs of an owner share GPU time evenly.
    """
    leases = Lease.objects.filter(cluster=cluster, held_from__isnull=False, job__state__in=Job.UNFINISHED)
    if Need.ATTAINED not in _needs(cluster):
        if accounts.evenly is None:
            return None
        leases = leases.filter(job__owner__job_order=User.JobOrder.EVEN)
    held = Coalesce("held_until", Value(now, DateTimeField())) - F("held_from")
    gpu_time = ExpressionWrapper(F("gpus") * held, output_field=DurationField())
    sums = leases.order_by().values("job", "generation").annotate(had=Sum(gpu_time))
    rows = list(sums.values_list("job", "generation", "had"))
    found = np.zeros((len(jobs.id), len(generations)))
    row = find(jobs.id, [job for job, _, _ in rows]).tolist()
    column = find(np.array(generations), [generation for _, generation, _ in rows]).tolist()
    for i, k, (_, _, had) in zip(row, column, rows, strict=True):
        # GPU time on a generation that left the cluster counts for the first generation.
        if i != fs.NOWHERE and generations:
            found[i, max(k, 0)] += had.total_seconds()
    return found


def _needs(cluster: Cluster) -> Set[Need]:
    """Returns the inputs that the cluster's policy or its shadow policy needs."""
    beside = [] if cluster.shadow is None else [policy_type(*cluster.shadow)]
    return frozenset().union(*(one.needs for one in [policy_type(cluster.policy), *beside]))


def _accepted(jobs: _JobColumns, generations: Sequence[int]) -> fs.Bools:
    """Returns whether each job accepts each generation (J, K). Evaluates each distinct list of generations only
    once."""
    _, first, which = np.unique(jobs.choice, return_index=True, return_inverse=True)
    chosen = dict(Job.objects.filter(pk__in=jobs.id[first].tolist()).values_list("pk", "generation_ids"))
    accepts = np.array(
        [
            [not chosen[job] or generation in chosen[job] for generation in generations]
            for job in jobs.id[first].tolist()
        ],
        dtype=bool,
    )
    found: fs.Bools = accepts.reshape(len(first), len(generations))[which]
    return found


def with_candidate(snapshot: fs.Snapshot, legend: SnapshotIndex, job: Job) -> fs.Snapshot:
    """Returns the snapshot with `job` added at the end of the queue. `job` need not be stored."""
    accounts, jobs = snapshot.accounts, snapshot.jobs
    pair, keys = (job.tenant_id, job.owner_id), legend.accounts
    if pair in keys:
        leaf = keys.index(pair)
    else:
        # Tenants above the user may be new in this tree, too. The user's leaf is always the last account.
        accounts, keys = _with_leaf(accounts, legend, job.tenant, job.owner_id)
        accounts = legend.limits.on(accounts, keys, legend.generations)
        if snapshot.advance is not None:  # the team may have a reservation, and no jobs before this one
            now = datetime.fromtimestamp(snapshot.now, UTC)
            advance = read_advance(job.cluster, legend.nodes, keys, now=now)
            snapshot = replace(snapshot, advance=advance)
        leaf = len(keys) - 1
    accepts = np.array([not job.generation_ids or g in job.generation_ids for g in legend.generations])
    kinds, keeps = len(legend.generations), job.kind in Job.UNSLICED
    deadline = job.deadline.timestamp() if job.deadline else None
    jobs = fs.Jobs(
        account=np.append(jobs.account, leaf),
        workers=np.append(jobs.workers, job.workers),
        gpus=np.append(jobs.gpus, job.gpus_per_worker),
        accepts=np.vstack([jobs.accepts.reshape(-1, kinds), accepts]),
        rate=np.vstack([jobs.rate.reshape(-1, kinds), np.full(kinds, np.nan)]),
        priority=np.append(jobs.priority, job.priority),
        running_on=np.append(jobs.running_on, fs.NOWHERE),
        resident=np.append(jobs.resident, 0.0),
        blocked=np.append(jobs.blocked, 0),
        place_start=np.append(jobs.place_start, jobs.place_start[-1]),
        place_node=jobs.place_node,
        preemptible=_with_one(jobs.preemptible, jobs, job.preemptible or None, without=False),
        keeps=_with_one(jobs.keeps, jobs, keeps or None, without=False),
        unwarned=_with_one(jobs.unwarned, jobs, keeps or None, without=False),
        attained=_longer(jobs.attained, 1, 0.0),
        model=None if jobs.model is None else np.append(jobs.model, fs.NOWHERE),
        submitted=None if jobs.submitted is None else np.append(jobs.submitted, snapshot.now),
        expected=_with_one(jobs.expected, jobs, job.expected_seconds, without=np.nan),
        deadline=_with_one(jobs.deadline, jobs, deadline, without=np.inf),
        until=_with_one(jobs.until, jobs, None, without=np.inf),
        **_bounds_with(jobs, job),
    )
    return _without_spent_hours(replace(snapshot, accounts=accounts, jobs=jobs), legend, keys)


def _bounds_with(jobs: fs.Jobs, job: Job) -> dict[str, fs.Ints]:
    """Returns the least and most workers of all jobs and of `job`; nothing if none of them is elastic."""
    if jobs.most is None and job.max_workers is None:
        return {}
    least, most = (jobs.workers if known is None else known for known in (jobs.least, jobs.most))
    return {
        "least": np.append(least, job.workers),
        "most": np.append(most, job.max_workers or job.workers),
    }


def _with_one(values: Any, jobs: fs.Jobs, one: float | None, *, without: float) -> Any:
    """Returns the array `values` (J,) with the value `one` appended, so that it has J + 1 elements.

    If `values` or `one` is None, uses the default value `without` in its place. If both are None, returns None.
    """
    if values is None and one is None:
        return None
    known = np.full(len(jobs), without) if values is None else values
    return np.append(known, without if one is None else one)


def _with_leaf(
    accounts: fs.Accounts, legend: SnapshotIndex, tenant: Tenant, user_id: int
) -> tuple[fs.Accounts, list[tuple[int, int | None]]]:
    """Returns the account tree with a leaf for the user added, and the (tenant, user) keys of its accounts.

    Also adds the user's tenant and each of its ancestors, unless the tree already contains it.
    """
    keys = list(legend.accounts)
    steps = tenant.lineage
    by_id = Tenant.objects.in_bulk(steps)
    tickets = Membership.objects.filter(tenant=tenant, user=user_id).values_list("tickets", flat=True).first()
    parent = fs.NOWHERE
    added: list[tuple[int, float, bool]] = []
    for step in steps:
        if (step, None) in keys:
            parent = keys.index((step, None))
            continue
        added.append((parent, float(by_id[step].tickets), step == tenant.pk))
        parent = len(keys)
        keys.append((step, None))
    added.append((parent, float(tickets or DEFAULT_TICKETS), False))
    keys.append((tenant.pk, user_id))
    kinds = accounts.owed.shape[1]
    tree = fs.Accounts(
        parent=np.append(accounts.parent, [row[0] for row in added]),
        tickets=np.append(accounts.tickets, [row[1] for row in added]),
        trades=np.append(accounts.trades, [row[2] for row in added]),
        owed=np.vstack([accounts.owed, np.zeros((len(added), kinds))]),
        cap=np.vstack([accounts.cap, np.full((len(added), kinds), np.inf)]),
        cap_total=np.append(accounts.cap_total, np.full(len(added), np.inf)),
        # New accounts have no measured speeds, so they do not trade.
        deals=_longer(accounts.deals, len(added), True),
        give_most=_longer(accounts.give_most, len(added), np.inf),
        give_part=_longer(accounts.give_part, len(added), np.inf),
        evenly=None if accounts.evenly is None else np.append(accounts.evenly, [False] * len(added)),
    )
    return tree, keys


def _longer(table: Any, rows: int, filled: float) -> Any:
    """Returns `table` (T, K) with `rows` more rows, filled with the value `filled`; None if `table` is None."""
    if table is None:
        return None
    return np.vstack([table, np.full((rows, table.shape[1]), filled, dtype=table.dtype)])


@dataclass(frozen=True, slots=True)
class _Place:
    job_id: int
    state: str
    generation_id: int
    held_from: datetime | None
    notice_since: datetime | None
    nodes: list[int]  # the node of each worker, by rank


def _places(cluster: Cluster) -> Iterable[_Place]:
    """Returns the generation and the nodes of each gang that runs, has a reservation, or is frozen, and the state and
    times of its lease.

    For a gang that moves, these are the values of its new place.
    """
    leases: dict[int, _Place] = {}
    ranks: dict[int, dict[int, int]] = {}
    held = HeldGpu.objects.filter(lease__cluster=cluster).order_by()
    live = held.filter(lease__state__in=Lease.OPEN)
    asleep = Lease.objects.filter(cluster=cluster).of_frozen_processes()
    frozen = held.filter(lease__in=asleep.values("pk"))
    for query in (frozen, live):
        for job_id, state, generation, held_from, notice, node, rank, lease in query.values_list(
            "lease__job_id", "lease__state", "lease__generation_id", "lease__held_from", "lease__notice_since",
            "node_id", "rank", "lease_id",
        ):  # fmt: skip
            ranks.setdefault(lease, {})[rank] = node
            leases[lease] = _Place(job_id, state, generation, held_from, notice, [])
    latest: dict[int, _Place] = {}
    for lease in sorted(leases):
        place = leases[lease]
        place.nodes.extend(node for _, node in sorted(ranks[lease].items()))
        latest[place.job_id] = place
    return latest.values()


def _blocked(
    cluster: Cluster,
    jobs: _JobColumns,
    account: fs.Ints,
    running_on: fs.Ints,
    accounts: _Accounts,
    *,
    now: datetime,
) -> fs.Ints:
    """Returns, for each job (J,), the Reason why it cannot run now even if its share allows it; 0 if there is no such
    reason.

    Running jobs are blocked only if their team is archived or their owner may no longer submit.
    """
    backs_off = seconds(jobs.not_before) > now.timestamp()
    why = np.where(jobs.retries, int(fs.Reason.RETRYING), int(fs.Reason.BACKING_OFF))
    blocked = np.where(backs_off, why, 0)
    if cluster.paused_at:
        blocked = np.full(len(jobs.id), int(fs.Reason.CLUSTER_PAUSED))
    blocked = np.where(running_on == fs.NOWHERE, blocked, 0)
    without_right = np.array([key in accounts.without_right for key in accounts.keys], dtype=bool)
    blocked = np.where(without_right[account], int(fs.Reason.OWNER_MAY_NOT), blocked)
    of_archived = np.array([tenant in accounts.archived for tenant, _ in accounts.keys], dtype=bool)
    return np.where(of_archived[account], int(fs.Reason.TEAM_ARCHIVED), blocked).astype(np.int64)


def _without_spent_hours(
    snapshot: fs.Snapshot,
    legend: SnapshotIndex,
    keys: Sequence[tuple[int, int | None]] = (),
    *,
    between: bool = False,
) -> fs.Snapshot:
    """Returns a snapshot in which gangs do not accept generations on which they would use up a limit before the next
    round.

    Considers the limits on GPU-hours and money of each gang's account. A job that can then run on no generation is
    blocked with HOURS_SPENT.

    - `keys`: the (tenant, user) pairs of the accounts; empty if they are the same as in `legend`.
    - `between`: True for a round between quantum rounds, in which running gangs may continue.
    """
    jobs, tree = snapshot.jobs, Tree.of(snapshot.accounts.parent)
    caps = legend.limits.of_periods(keys or legend.accounts, legend.generations, Quota.AtLimit.BLOCK)
    least = (
        jobs.workers if jobs.least is None else jobs.least
    )  # a large elastic gang may shrink to what is left
    spent = caps.forbid(tree, jobs.account, least * jobs.gpus)
    if between:
        spent = spent & (jobs.running_on[:, None] != np.arange(len(legend.generations)))
    if not spent.any():
        return snapshot
    accepts, blocked = jobs.accepts & ~spent, jobs.blocked.copy()
    left = replace(snapshot, jobs=replace(jobs, accepts=accepts))
    _, before = may_run(snapshot, tree)
    _, after = may_run(left, tree)
    # A "never" reason would be wrong, because the limit's period ends: the job has no generation only for now.
    never = np.array([fs.Reason(int(reason)).is_never for reason in after], dtype=bool)
    holds = never & (before != after)
    accepts[holds] = jobs.accepts[holds]
    blocked[holds & (blocked == 0)] = fs.Reason.HOURS_SPENT
    return replace(snapshot, jobs=replace(jobs, accepts=accepts, blocked=blocked))
