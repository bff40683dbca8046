"""The policy of a cluster: its options, what another would do to shares, and a second one beside it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from accounting.access.permissions import may
from accounting.core.errors import Refused
from fairshare import policies
from fairshare.policies.base import Option, options_of
from portal.access import permitted, posted_from
from portal.administration.forms import Refusal, decimal, perform, previewed, refusal, show, whole
from scheduling.clusters import actions as clusters
from scheduling.models import Cluster
from scheduling.rounds.comparison import compare
from scheduling.shares.preview import preview_policy
from scheduling.shares.situations import OWN_SETTINGS, policy_of_cluster


@dataclass(frozen=True)
class Field:
    """One option in the form, with its present value."""

    option: Option
    value: Any

    @property
    def is_switch(self) -> bool:
        return self.option.kind is bool

    @property
    def text(self) -> str:
        """The value of a number as one would type it."""
        return f"{self.value:.6f}".rstrip("0").rstrip(".")

    @property
    def label(self) -> str:
        return in_words(self.option.name)

    @property
    def choices(self) -> list[tuple[str, str]]:
        return [(one, in_words(one)) for one in self.option.choices]


def in_words(name: str) -> str:
    """`least_gain` as "Least gain"."""
    return name.replace("_", " ").capitalize()


def policy_page(request: HttpRequest, *, pk: int, refusal: Refusal | None = None) -> HttpResponse:
    cluster = get_object_or_404(Cluster.objects.attached(), pk=pk)
    asked = request.POST.get("policy") or request.GET.get("policy", "")
    chosen = asked if asked in policies.names() else cluster.policy
    set_now = cluster.policy_options if chosen == cluster.policy else {}
    context = {
        "tab": "settings",
        "cluster": cluster,
        "now": policy_of_cluster(cluster),
        "chosen": chosen,
        "others": [name for name in policies.names() if name != chosen],
        "fields": [Field(one, set_now.get(one.name, one.default)) for one in _options(chosen)],
        "beside": _beside(cluster),
        "comparison": compare(cluster) if cluster.shadow else None,
        "may_change": may(request.user, "cluster.update"),
    }
    return show(request, "administration/policy.html", context, refusal=refusal)


@permitted("cluster.read")
@require_safe
def policy(request: HttpRequest, pk: int) -> HttpResponse:
    return policy_page(request, pk=pk)


@permitted("cluster.update")
@posted_from("admin_cluster_policy", "pk")
def change(request: HttpRequest, pk: int) -> HttpResponse:
    cluster = get_object_or_404(Cluster.objects.attached(), pk=pk)
    return perform(
        request,
        "policy",
        lambda post: clusters.update_cluster(
            actor=request.user, cluster=cluster, policy=post.get("policy", ""), policy_options=_read(post)
        ),
        done=f"{cluster.name} is scheduled so from the next round on.",
        to=("admin_cluster_policy", pk),
        page=partial(policy_page, pk=pk),
    )


@permitted("cluster.update")
@posted_from("admin_cluster_policy", "pk")
def preview(request: HttpRequest, pk: int) -> HttpResponse:
    """What the form's policy and options would do to shares."""
    cluster = get_object_or_404(Cluster.objects.attached(), pk=pk)
    name = request.POST.get("policy", "")
    try:
        options = _read(request.POST)
        clusters.check_options(name, options)
    except Refused as error:
        told = refusal(request, "policy", error.field, error.message)
        return policy_page(request, pk=pk, refusal=told)
    rows = preview_policy(cluster, name, options)
    context = {
        "tab": "settings",
        "cluster": cluster,
        "policy": name,
        "options": [(in_words(one), value) for one, value in options.items()],
        **previewed(request, rows),
    }
    return render(request, "administration/policy_preview.html", context)


@permitted("cluster.update")
@posted_from("admin_cluster_policy", "pk")
def shadow(request: HttpRequest, pk: int) -> HttpResponse:
    """Which policy is asked beside the cluster's own, without effect."""
    cluster = get_object_or_404(Cluster.objects.attached(), pk=pk)
    return perform(
        request,
        "shadow",
        lambda post: clusters.update_cluster(
            actor=request.user, cluster=cluster, shadow=_version(post.get("shadow", ""))
        ),
        done="It is asked from the next round on."
        if request.POST.get("shadow")
        else "No other policy is asked.",
        to=("admin_cluster_policy", pk),
        page=partial(policy_page, pk=pk),
    )


def _options(name: str) -> list[Option]:
    return [one for one in options_of(policies.policy_type(name)) if one.name not in OWN_SETTINGS]


def _read(post: QueryDict) -> dict[str, Any]:
    """The options in the form, in their own types; those that are as by default are left out."""
    name = post.get("policy", "")
    if name not in policies.names():
        raise Refused(
            f"There is no policy {name!r}; there are {', '.join(policies.names())}.", field="policy"
        )
    read: dict[str, Any] = {}
    for one in _options(name):
        if one.kind is bool:
            value: Any = post.get(one.name) == "on"
        elif one.name not in post:
            continue
        elif one.choices:
            value = post.get(one.name)
        else:
            value = whole(post, one.name) if one.kind is int else float(decimal(post, one.name))
        if value != one.default:
            read[one.name] = value
    return read


def _beside(cluster: Cluster) -> list[tuple[str, str, bool]]:
    """What may be asked beside, as value and label, and whether it is."""
    own = policy_of_cluster(cluster)
    return [
        (f"{name}:{version}", f"{name}, version {version}", cluster.shadow == [name, version])
        for name, version in policies.all_versions()
        if (name, version) != (own.name, own.version)
    ]


def _version(text: str) -> list[Any] | None:
    name, _, version = text.partition(":")
    found = [list(one) for one in policies.all_versions() if one[0] == name and str(one[1]) == version]
    if text and not found:
        raise Refused(f"There is no policy {text!r}.", field="shadow")
    return found[0] if found else None
