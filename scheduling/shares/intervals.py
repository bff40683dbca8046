"""Share intervals: what each account was entitled to, received, and is owed between two successive rounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypedDict

import numpy as np
from django.db import connection
from django.db.models import Max, Q
from django.db.models.functions import Coalesce

from accounting.core.bulk import array, insert_values
from fairshare import model as fs
from fairshare.driver import Situation, owed_now
from fairshare.entitlement import entitlements
from scheduling.models import Cluster, Lease, Round, ShareBalance, ShareInterval
from scheduling.shares.share_hours import write_hours_again
from scheduling.shares.situations import Lasted, forget
from scheduling.shares.snapshot import Axes, SnapshotIndex
from scheduling.shares.trades import end_trades

# A lease that was not observed for longer than this counts only up to its last observation, until its end is known.
SILENCE_SECONDS = 30.0


class ShareRate(TypedDict):
    """The share of a tenant in one generation from one round to the next, in GPUs. ShareInterval explains the
    fields."""

    tenant: int
    generation: int
    entitled: float
    lent: float
    unused: float
    borrowed: float
    bought: float
    sold: float


def describe_shares(snapshot: fs.Snapshot, decision: fs.Decision, legend: Axes) -> list[Any]:
    """Returns a ShareRate for each tenant with jobs and each generation, for storing in Round.shares.

    Counts only the tenant's own users, not the tenants below it. GPUs to which a tenant is entitled but that it does
    not use are divided into `lent` and `unused`. All tenants lend the same fraction: if half of all such GPUs of a
    generation are borrowed, half of each tenant's count as `lent`.
    """
    bought, sold = np.zeros_like(decision.share), np.zeros_like(decision.share)
    for trade in decision.trades:
        bought[trade.buyer, trade.fast] += trade.fast_gpus
        sold[trade.buyer, trade.slow] += trade.slow_gpus
        bought[trade.seller, trade.slow] += trade.slow_gpus
        sold[trade.seller, trade.fast] += trade.fast_gpus
    all_entitled, share = (_own(gpus, snapshot, legend) for gpus in (entitlements(snapshot), decision.share))
    before_trades = np.maximum(share - bought + sold, 0.0)
    teams = np.flatnonzero(snapshot.accounts.trades)
    left = np.maximum(all_entitled - before_trades, 0.0)
    borrowed = np.maximum(before_trades - all_entitled, 0.0)
    lent = left * _part_in_use(left[teams].sum(axis=0), borrowed[teams].sum(axis=0))
    return [
        ShareRate(
            tenant=legend.accounts[t][0],
            generation=generation,
            entitled=float(all_entitled[t, k]),
            lent=float(lent[t, k]),
            unused=float(left[t, k] - lent[t, k]),
            borrowed=float(borrowed[t, k]),
            bought=float(bought[t, k]),
            sold=float(sold[t, k]),
        )
        for t in teams
        for k, generation in enumerate(legend.generations)
    ]


def _part_in_use(left: fs.Floats, borrowed: fs.Floats) -> fs.Floats:
    """Returns, for each generation (K,), the fraction from 0 to 1 of unused entitlement that other tenants borrow.

    `left` (K,): the GPUs to which tenants are entitled but that they do not use. `borrowed` (K,): the GPUs that tenants
    use beyond their entitlement.
    """
    part: fs.Floats = np.divide(borrowed, left, out=np.zeros_like(left), where=left > 0)
    return np.minimum(part, 1.0)  # rounding may make `borrowed` slightly larger than `left`


def _own(amount: fs.Floats, snapshot: fs.Snapshot, legend: Axes) -> fs.Floats:
    """Returns the amounts (T, K) of accounts without those of their child tenants.

    `amount` (T, K): the amounts, in which a tenant includes its child tenants. Subtracting may give values slightly
    below 0 because of rounding; these become 0.
    """
    own = amount.copy()
    for t, (_, user) in enumerate(legend.accounts):
        above = int(snapshot.accounts.parent[t])
        if user is None and above != fs.NOWHERE:
            own[above] -= amount[t]
    without_noise: fs.Floats = np.maximum(own, 0.0)
    return without_noise


def save_shares(
    cluster: Cluster, situation: Situation, decision: fs.Decision, legend: SnapshotIndex, *, corrected: bool
) -> None:
    """Stores each user's share, which applies until the next round, and the GPU-seconds that the user is owed.

    If `corrected` is True, the policy has applied the stored corrections of earlier rounds, and they are reset to 0.
    """
    owed = owed_now(situation, decision)
    places = [
        (t, k)
        for t, (_, user) in enumerate(legend.accounts)
        if user is not None
        for k in range(len(legend.generations))
    ]
    keys = [array(legend.accounts[t][i] for t, _ in places) for i in (0, 1)]
    keys.append(array(legend.generations[k] for _, k in places))
    amounts = [array(float(of[place]) for place in places) for of in (owed, decision.share)]
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE scheduling_sharebalance SET share = 0, owed = 0, corrected = 0
             WHERE cluster_id = %s AND (share, owed, corrected) <> (0, 0, 0)
               AND (tenant_id, user_id, generation_id) NOT IN
                   (SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]))
            """,
            [cluster.pk, *keys],
        )
        cursor.execute(
            """
            INSERT INTO scheduling_sharebalance AS old
                   (cluster_id, tenant_id, user_id, generation_id, owed, share)
            SELECT %s, new.tenant, new.person, new.generation, new.owed, new.share
              FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::float8[], %s::float8[])
                AS new (tenant, person, generation, owed, share)
            ON CONFLICT (cluster_id, tenant_id, user_id, generation_id) DO UPDATE
               SET owed = excluded.owed, share = excluded.share,
                   corrected = CASE WHEN %s THEN 0 ELSE old.corrected END
            """,
            [cluster.pk, *keys, *amounts, corrected],
        )


def settle_shares(cluster: Cluster, *, since: datetime | None, now: datetime) -> Lasted | None:
    """Writes the share intervals from the last round, which was at the time `since`, to `now`. Returns the GPU time
    that accounts held in that time.

    If Fairlot was down in between, the intervals and all trades end earlier (see `_in_force_until`). If `since` is
    None, or if `now` is not after it because the clock was set back, writes no intervals, ends all trades, and returns
    None.
    """
    last = Round.objects.filter(cluster=cluster, number=cluster.round_number).first()
    if since is None or now <= since:
        if last is not None:  # the clock was set back, so the length of the interval is unknown
            end_trades(cluster, ends=last.at)
        return None
    received = _received(cluster, since, now)
    if last is not None and not last.intervals.exists():
        ends = _in_force_until(cluster, last, now)
        if ends > last.at:
            _close_interval(cluster, last, received, since=last.at, now=ends)
        if ends < now:
            end_trades(cluster, ends=ends)
    return Lasted((now - since).total_seconds(), received)


def end_shares(cluster: Cluster, *, since: datetime | None, now: datetime) -> None:
    """Ends the shares and trades of the last round, for a cluster without jobs or without further rounds.

    `since` is the time of the last round. Also deletes the policy's state, and resets the shares and owed GPU time of
    all users of the cluster to 0.
    """
    settle_shares(cluster, since=since, now=now)
    end_trades(cluster, ends=now)
    # Accounts earn no credit while there are no rounds: the next round treats all accounts as new.
    forget(cluster)
    ShareBalance.objects.filter(cluster=cluster).update(share=0.0, owed=0.0, corrected=0.0)


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """A lease that was just observed or closed, with `last_seen_at`, the time of its previous observation."""

    lease: Lease
    last_seen_at: datetime | None

    @property
    def known_until(self) -> datetime | None:
        """Returns the time until which the lease is known to have held its GPUs.

        This is the lease's end or, for an open lease, its last observation.
        """
        return self.lease.held_until or self.lease.last_seen_at


def correct_rounds(cluster: Cluster, heard: Iterable[ObservedLease]) -> None:
    """Corrects owed GPU time and share intervals of earlier rounds after leases were observed or closed.

    Earlier rounds may have counted time after the end of a lease, or missed time in which a lease was not observed. The
    caller has saved the leases and holds the cluster's scheduling lock.
    """
    last = cluster.last_round_at
    if last is None:
        return
    told = [
        (one, begins, known)
        for one in heard
        if (begins := one.lease.held_from) and (known := one.known_until)
    ]
    counts = _counted_until(cluster, [one.last_seen_at for one, _, _ in told], last)
    # (lease, from, until, sign): counted too much (1) or too little (-1)
    wrong: list[tuple[int, datetime, datetime, int]] = []
    for (one, begins, known), counted in zip(told, counts, strict=True):
        if one.lease.held_until is not None and max(known, begins) < counted:
            wrong.append((one.lease.pk, max(known, begins), counted, 1))
        elif max(counted, begins) < min(known, last):
            wrong.append((one.lease.pk, max(counted, begins), min(known, last), -1))
    if not wrong:
        return
    columns = [[row[i] for row in wrong] for i in range(4)]
    with connection.cursor() as cursor:
        for statement in (CORRECT_BALANCES, CORRECT_INTERVALS):
            cursor.execute(statement, columns)
    write_hours_again(cluster.pk, since=min(begins for _, begins, _, _ in wrong), until=last)


def _counted_until(cluster: Cluster, seen: Sequence[datetime | None], last: datetime) -> list[datetime]:
    """Returns, for each lease, the time up to which rounds have counted its GPU time.

    - `seen`: the time of the last observation of each lease; None if there was none.
    - `last`: the time of the last round.

    Rounds that are more than SILENCE_SECONDS after the last observation of a lease count nothing more of the lease. So
    the result is one of these times:

    - The last round that was at most SILENCE_SECONDS after the observation.
    - If there was no such round, the observation.
    - If the lease was never observed, `last`.
    """
    silence = timedelta(seconds=SILENCE_SECONDS)
    silent = sorted({at for at in seen if at is not None and last - at > silence})
    counted: dict[datetime | None, datetime] = {}
    if silent:
        with connection.cursor() as cursor:
            cursor.execute(
                """
                SELECT seen, coalesce((
                           SELECT max(at) FROM scheduling_round
                            WHERE cluster_id = %s AND at > seen AND at <= seen + %s * interval '1 second'), seen)
                  FROM unnest(%s::timestamptz[]) AS heard (seen)
                """,
                [cluster.pk, SILENCE_SECONDS, silent],
            )
            counted = dict(cursor.fetchall())
    return [counted.get(at, last) for at in seen]


# The GPUs of a lease that count as received: those that an elastic gang has beyond its least size, nobody else wanted.
_SHARED = """CASE WHEN job.max_workers IS NULL THEN lease.gpus
                  ELSE least(lease.gpus, job.workers * job.gpus_per_worker) END"""
_OVER = f"""
    SELECT over.lease, job.tenant_id, job.owner_id, lease.cluster_id, lease.generation_id, {_SHARED} AS gpus,
           over.ended, over.counted, over.sign
      FROM unnest(%s::bigint[], %s::timestamptz[], %s::timestamptz[], %s::int[])
        AS over (lease, ended, counted, sign)
      JOIN scheduling_lease AS lease ON lease.id = over.lease
      JOIN scheduling_job AS job ON job.id = lease.job_id
"""  # noqa: S608 - of constants
# Rounds did not count preemptible time. PostgreSQL may evaluate this expression for rows that it filters out later and
# whose end precedes their beginning; `greatest` then gives an empty range instead of an error.
_PREEMPTIBLE = """
    SELECT coalesce(sum(extract(epoch FROM least({ends}, upper(during)) - greatest({begins}, lower(during)))), 0)
      FROM scheduling_preemptibletime
     WHERE lease_id = over.lease AND during && tstzrange({begins}, greatest({begins}, {ends}))
"""
CORRECT_BALANCES = f"""
    UPDATE scheduling_sharebalance AS balance
       SET owed = balance.owed + back.seconds, corrected = balance.corrected + back.seconds
      FROM (SELECT tenant_id, owner_id, cluster_id, generation_id,
                   sum(sign * gpus * (extract(epoch FROM counted - ended) - idle.seconds))::float8 AS seconds
              FROM ({_OVER}) AS over,
                   LATERAL ({_PREEMPTIBLE.format(begins="ended", ends="counted")}) AS idle (seconds)
             GROUP BY 1, 2, 3, 4) AS back
     WHERE (balance.tenant_id, balance.user_id, balance.cluster_id, balance.generation_id)
         = (back.tenant_id, back.owner_id, back.cluster_id, back.generation_id) AND balance.share > 0
"""  # noqa: S608 - of constants
_BEGINS, _ENDS = "greatest(past.begins, over.ended)", "least(past.ends, over.counted)"
CORRECT_INTERVALS = f"""
    UPDATE scheduling_shareinterval AS closed SET received = greatest(closed.received - back.seconds, 0)
      FROM (SELECT past.id,
                   sum(over.sign * over.gpus * (extract(epoch FROM {_ENDS} - {_BEGINS}) - idle.seconds))::float8
                       AS seconds
              FROM ({_OVER}) AS over JOIN scheduling_shareinterval AS past
                ON past.cluster_id = over.cluster_id AND past.tenant_id = over.tenant_id
               AND past.generation_id = over.generation_id
               AND past.begins < over.counted AND past.ends > over.ended,
                   LATERAL ({_PREEMPTIBLE.format(begins=_BEGINS, ends=_ENDS)}) AS idle (seconds)
             GROUP BY past.id) AS back
     WHERE closed.id = back.id
"""  # noqa: S608 - of constants


def _in_force_until(cluster: Cluster, last: Round, now: datetime) -> datetime:
    """Returns the time until which the last round's decision applied. This is `now`, unless Fairlot was down in
    between.

    Fairlot counts as down if the last round is more than two quanta plus SILENCE_SECONDS ago. The decision then applied
    for one quantum, or longer if gangs are known to have held GPUs for longer.
    """
    quantum = timedelta(seconds=cluster.effective_quantum)
    if now - last.at <= 2 * quantum + timedelta(seconds=SILENCE_SECONDS):
        return now
    leases = Lease.objects.filter(cluster=cluster).exclude(state=Lease.State.RESERVED)
    known = leases.filter(Q(state__in=Lease.HOLDING) | Q(held_until__gt=last.at)).aggregate(
        at=Max(Coalesce("held_until", "last_seen_at"))
    )["at"]
    until: datetime = max(filter(None, [last.at + quantum, known]))
    return min(now, until)


def _received(cluster: Cluster, since: datetime, now: datetime) -> dict[tuple[int, int, int], float]:
    """Returns the GPU-seconds that leases held from `since` to `now`, as observed so far, by (tenant, user,
    generation).

    Leaves out GPUs that gangs hold only because nobody else wants them: preemptible time, and workers of elastic gangs
    beyond their least size. Such GPUs are not part of a share.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            SELECT job.tenant_id, job.owner_id, lease.generation_id,
                   sum({_SHARED} * (extract(epoch FROM
                       greatest(upper - greatest(lease.held_from, %(since)s), interval '0')) - idle.seconds))::float
            FROM scheduling_lease lease JOIN scheduling_job job ON job.id = lease.job_id,
            LATERAL (SELECT least(%(now)s, CASE
                WHEN lease.state = 'closed' THEN lease.held_until
                WHEN lease.last_seen_at < %(now)s - %(silence)s * interval '1 second' THEN lease.last_seen_at
                ELSE %(now)s END) AS upper) AS until,
            LATERAL (SELECT coalesce(sum(extract(epoch FROM greatest(interval '0',
                         least(upper, upper(during)) - greatest(lease.held_from, %(since)s, lower(during))))), 0)
                FROM scheduling_preemptibletime WHERE lease_id = lease.id) AS idle (seconds)
            WHERE lease.cluster_id = %(cluster)s
              AND lease.held_from < %(now)s
              AND (lease.state IN ('starting', 'running', 'stopping') OR lease.held_until > %(since)s)
            GROUP BY 1, 2, 3
            """,  # noqa: S608 - of constants
            {"cluster": cluster.pk, "since": since, "now": now, "silence": SILENCE_SECONDS},
        )
        return {
            (tenant, user, generation): seconds for tenant, user, generation, seconds in cursor.fetchall()
        }


def _close_interval(
    cluster: Cluster,
    last: Round,
    received: dict[tuple[int, int, int], float],
    *,
    since: datetime,
    now: datetime,
) -> None:
    by_tenant: dict[tuple[int, int], float] = {}
    for (tenant, _, generation), seconds in received.items():
        by_tenant[tenant, generation] = by_tenant.get((tenant, generation), 0.0) + seconds
    names = ["entitled", "lent", "unused", "borrowed", "bought", "sold"]
    rates = {(rate["tenant"], rate["generation"]): rate for rate in last.shares}
    seconds = (now - since).total_seconds()
    insert_values(
        ShareInterval,
        ["cluster", "round", "tenant", "generation", "begins", "ends", "received", *names],
        (
            [cluster.pk, last.pk, *key, since, now, by_tenant.get(key, 0.0)]
            + [rates.get(key, {}).get(name, 0.0) * seconds for name in names]
            for key in rates.keys() | by_tenant.keys()
        ),
    )
    write_hours_again(
        cluster.pk, since=since, until=now
    )  # hours after `since` are summed already only if the clock was set back
