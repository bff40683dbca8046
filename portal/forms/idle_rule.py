"""The form for a rule about idle GPUs. A rule is set for the whole portal, for a cluster, or for a team."""

from __future__ import annotations

from typing import Self

from django.http import HttpRequest

from accounting.core.name_order import by_name
from accounting.models import Tenant
from portal.forms.fields import Choice, Row, Switch, Whole
from portal.forms.form import Form
from scheduling.idle.actions import IdleRules
from scheduling.idle.preview import Effect
from scheduling.models import Cluster, IdleRule

AS_ABOVE = "above"
NUMBERS = ("after_minutes", "grace_minutes", "snooze_hours")
USUAL = IdleRule(action="warn", after_minutes=60, grace_minutes=30, snooze_hours=24, services=False)


class IdleRuleForm(Form):
    """The form for one rule about idle GPUs, at one level: the whole portal, a cluster, or a team.

    Its fields start with the values of the rule that is set at this level, or else of the inherited rule.
    """

    action = Choice("What happens when GPUs are idle")
    after_minutes = Whole("Idle time before a warning, minutes")
    grace_minutes = Whole("Time between the warning and the action, minutes")
    snooze_hours = Whole("Longest time that users may snooze a warning, hours")
    services = Switch("Also warn about idle service replicas")
    effect: Effect | None = None  # what the posted rule would do now, if the user asked for a preview

    def __init__(
        self,
        key: str,
        request: HttpRequest | None,
        *,
        rule: IdleRule | None,
        holds: IdleRule | None,
        above: str,
    ) -> None:
        """Creates the form for one level: the whole portal, a cluster, or a team.

        - `rule`: the rule that is set at this level, or None.
        - `holds`: the inherited rule, which applies if `rule` is None.
        - `above`: the label of the choice to inherit the rule instead of setting one.
        """
        shown = rule or holds or USUAL
        initial = {name: getattr(shown, name) for name in (*NUMBERS, "services")}
        super().__init__(key, request, initial=initial | {"action": rule.action if rule else AS_ABOVE})
        self.offer("action", [(AS_ABOVE, above), *IdleRule.Action.choices])

    @classmethod
    def of_all(cls, rules: IdleRules, request: HttpRequest | None = None) -> Self:
        return cls("idle-all", request, rule=rules.of_all, holds=None, above="no rule")

    @classmethod
    def of_cluster(cls, rules: IdleRules, cluster: Cluster, request: HttpRequest | None = None) -> Self:
        rule = rules.of_clusters.get(cluster.pk)
        return cls(
            f"idle-{cluster.pk}",
            request,
            rule=rule,
            holds=rules.of_all,
            above="use the rule that applies to all teams",
        )

    @classmethod
    def of_tenant(cls, rules: IdleRules, tenant: Tenant, request: HttpRequest | None = None) -> Self:
        holds = rules.rule_of(tenant.parent, None) if tenant.parent else rules.of_all
        is_of_team = holds is not None and holds.tenant is not None
        above = (
            f"use the rule of the team {holds}"
            if is_of_team
            else "use the cluster's rule, or else the rule that applies to all teams"
        )
        return cls("idle", request, rule=rules.of_tenants.get(tenant.pk), holds=holds, above=above)

    def clean(self) -> None:
        """Ignores problems of the number fields if the user chose to inherit the rule, because the numbers are not used
        then."""
        if self.cleaned_data.get("action") == AS_ABOVE:
            for name in NUMBERS:
                self.errors.pop(name, None)


class TeamIdleRuleForm(IdleRuleForm):
    """The form for the rule of a team that the user chooses."""

    tenant = Row("Team", Tenant.objects.all(), others={"": "Choose…"})

    def __init__(self, request: HttpRequest | None = None) -> None:
        super().__init__(
            "idle-team", request, rule=None, holds=None, above="no own rule: use the rule above the team"
        )
        self.offer("tenant", Tenant.objects.active().order_by(*by_name("name")))
