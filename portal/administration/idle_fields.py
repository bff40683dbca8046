"""The form of a rule for idle GPUs, on several pages."""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.actions.idle_gpus import IdleRules
from scheduling.models import Cluster, IdleRule


@dataclass(frozen=True)
class IdleForm:
    """`rule` is its own; `holds` what holds without one. None: nothing does."""

    rule: IdleRule | None
    holds: IdleRule | None

    @property
    def shown(self) -> IdleRule:
        """Whose figures the fields begin with."""
        usual = IdleRule(action="warn", after_minutes=60, grace_minutes=30, snooze_hours=24, services=False)
        return self.rule or self.holds or usual

    @property
    def actions(self) -> list[tuple[str, str]]:
        above = f"as {self.holds.whose}" if self.holds else "no rule"
        return [("above", above), *IdleRule.Action.choices]


def form_of_cluster(rules: IdleRules, cluster: Cluster) -> IdleForm:
    return IdleForm(rules.of_clusters.get(cluster.pk), rules.of_all)
