"""Pages for the nodes of clusters and the scheduling settings of clusters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from django.db.models import Count, Prefetch, Q
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_http_methods, require_safe

from accounting.access.permissions import may
from accounting.core.clock import now_from_database
from accounting.core.name_order import by_name
from accounting.ledger.hash_chain import why_stopped
from portal.access import permitted, posted_from
from portal.administration.node_forms import DeclareForm, DrainForm, PauseForm, SchedulingForm
from portal.forms.form import Form
from portal.forms.idle_rule import IdleRuleForm, TeamIdleRuleForm
from portal.forms.posting import act_on, perform, previewed, show
from portal.sorting import Names, Sorting
from portal.unstorable import keeps_form
from portal.user_request import UserRequest
from scheduling.clusters import actions as clusters
from scheduling.clusters.proposals import changes_by
from scheduling.draining import actions as draining
from scheduling.draining.actions import DrainMode
from scheduling.draining.consequences import consequences_of
from scheduling.draining.drained_jobs import jobs_to_drain
from scheduling.idle.actions import IdleRules
from scheduling.models import Cluster, IdleRule, Node

# The message about the node's running jobs that the operator reads after a drain, by mode.
DRAINS = {
    DrainMode.NOW: "Running jobs are being stopped, and wait until other nodes have room for them.",
    DrainMode.DEADLINE: "Running jobs may stay until the deadline, and then wait until other nodes have room for them.",
    DrainMode.FINISH: "Running jobs stay until they end.",
}
# How many GPUs of a node jobs hold now; a drained node whose GPUs are held is draining.
HELD = Count("held_gpus", filter=Q(held_gpus__during__isnull=False, held_gpus__during__endswith=None))
SORTING = Sorting(
    {
        "gpu": (Names("generation__name"), Names("name")), "name": (Names("name"),), "held": ("held", Names("name")),
        "state": ("state", Names("name")),
    },
    usual="gpu",
)  # fmt: skip


def _nodes(request: UserRequest, *, posted: Form | None = None) -> HttpResponse:
    nodes = (
        Node.objects.present()
        .select_related("generation")
        .annotate(held=HELD, may_go=clusters.may_be_removed())
    )
    found = list(
        Cluster.objects.attached()
        .order_by(*by_name("name"))
        .select_related("access")
        .prefetch_related(Prefetch("nodes", queryset=SORTING.order(nodes, request.GET)))
    )
    context = {
        "tab": "nodes",
        "sort": SORTING.chosen(request.GET),
        "clusters": [(one, *_forms_of(one, posted)) for one in found],
        "topics": " ".join(f"cluster:{one.pk}" for one in found),
    }
    return show(request, "administration/nodes.html", context, posted=posted)


def _forms_of(cluster: Cluster, posted: Form | None) -> tuple[Form, Form]:
    return (
        PauseForm(f"pause-{cluster.pk}").or_posted(posted),
        DeclareForm(f"declare-{cluster.pk}").or_posted(posted),
    )


@permitted("cluster.read")
@require_safe
def nodes(request: UserRequest) -> HttpResponse:
    return _nodes(request)


def _drain_page(request: UserRequest, *, node: Node, posted: Form | None = None) -> HttpResponse:
    jobs = jobs_to_drain([node], request.user)
    context = {
        "tab": "nodes",
        "node": node,
        "jobs": jobs,
        "total": len(jobs.seen) + jobs.hidden,
        "left": consequences_of([node], jobs, request.user),
        "form": DrainForm("drain", initial={"reason": node.state_reason}).or_posted(posted),
    }
    return show(request, "administration/drain.html", context, posted=posted)


@permitted("node.drain")
@keeps_form
@require_http_methods(["GET", "HEAD", "POST"])
def drain(request: UserRequest, pk: int) -> HttpResponse:
    """Shows the form that drains a node, and the jobs that this would affect. A POST drains the node."""
    node = get_object_or_404(Node.objects.present().select_related("cluster", "generation"), pk=pk)
    if request.method != "POST":
        return _drain_page(request, node=node)
    return perform(
        request,
        DrainForm("drain", request),
        lambda values: draining.drain_node(actor=request.user, node=node, **values),
        done=lambda values: (
            f"No new job starts on {node.name}. {DRAINS[values['mode']]} To undo the drain, press "
            "“Return to use” on this page."
        ),
        to=("admin_nodes",),
        page=partial(_drain_page, node=node),
    )


@permitted("node.drain")
@posted_from("admin_nodes")
def put_back(request: UserRequest, pk: int) -> HttpResponse:
    node = get_object_or_404(Node.objects.present(), pk=pk)
    return perform(
        request,
        Form(f"return-{pk}", request),
        lambda _: draining.return_node(actor=request.user, node=node),
        done=f"The node {node.name} has been returned to use.",
        to=("admin_nodes",),
        page=_nodes,
    )


@permitted("node.declare")
@posted_from("admin_nodes")
def declare(request: UserRequest, pk: int) -> HttpResponse:
    cluster = get_object_or_404(Cluster, pk=pk)
    return perform(
        request,
        DeclareForm(f"declare-{pk}", request),
        lambda values: clusters.declare_node(actor=request.user, cluster=cluster, **values),
        done=lambda values: (
            f"The simulated node {values['name']} has been added to the cluster {cluster.name}."
        ),
        to=("admin_nodes",),
        page=_nodes,
    )


@permitted("node.declare")
@posted_from("admin_nodes")
def remove(request: UserRequest, pk: int) -> HttpResponse:
    node = get_object_or_404(Node.objects.present(), pk=pk)
    return perform(
        request,
        Form(f"remove-{pk}", request),
        lambda _: clusters.remove_node(actor=request.user, node=node),
        done=f"The node {node.name} has been removed.",
        to=("admin_nodes",),
        page=_nodes,
    )


@permitted("cluster.pause")
@posted_from("admin_nodes")
def pause(request: UserRequest, pk: int, verb: str) -> HttpResponse:
    """Pauses or resumes a cluster, as `verb` says ("pause" or "resume")."""
    cluster = get_object_or_404(Cluster, pk=pk)
    acts: dict[str, tuple[type[Form], Callable[..., object], str]] = {
        "pause": (
            PauseForm,
            clusters.pause_cluster,
            f"The cluster {cluster.name} has been paused. Running jobs continue.",
        ),
        "resume": (
            Form,
            clusters.resume_cluster,
            f"The cluster {cluster.name} has been resumed. It starts jobs again.",
        ),
    }
    form, act, done = acts[verb]
    return perform(
        request,
        form(f"{verb}-{pk}", request),
        lambda values: act(actor=request.user, cluster=cluster, **values),
        done=done,
        to=("admin_nodes",),
        page=_nodes,
    )


def settings_page(request: UserRequest, *, posted: Form | None = None) -> HttpResponse:
    rules = IdleRules.read()
    found = list(Cluster.objects.attached().order_by(*by_name("name")))
    context = {
        "tab": "settings",
        "clusters": [(one, SchedulingForm(one).or_posted(posted)) for one in found],
        "idle_of_all": IdleRuleForm.of_all(rules).or_posted(posted),
        "idle_of_clusters": [(one, IdleRuleForm.of_cluster(rules, one).or_posted(posted)) for one in found],
        "idle_of_team": TeamIdleRuleForm().or_posted(posted),
        "sealing_stopped": why_stopped(now_from_database()),
        "rules": IdleRule.objects.select_related("tenant", "cluster").order_by(
            *by_name("tenant__name", "cluster__name")
        ),
    }
    template = "settings" if may(request.user, "cluster.update") else "settings_read"
    return show(request, f"administration/{template}.html", context, posted=posted)


@permitted("cluster.read")
@require_safe
def cluster_settings(request: UserRequest) -> HttpResponse:
    return settings_page(request)


@permitted("cluster.update")
@posted_from("admin_settings")
def preview_settings(request: UserRequest, pk: int) -> HttpResponse:
    """Shows the present and the new values of the settings that the form would change, and what follows from them."""
    cluster = get_object_or_404(Cluster.objects.attached(), pk=pk)
    form = SchedulingForm(cluster, request)
    if not act_on(form, clusters.check_settings):
        return settings_page(request, posted=form)
    context = {
        "tab": "settings",
        "cluster": cluster,
        "settings": changes_by(cluster, form.cleaned_data),
        **previewed(form, []),
    }
    return render(request, "administration/settings_preview.html", context)


@permitted("cluster.update")
@posted_from("admin_settings")
def change_settings(request: UserRequest, pk: int) -> HttpResponse:
    cluster = get_object_or_404(Cluster, pk=pk)
    return perform(
        request,
        SchedulingForm(cluster, request),
        lambda values: clusters.update_cluster(actor=request.user, cluster=cluster, **values),
        done=f"The settings of the cluster {cluster.name} have been saved. They apply from the "
        "next round on.",
        to=("admin_settings",),
        page=settings_page,
    )
