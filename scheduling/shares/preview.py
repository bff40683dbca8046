"""Previews how present shares would change with other tickets, another limit or another policy. Stores nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from accounting.core.clock import now_from_database
from accounting.core.name_order import by_name, name_key
from accounting.models import Generation, Tenant, User
from fairshare.entitlement import entitlements
from scheduling.models import Cluster
from scheduling.shares.situations import policy_for, policy_of_cluster
from scheduling.shares.snapshot import Change, before_and_after, read_snapshot


@dataclass(frozen=True, slots=True)
class ShareChange:
    """How a change affects the GPUs that a tenant or a user gets, for one generation on one cluster.

    `entitled` and `share` are pairs: the number of GPUs before the change, and the number after it. `entitled` follows
    from tickets; `share` also contains GPUs that others do not use, within limits. Trades are not counted. The numbers
    of a tenant include its subtree.
    """

    cluster: str
    tenant: Tenant
    user: User | None
    generation: str
    entitled: tuple[float, float]
    share: tuple[float, float]

    @property
    def changes(self) -> bool:
        return any(abs(after - before) > 0.005 for before, after in (self.entitled, self.share))


def preview_policy(cluster: Cluster, policy: str, options: Mapping[str, object]) -> list[ShareChange]:
    """Returns the present shares of each tenant with jobs, before and after changing the policy to `policy` with
    `options`."""
    snapshot, legend = read_snapshot(cluster, now=now_from_database())
    entitled = entitlements(snapshot)
    share = policy_of_cluster(cluster).divide(snapshot)
    new_share = policy_for(cluster, policy, options).divide(snapshot)
    teams = {t: tenant for t, (tenant, user) in enumerate(legend.accounts) if user is None}
    tenants, names = Tenant.objects.in_bulk(teams.values()), Generation.objects.in_bulk(legend.generations)
    return sorted(
        (
            ShareChange(
                cluster=cluster.name,
                tenant=tenants[tenant],
                user=None,
                generation=names[generation].name,
                entitled=(float(entitled[t, k]), float(entitled[t, k])),
                share=(float(share[t, k]), float(new_share[t, k])),
            )
            for t, tenant in teams.items()
            for k, generation in enumerate(legend.generations)
        ),
        key=_in_order,
    )


def preview(
    change: Change,
    *,
    within: Tenant | None = None,
    own: bool = False,
    clusters: Iterable[Cluster] | None = None,
) -> list[ShareChange]:
    """Returns the shares on each cluster before and after `change`, ordered by cluster; an empty list if there are no
    jobs.

    - `within`, or the tenant in which a user's tickets change: the shares of the users of this tenant, and of the
      tenants directly below it.
    - With `own`: the shares of the tenant of the change alone, with its subtree.
    - For any other change: the shares of all tenants with jobs.

    `clusters` None means all attached clusters.
    """
    now = now_from_database()
    within = change.tenant if change.user else within
    found: list[ShareChange] = []
    for cluster in Cluster.objects.attached().order_by(*by_name("name")) if clusters is None else clusters:
        before, after, legend = before_and_after(cluster, change, now=now)
        policy = policy_of_cluster(cluster)
        (entitled, share), (new_entitled, new_share) = (
            (entitlements(view), policy.divide(view)) for view in (before, after)
        )
        tenants = Tenant.objects.in_bulk({tenant for tenant, _ in legend.accounts})
        told = [(t, (tenant, user)) for t, (tenant, user) in enumerate(legend.accounts)
                if (_concerns(within, tenants[tenant], user) if not own
                    else user is None and tenant == change.tenant.pk)]  # fmt: skip
        users = User.objects.in_bulk([user for _, (_, user) in told if user is not None])
        names = Generation.objects.in_bulk(legend.generations)
        found += [
            ShareChange(
                cluster=cluster.name,
                tenant=tenants[tenant],
                user=None if user is None else users[user],
                generation=names[generation].name,
                entitled=(float(entitled[t, k]), float(new_entitled[t, k])),
                share=(float(share[t, k]), float(new_share[t, k])),
            )
            for t, (tenant, user) in told
            for k, generation in enumerate(legend.generations)
        ]
    return sorted(found, key=_in_order)


def _concerns(within: Tenant | None, tenant: Tenant, user: int | None) -> bool:
    if within is None:
        return user is None
    return within.pk == (tenant.parent_id if user is None else tenant.pk)


def _in_order(one: ShareChange) -> tuple[object, ...]:
    user = one.user.get_username() if one.user else ""
    return name_key(one.cluster), one.tenant.path, name_key(user), name_key(one.generation)
