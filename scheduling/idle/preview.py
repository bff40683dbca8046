"""Previews whom an idle rule would warn or stop now. Stores nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

from accounting.core.clock import now_from_database
from scheduling.idle.actions import WHAT_FOLLOWS, IdleRules, check_rule, idleness_of
from scheduling.idle.steps import Step
from scheduling.models import GpuUse, IdleRule, Job


@dataclass(frozen=True, slots=True)
class Effect:
    """How many running jobs a rule applies to, and what would happen to those with idle GPUs if they stay idle.

    - `running`: the running jobs that follow the rule.
    - `idle`: how many of them have idle GPUs.
    - `warned`: how many would be warned at once.
    - `then`: the step after the warning: nothing, stop, or make preemptible.
    - `due`: for how many this step would follow at once, because their owners have been warned already.
    """

    running: int
    idle: int
    warned: int
    then: Step
    due: int
    grace: timedelta


def effect_of(rule: IdleRule) -> Effect:
    """Returns what the unsaved `rule` would do now in place of the rule for the same team, cluster or all teams.

    Raises Refused, with the name of the field, if a value of the rule is invalid.
    """
    check_rule(rule)
    now = now_from_database()
    stored = IdleRule.objects.select_related("tenant", "cluster")
    others = stored.exclude(tenant=rule.tenant, cluster=rule.cluster)
    rules = IdleRules.of([*others, rule])
    jobs = Job.objects.filter(state=Job.State.RUNNING).select_related("tenant").defer("spec")
    follow = {
        job.pk
        for job in jobs
        if rules.rule_of(job.tenant, job.cluster_id) is rule and rules.terms_of(job) is not None
    }
    steps = Counter[Step]()
    for use in GpuUse.objects.idle().select_related("job__tenant", "lease").defer("job__spec"):
        terms = rules.terms_of(use.job) if use.job_id in follow else None
        if terms is not None:
            steps[idleness_of(use).step(terms, now)] += 1
    then = WHAT_FOLLOWS.get(rule.action, Step.NOTHING)
    return Effect(
        running=len(follow),
        idle=steps.total(),
        warned=steps[Step.WARN],
        then=then,
        due=steps[then] if then is not Step.NOTHING else 0,
        grace=timedelta(minutes=rule.grace_minutes),
    )
