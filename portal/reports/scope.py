"""Reads the team and the cluster from the URL query of a report or page."""

from __future__ import annotations

from django.http import Http404
from django.shortcuts import get_object_or_404

from accounting.models import Tenant, User
from portal.reports.periods import Query
from scheduling.models import Cluster


def chosen_tenant(user: User, query: Query) -> Tenant | None:
    """Returns the tenant in `?team=`, or None if the query has no team. Raises Http404 for a tenant that `user` may not
    see."""
    slug = query.get("team", "")
    return get_object_or_404(Tenant.objects.visible_to(user), slug=slug) if slug else None


def chosen_cluster(query: Query, clusters: list[Cluster]) -> Cluster | None:
    """Returns the cluster in `?cluster=`. If the query has none, returns the first of `clusters`, or None if there are
    no clusters.

    Raises Http404 if no cluster in `clusters` has the name.
    """
    name = query.get("cluster", "")
    if not name:
        return clusters[0] if clusters else None
    found = next((cluster for cluster in clusters if cluster.name == name), None)
    if found is None:
        raise Http404
    return found
