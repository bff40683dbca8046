"""Pages for the scheduling policy of a cluster: its options, a preview of another policy, and the shadow policy."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.core.exceptions import ValidationError
from django.forms import Field, HiddenInput, RadioSelect
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from accounting.access.permissions import may
from fairshare import policies
from fairshare.policies.base import Option, options_of
from portal import wording
from portal.access import permitted, posted_from
from portal.forms.fields import Choice, Measure, Switch, Text, Whole
from portal.forms.form import Form
from portal.forms.posting import act_on, perform, previewed, show
from portal.user_request import UserRequest
from scheduling.clusters import actions as clusters
from scheduling.models import Cluster
from scheduling.rounds.comparison import compare
from scheduling.shares.preview import preview_policy
from scheduling.shares.situations import OWN_SETTINGS, policy_of_cluster


def in_words(name: str) -> str:
    """Returns the label of a policy option, derived from its name: "Least gain" for "least_gain"."""
    return name.replace("_", " ").capitalize()


def _field_of(option: Option) -> Field:
    if option.kind is bool:
        return Switch(option.doc)
    label, help_text = in_words(option.name), f"{option.doc}."
    if option.choices:
        choices = [(one, in_words(one)) for one in option.choices]
        return Choice(label, choices, widget=RadioSelect, help_text=help_text)
    return (Whole if option.kind is int else Measure)(label, help_text=help_text)


class PolicyForm(Form):
    """The form for the options of a scheduling policy.

    If the policy is the cluster's current policy, the fields start with the current values.
    """

    policy = Text("Policy", widget=HiddenInput)

    def __init__(self, cluster: Cluster, name: str, request: UserRequest | None = None) -> None:
        self.name = name if name in policies.names() else cluster.policy
        self.options = [
            one for one in options_of(policies.policy_type(self.name)) if one.name not in OWN_SETTINGS
        ]
        present = cluster.policy_options if self.name == cluster.policy else {}
        initial = {one.name: present.get(one.name, one.default) for one in self.options}
        super().__init__("policy", request, initial=initial | {"policy": self.name})
        for one in self.options:
            if not self.is_bound or one.name in self.data or one.kind is bool:
                self.fields[one.name] = _field_of(one)

    def clean_policy(self) -> str:
        name: str = self.cleaned_data["policy"]
        if name not in policies.names():
            raise ValidationError(
                f"There is no policy {name!r}. Choose one of: {', '.join(policies.names())}."
            )
        return name

    def given(self) -> dict[str, Any]:
        """Returns the options whose values differ from the defaults, by name."""
        values = self.cleaned_data
        return {
            one.name: values[one.name]
            for one in self.options
            if one.name in values and values[one.name] != one.default
        }


class ShadowForm(Form):
    """The form that chooses the shadow policy: a second policy whose decisions are recorded for comparison but not
    carried out."""

    shadow = Choice("Policy")

    def __init__(self, cluster: Cluster, request: UserRequest | None = None) -> None:
        own = policy_of_cluster(cluster)
        self.versions = {
            f"{name}:{version}": [name, version]
            for name, version in policies.all_versions()
            if (name, version) != (own.name, own.version)
        }
        now = ":".join(map(str, cluster.shadow)) if cluster.shadow else ""
        super().__init__("shadow", request, initial={"shadow": now})
        named = [
            (key, f"{wording.POLICIES.get(str(name), name)}, version {version}")
            for key, (name, version) in self.versions.items()
        ]
        self.offer("shadow", [("", "None"), *named])

    def clean_shadow(self) -> list[Any] | None:
        text = self.cleaned_data["shadow"]
        if text and text not in self.versions:
            raise ValidationError(f"There is no policy {text!r}. Choose one from the list.")
        return self.versions.get(text)


def policy_page(request: UserRequest, *, pk: int, posted: Form | None = None) -> HttpResponse:
    cluster = get_object_or_404(Cluster.objects.attached(), pk=pk)
    form = PolicyForm(cluster, request.GET.get("policy", "")).or_posted(posted)
    context = {
        "tab": "settings",
        "cluster": cluster,
        "now": policy_of_cluster(cluster),
        "form": form,
        "others": [name for name in policies.names() if name != form.name],
        "shadow": ShadowForm(cluster).or_posted(posted),
        "comparison": compare(cluster) if cluster.shadow else None,
        "may_change": may(request.user, "cluster.update"),
    }
    return show(request, "administration/policy.html", context, posted=posted)


@permitted("cluster.read")
@require_safe
def policy(request: UserRequest, pk: int) -> HttpResponse:
    return policy_page(request, pk=pk)


@permitted("cluster.update")
@posted_from("admin_cluster_policy", "pk")
def change(request: UserRequest, pk: int) -> HttpResponse:
    cluster = get_object_or_404(Cluster.objects.attached(), pk=pk)
    form = PolicyForm(cluster, request.POST.get("policy", ""), request)
    return perform(
        request,
        form,
        lambda _: clusters.update_cluster(
            actor=request.user, cluster=cluster, policy=form.name, policy_options=form.given()
        ),
        done=f"The policy of the cluster {cluster.name} has been saved. It applies from the next round on.",
        to=("admin_cluster_policy", pk),
        page=partial(policy_page, pk=pk),
    )


@permitted("cluster.update")
@posted_from("admin_cluster_policy", "pk")
def preview(request: UserRequest, pk: int) -> HttpResponse:
    """Shows how shares would change if the cluster used the policy and options in the form."""
    cluster = get_object_or_404(Cluster.objects.attached(), pk=pk)
    form = PolicyForm(cluster, request.POST.get("policy", ""), request)
    if not act_on(form, lambda _: clusters.check_options(form.name, form.given())):
        return policy_page(request, pk=pk, posted=form)
    name, options = form.name, form.given()
    rows = preview_policy(cluster, name, options)
    context = {
        "tab": "settings",
        "cluster": cluster,
        "policy": name,
        "options": [(in_words(one), value) for one, value in options.items()],
        **previewed(form, rows),
    }
    return render(request, "administration/policy_preview.html", context)


@permitted("cluster.update")
@posted_from("admin_cluster_policy", "pk")
def shadow(request: UserRequest, pk: int) -> HttpResponse:
    """Sets or removes the cluster's shadow policy, whose decisions are recorded for comparison but not carried out."""
    cluster = get_object_or_404(Cluster.objects.attached(), pk=pk)
    return perform(
        request,
        ShadowForm(cluster, request),
        lambda values: clusters.update_cluster(actor=request.user, cluster=cluster, **values),
        done=lambda values: (
            "The shadow policy has been saved. It runs from the next round on."
            if values["shadow"]
            else "The shadow policy has been removed."
        ),
        to=("admin_cluster_policy", pk),
        page=partial(policy_page, pk=pk),
    )
