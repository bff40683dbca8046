"""Nodes, and how clusters are scheduled."""

from __future__ import annotations

from functools import partial

from django.db.models import Count, Prefetch, Q
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_http_methods, require_safe

from accounting.access.permissions import may
from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.core.name_order import by_name
from accounting.ledger.hash_chain import why_stopped
from accounting.models import Generation
from portal.access import permitted, posted_from
from portal.administration.forms import Refusal, chosen, decimal, moment, part, perform, show, whole
from portal.administration.idle_fields import form_of_all, form_of_cluster
from portal.inputs import keeps_form
from portal.sorting import Names, Sorting
from scheduling.clusters import actions as clusters
from scheduling.draining import actions as draining
from scheduling.draining.actions import DrainMode
from scheduling.draining.drained_jobs import jobs_to_drain
from scheduling.idle.actions import IdleRules
from scheduling.models import Cluster, IdleRule, Node

# What becomes of the jobs of a node that is drained, as its operator is told.
DRAINS = {
    DrainMode.NOW: "Its jobs are being stopped, and go on elsewhere. ",
    DrainMode.DEADLINE: "Its jobs may run until the deadline, and go on elsewhere then. ",
    DrainMode.FINISH: "Its jobs run to their end. ",
}
OF_WORKERS = ("cpu_per_gpu", "memory_per_gpu", "cpu_limit_per_gpu", "memory_limit_per_gpu")


SORTING = Sorting(
    {
        "gpu": (Names("generation__name"), Names("name")), "name": (Names("name"),), "held": ("held", Names("name")),
        "state": ("state", Names("name")),
    },
    usual="gpu",
)  # fmt: skip


def _nodes(request: HttpRequest, *, refusal: Refusal | None = None) -> HttpResponse:
    held = Count("held_gpus", filter=Q(held_gpus__during__isnull=False, held_gpus__during__endswith=None))
    nodes = (
        Node.objects.present()
        .select_related("generation")
        .annotate(held=held, may_go=clusters.may_be_removed())
    )
    nodes = SORTING.order(nodes, request.GET)
    found = list(
        Cluster.objects.attached()
        .order_by(*by_name("name"))
        .select_related("access")
        .prefetch_related(Prefetch("nodes", queryset=nodes))
    )
    context = {
        "tab": "nodes",
        "sort": SORTING.chosen(request.GET),
        "clusters": found,
        "generations": Generation.objects.all(),
        "most_gpus": clusters.MOST_GPUS,
        "topics": " ".join(f"cluster:{one.pk}" for one in found),
    }
    return show(request, "administration/nodes.html", context, refusal=refusal)


@permitted("cluster.read")
@require_safe
def nodes(request: HttpRequest) -> HttpResponse:
    return _nodes(request)


def _drain_page(request: HttpRequest, *, node: Node, refusal: Refusal | None = None) -> HttpResponse:
    jobs = jobs_to_drain(node, request.user)
    context = {
        "tab": "nodes",
        "node": node,
        "jobs": jobs,
        "total": len(jobs.seen) + jobs.hidden,
        "modes": DrainMode.choices,
    }
    return show(request, "administration/drain.html", context, refusal=refusal)


@permitted("node.drain")
@keeps_form
@require_http_methods(["GET", "HEAD", "POST"])
def drain(request: HttpRequest, pk: int) -> HttpResponse:
    """Whom it concerns and how; posted, it is done."""
    node = get_object_or_404(Node.objects.present().select_related("cluster", "generation"), pk=pk)
    if request.method != "POST":
        return _drain_page(request, node=node)
    mode = request.POST.get("mode", DrainMode.FINISH)
    return perform(
        request,
        "drain",
        lambda post: draining.drain_node(
            actor=request.user,
            node=node,
            reason=_reason(post),
            mode=mode,
            deadline=moment(post, "deadline") if mode == DrainMode.DEADLINE else None,
        ),
        done=f"{DRAINS.get(mode, '')}Nothing new starts on {node.name}. Return it to use here at any time.",
        to=("admin_nodes",),
        page=partial(_drain_page, node=node),
    )


def _reason(post: QueryDict) -> str:
    reason = post.get("reason", "").strip()
    if not reason or len(reason) > 200:
        raise Refused("Say why, in 1 to 200 characters.", "reason")
    return reason


@permitted("node.drain")
@posted_from("admin_nodes")
def put_back(request: HttpRequest, pk: int) -> HttpResponse:
    node = get_object_or_404(Node.objects.present(), pk=pk)
    return perform(
        request,
        f"return-{pk}",
        lambda post: draining.return_node(actor=request.user, node=node),
        done=f"{node.name} is in use again.",
        to=("admin_nodes",),
        page=_nodes,
    )


@permitted("node.declare")
@posted_from("admin_nodes")
def declare(request: HttpRequest, pk: int) -> HttpResponse:
    cluster = get_object_or_404(Cluster, pk=pk)

    def act(post: QueryDict) -> None:
        clusters.declare_node(
            actor=request.user,
            cluster=cluster,
            name=post.get("name", "").strip(),
            generation=chosen(post, "generation", Generation.objects),
            gpus=whole(post, "gpus"),
            virtual_speed=float(decimal(post, "virtual_speed")),
        )

    return perform(
        request,
        f"declare-{pk}",
        act,
        done=f"{cluster.name} has a node {request.POST.get('name', '').strip()} now.",
        to=("admin_nodes",),
        page=_nodes,
    )


@permitted("node.declare")
@posted_from("admin_nodes")
def remove(request: HttpRequest, pk: int) -> HttpResponse:
    node = get_object_or_404(Node.objects.present(), pk=pk)
    return perform(
        request,
        f"remove-{pk}",
        lambda post: clusters.remove_node(actor=request.user, node=node),
        done=f"{node.name} is removed.",
        to=("admin_nodes",),
        page=_nodes,
    )


@permitted("cluster.pause")
@posted_from("admin_nodes")
def pause(request: HttpRequest, pk: int, verb: str) -> HttpResponse:
    """Pause or resume a cluster."""
    cluster = get_object_or_404(Cluster, pk=pk)
    acts = {
        "pause": (lambda post: clusters.pause_cluster(
                    actor=request.user, cluster=cluster, reason=_reason(post)),
                  f"{cluster.name} is paused; what runs goes on."),
        "resume": (lambda post: clusters.resume_cluster(actor=request.user, cluster=cluster),
                   f"{cluster.name} goes on."),
    }  # fmt: skip
    act, done = acts[verb]
    return perform(
        request,
        f"{verb}-{pk}",
        act,
        done=done,
        to=("admin_nodes",),
        page=_nodes,
    )


def _amount(post: QueryDict, field: str) -> float | None:
    return float(decimal(post, field)) if post.get(field, "").strip() else None


def settings_page(request: HttpRequest, *, refusal: Refusal | None = None) -> HttpResponse:
    rules = IdleRules.read()
    found = list(Cluster.objects.attached().order_by(*by_name("name")))
    context = {
        "tab": "settings",
        "clusters": found,
        "idle_of_all": form_of_all(rules),
        "idle_of_clusters": [(one, form_of_cluster(rules, one)) for one in found],
        "orderings": Cluster.Ordering.choices,
        "slicings": Cluster.Slicing.choices,
        "sealing_stopped": why_stopped(now_from_database()),
        "rules": IdleRule.objects.select_related("tenant", "cluster").order_by(
            *by_name("tenant__name", "cluster__name")
        ),
    }
    template = "settings" if may(request.user, "cluster.update") else "settings_read"
    return show(request, f"administration/{template}.html", context, refusal=refusal)


@permitted("cluster.read")
@require_safe
def cluster_settings(request: HttpRequest) -> HttpResponse:
    return settings_page(request)


@permitted("cluster.update")
@posted_from("admin_settings")
def change_settings(request: HttpRequest, pk: int) -> HttpResponse:
    cluster = get_object_or_404(Cluster, pk=pk)
    return perform(
        request,
        f"settings-{pk}",
        lambda post: clusters.update_cluster(
            actor=request.user,
            cluster=cluster,
            ordering=post.get("ordering", ""),
            slicing=post.get("slicing", ""),
            trading=post.get("trading") == "on",
            quantum_seconds=float(decimal(post, "quantum_seconds")),
            min_hold_seconds=float(decimal(post, "min_hold_seconds")),
            overhead_limit=float(part(post, "overhead_limit")),
            **{field: _amount(post, field) for field in OF_WORKERS if field in post},
            **{field: float(decimal(post, field)) for field in ["notice_seconds"] if field in post},
        ),
        done=f"{cluster.name} is scheduled so from the next round on.",
        to=("admin_settings",),
        page=settings_page,
    )
