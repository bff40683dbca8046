"""Rules for idle GPUs, and where clusters' use of GPUs is asked for."""

from __future__ import annotations

from functools import partial

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404

from accounting.models import Tenant, User
from portal.access import permitted, posted_from
from portal.administration.clusters import cluster_page
from portal.administration.forms import perform, whole
from portal.administration.nodes import settings_page
from portal.administration.tenants import tenant_page
from scheduling.clusters.metrics import set_metrics_source
from scheduling.idle.actions import remove_idle_rule, set_idle_rule
from scheduling.models import Cluster, IdleRule

AS_ABOVE = "above"


@permitted("idle_rule.set")
@posted_from("admin_tenant", "slug")
def of_tenant(request: HttpRequest, slug: str) -> HttpResponse:
    tenant = get_object_or_404(Tenant, slug=slug)
    return perform(
        request,
        "idle",
        lambda post: _set(request.user, post, tenant=tenant),
        done=f"The rule for idle GPUs of {tenant.name} is set.",
        to=("admin_tenant", slug),
        page=partial(tenant_page, slug=slug),
    )


@permitted("idle_rule.set")
@posted_from("admin_settings")
def of_cluster(request: HttpRequest, pk: int) -> HttpResponse:
    cluster = get_object_or_404(Cluster, pk=pk)
    return perform(
        request,
        f"idle-{pk}",
        lambda post: _set(request.user, post, cluster=cluster),
        done=f"The rule for idle GPUs of {cluster.name} is set.",
        to=("admin_settings",),
        page=settings_page,
    )


@permitted("idle_rule.set")
@posted_from("admin_settings")
def of_all(request: HttpRequest) -> HttpResponse:
    return perform(
        request,
        "idle-all",
        lambda post: _set(request.user, post),
        done="The rule for idle GPUs is set.",
        to=("admin_settings",),
        page=settings_page,
    )


def _set(
    actor: User, post: QueryDict, *, tenant: Tenant | None = None, cluster: Cluster | None = None
) -> None:
    action = post.get("action", "")
    if action == AS_ABOVE:
        held = IdleRule.objects.filter(tenant=tenant, cluster=cluster).first()
        if held is not None:
            remove_idle_rule(actor=actor, rule=held)
        return
    set_idle_rule(
        actor=actor,
        tenant=tenant,
        cluster=cluster,
        action=action,
        after_minutes=whole(post, "after_minutes"),
        grace_minutes=whole(post, "grace_minutes"),
        snooze_hours=whole(post, "snooze_hours"),
        services="services" in post,
    )


@permitted("cluster.attach")
@posted_from("admin_cluster", "pk")
def metrics(request: HttpRequest, pk: int) -> HttpResponse:
    cluster = get_object_or_404(Cluster, pk=pk)
    return perform(
        request,
        "metrics",
        lambda post: set_metrics_source(
            actor=request.user, cluster=cluster, url=post.get("url", ""), query=post.get("query", "")
        ),
        done=f"Where the metrics of {cluster.name} are asked for is set.",
        to=("admin_cluster", pk),
        page=partial(cluster_page, pk=pk),
    )
