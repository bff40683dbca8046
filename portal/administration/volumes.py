"""Pages that grant a cluster's volumes to teams, and withdraw granted volumes."""

from __future__ import annotations

from functools import partial

from django.http import HttpResponse
from django.shortcuts import get_object_or_404

from portal.access import permitted, posted_from
from portal.administration.cluster_forms import VolumeForm
from portal.administration.clusters import cluster_page
from portal.forms.form import Form
from portal.forms.posting import perform
from portal.user_request import UserRequest
from scheduling.jobs.volumes import grant_volume, withdraw_volume
from scheduling.models import Cluster, Volume


@permitted("volume.grant")
@posted_from("admin_cluster", "pk")
def grant(request: UserRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(Cluster, pk=pk)
    return perform(
        request,
        VolumeForm(found, request),
        lambda values: grant_volume(
            actor=request.user,
            cluster=found,
            name=values["name"],
            source=values["source"],
            read_only=values["read_only"] != "off",
            tenant=values["team"],
        ),
        done=lambda values: f"The volume {values['name']} has been granted.",
        to=("admin_cluster", pk),
        page=partial(cluster_page, pk=pk),
    )


@permitted("volume.grant")
@posted_from("admin_cluster", "pk")
def withdraw(request: UserRequest, pk: int, volume_id: int) -> HttpResponse:
    found = get_object_or_404(Volume, pk=volume_id, cluster=pk)
    return perform(
        request,
        Form(f"volume-{found.pk}", request),
        lambda _: withdraw_volume(actor=request.user, volume=found),
        done=f"The volume {found.name} has been withdrawn.",
        to=("admin_cluster", pk),
        page=partial(cluster_page, pk=pk),
    )
