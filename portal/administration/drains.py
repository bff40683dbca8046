"""The page that drains several nodes of a cluster together: choose the nodes, see which jobs this affects, drain."""

from __future__ import annotations

from functools import partial
from urllib.parse import urlencode

from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from accounting.core.name_order import by_name
from accounting.core.numbers import read_key
from portal.access import permitted, posted_from
from portal.administration.node_forms import DrainForm
from portal.administration.nodes import DRAINS, HELD
from portal.forms.form import Form
from portal.forms.posting import perform, show
from portal.unstorable import keeps_form
from portal.user_request import UserRequest
from scheduling.draining import actions as draining
from scheduling.draining.consequences import consequences_of
from scheduling.draining.drained_jobs import jobs_to_drain
from scheduling.models import Cluster, Node


def _page(request: UserRequest, *, cluster: Cluster, posted: Form | None = None) -> HttpResponse:
    nodes = list(
        Node.objects.present()
        .filter(cluster=cluster)
        .select_related("generation")
        .annotate(held=HELD)
        .order_by(*by_name("name"))
    )
    chosen = _chosen(request, cluster)
    jobs = jobs_to_drain(chosen, request.user) if chosen else None
    context = {
        "tab": "nodes",
        "cluster": cluster,
        "nodes": nodes,
        "chosen": chosen,
        "keys": {node.pk for node in chosen},
        "query": urlencode([("node", node.pk) for node in chosen]),
        "is_empty": not chosen and "show" in request.GET,
        "drained": any(node.state == Node.State.DRAINED for node in chosen),
        "all_drained": all(node.state == Node.State.DRAINED for node in chosen),
        "jobs": jobs,
        "total": len(jobs.seen) + jobs.hidden if jobs else 0,
        "left": consequences_of(chosen, jobs, request.user) if jobs else None,
        "form": DrainForm("drain").or_posted(posted),
        "again": Form("return").or_posted(posted),
    }
    return show(request, "administration/drain_several.html", context, posted=posted)


def _chosen(request: UserRequest, cluster: Cluster) -> list[Node]:
    """Returns the nodes that the URL names, as far as the cluster has them."""
    keys = [key for text in request.GET.getlist("node")[:1000] if (key := read_key(text))]
    found = Node.objects.present().filter(cluster=cluster, pk__in=keys).select_related("generation")
    return list(found.order_by(*by_name("name")))


@permitted("node.drain")
@keeps_form
@require_http_methods(["GET", "HEAD", "POST"])
def drain_several(request: UserRequest, pk: int) -> HttpResponse:
    """Shows the nodes of a cluster, and the jobs that a drain of the chosen nodes would affect. A POST drains them."""
    cluster = get_object_or_404(Cluster.objects.attached(), pk=pk)
    page = partial(_page, cluster=cluster)
    if request.method != "POST":
        return page(request)
    nodes = _chosen(request, cluster)
    return perform(
        request,
        DrainForm("drain", request),
        lambda values: draining.drain_nodes(actor=request.user, nodes=nodes, **values),
        done=lambda values: (
            f"No new job starts on {_in_words(nodes)}. {DRAINS[values['mode']]} To undo the drain, press "
            "“Return to use” on this page."
        ),
        to=(_address(cluster, nodes),),
        page=page,
    )


@permitted("node.drain")
@posted_from("admin_cluster_drain", "pk")
def return_several(request: UserRequest, pk: int) -> HttpResponse:
    """Returns the chosen nodes to use, which undoes their drain."""
    cluster = get_object_or_404(Cluster.objects.attached(), pk=pk)
    nodes = _chosen(request, cluster)
    return perform(
        request,
        Form("return", request),
        lambda _: draining.return_nodes(actor=request.user, nodes=nodes),
        done=f"Jobs may start again on {_in_words(nodes)}.",
        to=("admin_nodes",),
        page=partial(_page, cluster=cluster),
    )


def _in_words(nodes: list[Node]) -> str:
    return nodes[0].name if len(nodes) == 1 else f"{len(nodes)} nodes"


def _address(cluster: Cluster, nodes: list[Node]) -> str:
    query = urlencode([("node", node.pk) for node in nodes])
    return f"{reverse('admin_cluster_drain', args=[cluster.pk])}?{query}"
