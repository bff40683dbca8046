"""The form of a rule for idle GPUs, on several pages."""

from __future__ import annotations

from dataclasses import dataclass

from accounting.models import Tenant
from scheduling.idle.actions import IdleRules
from scheduling.models import Cluster, IdleRule


@dataclass(frozen=True)
class IdleForm:
    """`rule` is its own; `holds` what holds without one. None: nothing does."""

    rule: IdleRule | None
    holds: IdleRule | None
    above: str  # what it is to have none of its own

    @property
    def shown(self) -> IdleRule:
        """Whose figures the fields begin with."""
        usual = IdleRule(action="warn", after_minutes=60, grace_minutes=30, snooze_hours=24, services=False)
        return self.rule or self.holds or usual

    @property
    def actions(self) -> list[tuple[str, str]]:
        return [("above", self.above), *IdleRule.Action.choices]


def form_of_cluster(rules: IdleRules, cluster: Cluster) -> IdleForm:
    return IdleForm(rules.of_clusters.get(cluster.pk), rules.of_all, "as all teams")


def form_of_tenant(rules: IdleRules, tenant: Tenant) -> IdleForm:
    holds = rules.rule_of(tenant.parent, None) if tenant.parent else rules.of_all
    is_of_team = holds is not None and holds.tenant is not None
    return IdleForm(
        rules.of_tenants.get(tenant.pk),
        holds,
        f"as {holds}" if is_of_team else "as the cluster, or all teams",
    )


def form_of_all(rules: IdleRules) -> IdleForm:
    return IdleForm(rules.of_all, None, "no rule")
