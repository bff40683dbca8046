"""Pages that attach, check and detach Kubernetes clusters. A stored kubeconfig is never shown."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from django.db.models import Case, Count, Q, QuerySet, Sum, Value, When
from django.db.models.functions import Coalesce
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_safe

from portal.access import permitted, posted_from
from portal.administration.cluster_forms import (
    AttachForm,
    BarePodsForm,
    KubeconfigForm,
    MetricsForm,
    ReachableForm,
    VolumeForm,
)
from portal.forms.form import Form
from portal.forms.posting import perform, show
from portal.sorting import Names, Since, Sorting
from portal.user_request import UserRequest
from scheduling.backends.kubernetes.rights import EVERYWHERE, IN_TEAMS, Need
from scheduling.clusters.attaching import (
    attach_cluster,
    check_cluster,
    detach_cluster,
    replace_kubeconfig,
    set_bare_pods,
    set_reachable,
)
from scheduling.models import Cluster, ClusterAccess, MetricsSource


@dataclass(frozen=True)
class NeededRights:
    """The Kubernetes permissions that Fairlot needs for one purpose.

    `verbs` has a pair for each verb: its name, and whether the cluster grants the permission (None before the first
    check).
    """

    need: Need
    verbs: list[tuple[str, bool | None]]


IS_DETACHED = Case(When(detached_at=None, then=Value(0)), default=Value(1))
SORTING = Sorting(
    {
        "attached": (IS_DETACHED, Names("name")), "name": (Names("name"),), "state": (IS_DETACHED, Since("paused_at")),
        "where": ("backend", Names("name")), "gpus": ("gpu_count",),
    },
    usual="attached",
)  # fmt: skip
VOLUMES = Sorting(
    {
        "name": (Names("name"), Names("tenant__name")), "team": (Names("tenant__name"), Names("name")),
        "may": ("read_only",), "granted": ("created_at",),
    },
    usual="name",
)  # fmt: skip


def _found() -> QuerySet[Cluster]:
    return Cluster.objects.select_related("access").annotate(
        node_count=Count("nodes", filter=Q(nodes__gpus__gt=0)), gpu_count=Coalesce(Sum("nodes__gpus"), 0)
    )


def _clusters(request: UserRequest, *, posted: Form | None = None) -> HttpResponse:
    found = list(SORTING.order(_found(), request.GET))
    context = {
        "tab": "clusters",
        "sort": SORTING.chosen(request.GET),
        "clusters": found,
        "topics": " ".join(f"cluster:{one.pk}" for one in found),
        "attach": AttachForm("attach").or_posted(posted),
    }
    return show(request, "administration/clusters.html", context, posted=posted)


@permitted("cluster.read")
@require_safe
def clusters(request: UserRequest) -> HttpResponse:
    return _clusters(request)


@permitted("cluster.attach")
@never_cache
@sensitive_post_parameters("kubeconfig")
@posted_from("admin_clusters")
def attach(request: UserRequest) -> HttpResponse:
    return perform(
        request,
        AttachForm("attach", request),
        lambda values: attach_cluster(actor=request.user, **values),
        done=lambda values: f"The cluster {values['name']} has been attached.",
        to=("admin_clusters",),
        page=_clusters,
    )


def cluster_page(request: UserRequest, pk: int, *, posted: Form | None = None) -> HttpResponse:
    found = get_object_or_404(_found(), pk=pk)
    access = getattr(found, "access", None)
    rows = rights_of(access) if access else []
    asked = [
        there for row in rows for _, there in row.verbs if there is not None and not row.need.is_optional
    ]
    metrics = MetricsSource.objects.filter(cluster=found).first()
    asked_for = {"url": metrics.url, "query": metrics.query} if metrics else {}
    ranges = "\n".join(access.reachable) if access else ""
    context = {
        "tab": "clusters",
        "cluster": found,
        "access": access,
        "metrics": metrics,
        "groups": [
            ("Rights of Fairlot in the whole cluster", [row for row in rows if not row.need.in_team]),
            ("Rights of Fairlot in the namespaces of teams", [row for row in rows if row.need.in_team]),
        ],
        "may_group": all(
            there is not False for row in rows if row.need.is_optional for _, there in row.verbs
        ),
        "rights_there": sum(asked),
        "rights_asked": len(asked),
        "volumes": VOLUMES.order(found.volumes.select_related("tenant"), request.GET),
        "sort": VOLUMES.chosen(request.GET),
        "volume_form": VolumeForm(found).or_posted(posted),
        "reachable": ReachableForm("reachable", initial={"ranges": ranges}).or_posted(posted),
        "bare_pods": BarePodsForm("bare-pods", initial={"bare_pods": access and access.bare_pods}).or_posted(
            posted
        ),
        "metrics_form": MetricsForm("metrics", initial=asked_for).or_posted(posted),
        "replace": KubeconfigForm("replace").or_posted(posted),
        "topics": f"cluster:{found.pk}",
    }
    return show(request, "administration/cluster.html", context, posted=posted)


def rights_of(access: ClusterAccess) -> list[NeededRights]:
    """Returns all Kubernetes permissions that Fairlot needs, grouped by purpose, with the results of the last check."""
    return [
        NeededRights(need, [(right.verb, access.rights.get(right.key)) for right in need.rights()])
        for need in (*EVERYWHERE, *IN_TEAMS)
    ]


@permitted("cluster.read")
@require_safe
def cluster(request: UserRequest, pk: int) -> HttpResponse:
    return cluster_page(request, pk)


@permitted("cluster.check")
@posted_from("admin_cluster", "pk")
def check(request: UserRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(Cluster, pk=pk)
    return perform(
        request,
        Form("check", request),
        lambda _: check_cluster(actor=request.user, cluster=found),
        done=f"The cluster {found.name} has been checked.",
        to=("admin_cluster", pk),
        page=partial(cluster_page, pk=pk),
    )


@permitted("cluster.attach")
@never_cache
@sensitive_post_parameters("kubeconfig")
@posted_from("admin_cluster", "pk")
def replace(request: UserRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(Cluster, pk=pk)
    return perform(
        request,
        KubeconfigForm("replace", request),
        lambda values: replace_kubeconfig(actor=request.user, cluster=found, **values),
        done=f"The kubeconfig of the cluster {found.name} has been replaced.",
        to=("admin_cluster", pk),
        page=partial(cluster_page, pk=pk),
    )


@permitted("cluster.attach")
@posted_from("admin_cluster", "pk")
def reachable(request: UserRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(Cluster, pk=pk)
    return perform(
        request,
        ReachableForm("reachable", request),
        lambda values: set_reachable(actor=request.user, cluster=found, **values),
        done=f"The address ranges that jobs in the cluster {found.name} may reach have been saved.",
        to=("admin_cluster", pk),
        page=partial(cluster_page, pk=pk),
    )


@permitted("cluster.attach")
@posted_from("admin_cluster", "pk")
def bare_pods(request: UserRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(Cluster, pk=pk)
    return perform(
        request,
        BarePodsForm("bare-pods", request),
        lambda values: set_bare_pods(actor=request.user, cluster=found, **values),
        done=f"The setting “Run new single-worker jobs as bare pods” of the cluster {found.name} has been saved.",
        to=("admin_cluster", pk),
        page=partial(cluster_page, pk=pk),
    )


@permitted("cluster.attach")
@posted_from("admin_cluster", "pk")
def detach(request: UserRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(Cluster, pk=pk)
    return perform(
        request,
        Form("detach", request),
        lambda _: detach_cluster(actor=request.user, cluster=found),
        done=f"The cluster {found.name} has been detached.",
        to=("admin_clusters",),
        page=partial(cluster_page, pk=pk),
    )
