"""Pages for the rules about idle GPUs, and for the source of each cluster's GPU metrics."""

from __future__ import annotations

from functools import partial

from django.http import HttpResponse
from django.shortcuts import get_object_or_404

from accounting.models import Tenant, User
from portal.access import permitted, posted_from
from portal.administration.cluster_forms import MetricsForm
from portal.administration.clusters import cluster_page
from portal.administration.nodes import settings_page
from portal.administration.place import SETTINGS, Place, posted_to
from portal.administration.tenants import settings_page as team_settings_page
from portal.forms.form import Values
from portal.forms.idle_rule import AS_ABOVE, IdleRuleForm, TeamIdleRuleForm
from portal.forms.posting import perform
from portal.user_request import UserRequest
from scheduling.clusters.metrics import set_metrics_source
from scheduling.idle.actions import IdleRules, remove_idle_rule, set_idle_rule
from scheduling.models import Cluster, IdleRule


@posted_to(SETTINGS)
def of_tenant(request: UserRequest, place: Place, tenant: Tenant) -> HttpResponse:
    return perform(
        request,
        IdleRuleForm.of_tenant(IdleRules.read(), tenant, request),
        lambda values: _set(request.user, values, tenant=tenant),
        done=f"The rule for idle GPUs of the team {tenant.name} has been saved.",
        to=(place.name(SETTINGS), tenant.slug),
        page=partial(team_settings_page, place=place, tenant=tenant),
    )


@permitted("idle_rule.set")
@posted_from("admin_settings")
def of_cluster(request: UserRequest, pk: int) -> HttpResponse:
    cluster = get_object_or_404(Cluster, pk=pk)
    return perform(
        request,
        IdleRuleForm.of_cluster(IdleRules.read(), cluster, request),
        lambda values: _set(request.user, values, cluster=cluster),
        done=f"The rule for idle GPUs of the cluster {cluster.name} has been saved.",
        to=("admin_settings",),
        page=settings_page,
    )


@permitted("idle_rule.set")
@posted_from("admin_settings")
def of_some_team(request: UserRequest) -> HttpResponse:
    """Sets the rule of the team that the form names. Operators have no page of a team."""
    return perform(
        request,
        TeamIdleRuleForm(request),
        lambda values: _set(request.user, values, tenant=values.pop("tenant")),
        done="The rule for idle GPUs of the team has been saved.",
        to=("admin_settings",),
        page=settings_page,
    )


@permitted("idle_rule.set")
@posted_from("admin_settings")
def of_all(request: UserRequest) -> HttpResponse:
    return perform(
        request,
        IdleRuleForm.of_all(IdleRules.read(), request),
        lambda values: _set(request.user, values),
        done="The rule for idle GPUs of all teams has been saved.",
        to=("admin_settings",),
        page=settings_page,
    )


def _set(
    actor: User, values: Values, *, tenant: Tenant | None = None, cluster: Cluster | None = None
) -> None:
    if values["action"] != AS_ABOVE:
        set_idle_rule(actor=actor, tenant=tenant, cluster=cluster, **values)
    elif held := IdleRule.objects.filter(tenant=tenant, cluster=cluster).first():
        remove_idle_rule(actor=actor, rule=held)


@permitted("cluster.attach")
@posted_from("admin_cluster", "pk")
def metrics(request: UserRequest, pk: int) -> HttpResponse:
    cluster = get_object_or_404(Cluster, pk=pk)
    return perform(
        request,
        MetricsForm("metrics", request),
        lambda values: set_metrics_source(actor=request.user, cluster=cluster, **values),
        done=f"The settings for GPU metrics of the cluster {cluster.name} have been saved.",
        to=("admin_cluster", pk),
        page=partial(cluster_page, pk=pk),
    )
