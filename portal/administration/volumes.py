"""Volumes of a cluster: granted to teams, and withdrawn."""

from __future__ import annotations

from functools import partial

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404

from accounting.models import Tenant
from portal.access import permitted, posted_from
from portal.administration.clusters import cluster_page
from portal.administration.forms import chosen, perform
from scheduling.jobs.volumes import grant_volume, withdraw_volume
from scheduling.models import Cluster, Volume


@permitted("volume.grant")
@posted_from("admin_cluster", "pk")
def grant(request: HttpRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(Cluster, pk=pk)
    name = request.POST.get("name", "").strip()
    return perform(
        request,
        "volume",
        lambda post: grant_volume(
            actor=request.user,
            cluster=found,
            name=name,
            source=post.get("source", ""),
            read_only=post.get("read_only", "on") == "on",
            tenant=chosen(post, "team", Tenant.objects.active(), optional=True),
        ),
        done=f"The volume {name} is granted.",
        to=("admin_cluster", pk),
        page=partial(cluster_page, pk=pk),
    )


@permitted("volume.grant")
@posted_from("admin_cluster", "pk")
def withdraw(request: HttpRequest, pk: int, volume_id: int) -> HttpResponse:
    found = get_object_or_404(Volume, pk=volume_id, cluster=pk)
    return perform(
        request,
        f"volume-{found.pk}",
        lambda post: withdraw_volume(actor=request.user, volume=found),
        done=f"The volume {found.name} is withdrawn.",
        to=("admin_cluster", pk),
        page=partial(cluster_page, pk=pk),
    )
