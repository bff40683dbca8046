"""The team and the cluster that the URL of a report or page names."""

from __future__ import annotations

from django.http import Http404
from django.shortcuts import get_object_or_404

from accounting.models import Tenant, User
from portal.reports.periods import Query
from scheduling.models import Cluster


def chosen_tenant(user: User, query: Query) -> Tenant | None:
    """Returns the tenant of `?team=`, None if no team is named. Raises Http404 for one that `user` may not see."""
    slug = query.get("team", "")
    return get_object_or_404(Tenant.objects.visible_to(user), slug=slug) if slug else None


def chosen_cluster(query: Query, clusters: list[Cluster]) -> Cluster | None:
    """Returns the cluster of `?cluster=`, else the first of `clusters`, None if there are none.

    Raises Http404 if none of `clusters` has that name."""
    name = query.get("cluster", "")
    if not name:
        return clusters[0] if clusters else None
    found = next((cluster for cluster in clusters if cluster.name == name), None)
    if found is None:
        raise Http404
    return found
