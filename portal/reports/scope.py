"""The team and the cluster that the query of a report or page names."""

from __future__ import annotations

from django.http import Http404
from django.shortcuts import get_object_or_404

from accounting.models import Tenant, User
from portal.reports.periods import Query
from scheduling.models import Cluster


def chosen_tenant(user: User, query: Query) -> Tenant | None:
    """Returns the tenant in `?team=`; None without `team`. Raises Http404 for a tenant that `user` may not see."""
    slug = query.get("team", "")
    return get_object_or_404(Tenant.objects.visible_to(user), slug=slug) if slug else None


def chosen_cluster(query: Query, clusters: list[Cluster]) -> Cluster | None:
    """Returns the cluster in `?cluster=`; without `cluster`, the first of `clusters`, or None if `clusters` is empty.

    Raises Http404 if no cluster in `clusters` has that name.
    """
    name = query.get("cluster", "")
    if not name:
        return clusters[0] if clusters else None
    found = next((cluster for cluster in clusters if cluster.name == name), None)
    if found is None:
        raise Http404
    return found
