"""Clusters: attach, check and detach those of Kubernetes. Their kubeconfigs are taken and never shown."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from django.db.models import Case, Count, Q, QuerySet, Sum, Value, When
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_safe

from accounting.core.errors import Refused
from accounting.core.name_order import by_name
from accounting.models import Tenant
from portal.access import permitted, posted_from
from portal.administration.forms import Refusal, decimal, perform, show, whole
from portal.sorting import Names, Since, Sorting
from scheduling.backends.kubernetes.kubeconfig import MOST_CHARACTERS
from scheduling.backends.kubernetes.metrics import USUAL_QUERY
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
class Row:
    """A need with its verbs, each with whether the right is there; None: not asked for yet."""

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


def _clusters(request: HttpRequest, *, refusal: Refusal | None = None) -> HttpResponse:
    found = list(SORTING.order(_found(), request.GET))
    context = {
        "tab": "clusters",
        "sort": SORTING.chosen(request.GET),
        "clusters": found,
        "topics": " ".join(f"cluster:{one.pk}" for one in found),
    }
    return show(request, "administration/clusters.html", context, refusal=refusal)


@permitted("cluster.read")
@require_safe
def clusters(request: HttpRequest) -> HttpResponse:
    return _clusters(request)


@permitted("cluster.attach")
@never_cache
@sensitive_post_parameters("kubeconfig")
@posted_from("admin_clusters")
def attach(request: HttpRequest) -> HttpResponse:
    name = request.POST.get("name", "").strip()
    return perform(
        request,
        "attach",
        lambda post: attach_cluster(
            actor=request.user,
            name=name,
            kubeconfig=_kubeconfig(request),
            namespace_prefix=post.get("namespace_prefix", ""),
            writes_per_second=float(decimal(post, "writes_per_second")),
            writes_at_once=whole(post, "writes_at_once"),
            checkpoint_claim=post.get("checkpoint_claim", ""),
        ),
        done=f"{name} is attached.",
        to=("admin_clusters",),
        page=_clusters,
    )


def _kubeconfig(request: HttpRequest) -> str:
    """As pasted, or as the file that was chosen."""
    file = request.FILES.get("file")
    if file is None:
        return str(request.POST.get("kubeconfig", ""))
    if file.size is None or file.size > MOST_CHARACTERS:
        raise Refused("This file is too large to be a kubeconfig.", "kubeconfig")
    try:
        return bytes(file.read()).decode()
    except UnicodeDecodeError:
        raise Refused("This file is no text.", "kubeconfig") from None


def cluster_page(request: HttpRequest, pk: int, *, refusal: Refusal | None = None) -> HttpResponse:
    found = get_object_or_404(_found(), pk=pk)
    access = getattr(found, "access", None)
    rows = rights_of(access) if access else []
    asked = [
        there for row in rows for _, there in row.verbs if there is not None and not row.need.is_optional
    ]
    context = {
        "tab": "clusters",
        "cluster": found,
        "access": access,
        "metrics": MetricsSource.objects.filter(cluster=found).first(),
        "usual_query": USUAL_QUERY,
        "groups": [
            ("In the whole cluster", [row for row in rows if not row.need.in_team]),
            ("In the namespaces of teams", [row for row in rows if row.need.in_team]),
        ],
        "may_group": all(
            there is not False for row in rows if row.need.is_optional for _, there in row.verbs
        ),
        "rights_there": sum(asked),
        "rights_asked": len(asked),
        "volumes": VOLUMES.order(found.volumes.select_related("tenant"), request.GET),
        "sort": VOLUMES.chosen(request.GET),
        "reachable": "\n".join(access.reachable) if access else "",
        "teams": Tenant.objects.active().order_by(*by_name("name")),
        "topics": f"cluster:{found.pk}",
    }
    return show(request, "administration/cluster.html", context, refusal=refusal)


def rights_of(access: ClusterAccess) -> list[Row]:
    """Every need with what the last check found."""
    return [
        Row(need, [(right.verb, access.rights.get(right.key)) for right in need.rights()])
        for need in (*EVERYWHERE, *IN_TEAMS)
    ]


@permitted("cluster.read")
@require_safe
def cluster(request: HttpRequest, pk: int) -> HttpResponse:
    return cluster_page(request, pk)


@permitted("cluster.check")
@posted_from("admin_cluster", "pk")
def check(request: HttpRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(Cluster, pk=pk)
    return perform(
        request,
        "check",
        lambda post: check_cluster(actor=request.user, cluster=found),
        done=f"{found.name} is checked.",
        to=("admin_cluster", pk),
        page=partial(cluster_page, pk=pk),
    )


@permitted("cluster.attach")
@never_cache
@sensitive_post_parameters("kubeconfig")
@posted_from("admin_cluster", "pk")
def replace(request: HttpRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(Cluster, pk=pk)
    return perform(
        request,
        "replace",
        lambda post: replace_kubeconfig(actor=request.user, cluster=found, kubeconfig=_kubeconfig(request)),
        done=f"{found.name} has a new kubeconfig.",
        to=("admin_cluster", pk),
        page=partial(cluster_page, pk=pk),
    )


@permitted("cluster.attach")
@posted_from("admin_cluster", "pk")
def reachable(request: HttpRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(Cluster, pk=pk)
    return perform(
        request,
        "reachable",
        lambda post: set_reachable(actor=request.user, cluster=found, ranges=post.get("ranges", "")),
        done=f"What jobs of {found.name} may reach is saved.",
        to=("admin_cluster", pk),
        page=partial(cluster_page, pk=pk),
    )


@permitted("cluster.attach")
@posted_from("admin_cluster", "pk")
def bare_pods(request: HttpRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(Cluster, pk=pk)
    return perform(
        request,
        "bare-pods",
        lambda post: set_bare_pods(
            actor=request.user, cluster=found, bare_pods=post.get("bare_pods") == "on"
        ),
        done=f"How {found.name} runs new jobs of one worker is saved.",
        to=("admin_cluster", pk),
        page=partial(cluster_page, pk=pk),
    )


@permitted("cluster.attach")
@posted_from("admin_cluster", "pk")
def detach(request: HttpRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(Cluster, pk=pk)
    return perform(
        request,
        "detach",
        lambda post: detach_cluster(actor=request.user, cluster=found),
        done=f"{found.name} is detached.",
        to=("admin_clusters",),
        page=partial(cluster_page, pk=pk),
    )
