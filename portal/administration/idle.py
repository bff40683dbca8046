"""Pages for the rules about idle GPUs, and for the source of each cluster's GPU metrics."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django.http import HttpResponse
from django.shortcuts import get_object_or_404

from accounting.core.errors import Refused
from accounting.models import Tenant, User
from portal.access import permitted, posted_from
from portal.administration.cluster_forms import MetricsForm
from portal.administration.clusters import cluster_page
from portal.administration.nodes import settings_page
from portal.administration.place import SETTINGS, Place, posted_to
from portal.administration.tenants import settings_page as team_settings_page
from portal.forms.form import Values
from portal.forms.idle_rule import AS_ABOVE, IdleRuleForm, TeamIdleRuleForm
from portal.forms.posting import act_on, perform
from portal.user_request import UserRequest
from scheduling.clusters.metrics import set_metrics_source
from scheduling.idle.actions import IdleRules, remove_idle_rule, set_idle_rule
from scheduling.idle.preview import effect_of
from scheduling.models import Cluster, IdleRule


@posted_to(SETTINGS)
def of_tenant(request: UserRequest, place: Place, tenant: Tenant) -> HttpResponse:
    return _set_or_preview(
        request,
        IdleRuleForm.of_tenant(IdleRules.read(), tenant, request),
        lambda values: {"tenant": tenant},
        done=f"The rule for idle GPUs of the team {tenant.name} has been saved.",
        to=(place.name(SETTINGS), tenant.slug),
        page=partial(team_settings_page, place=place, tenant=tenant),
    )


@permitted("idle_rule.set")
@posted_from("admin_settings")
def of_cluster(request: UserRequest, pk: int) -> HttpResponse:
    cluster = get_object_or_404(Cluster, pk=pk)
    return _set_or_preview(
        request,
        IdleRuleForm.of_cluster(IdleRules.read(), cluster, request),
        lambda values: {"cluster": cluster},
        done=f"The rule for idle GPUs of the cluster {cluster.name} has been saved.",
    )


@permitted("idle_rule.set")
@posted_from("admin_settings")
def of_some_team(request: UserRequest) -> HttpResponse:
    """Sets the rule of the team that the form names. Operators have no page of a team."""
    return _set_or_preview(
        request,
        TeamIdleRuleForm(request),
        lambda values: {"tenant": values.pop("tenant")},
        done="The rule for idle GPUs of the team has been saved.",
    )


@permitted("idle_rule.set")
@posted_from("admin_settings")
def of_all(request: UserRequest) -> HttpResponse:
    return _set_or_preview(
        request,
        IdleRuleForm.of_all(IdleRules.read(), request),
        lambda values: {},
        done="The rule for idle GPUs of all teams has been saved.",
    )


def _set_or_preview(
    request: UserRequest,
    form: IdleRuleForm,
    level: Callable[[Values], Values],
    *,
    done: str,
    to: tuple[Any, ...] = ("admin_settings",),
    page: Callable[..., HttpResponse] = settings_page,
) -> HttpResponse:
    """Sets the posted rule; or, if the user pressed *Preview*, shows the form again with what the rule would do now.

    `level`: takes the tenant of a rule from the form's values, and returns the rule's tenant or cluster as arguments.
    """
    if "preview" not in request.POST:
        return perform(
            request,
            form,
            lambda values: _set(request.user, values, **level(values)),
            done=done,
            to=to,
            page=page,
        )

    def show_effect(values: Values) -> None:
        if values["action"] == AS_ABOVE:
            raise Refused("Choose what happens when GPUs are idle to preview it.", "action")
        form.effect = effect_of(IdleRule(**level(values), **values))

    act_on(form, show_effect)
    return page(request, posted=form)


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
