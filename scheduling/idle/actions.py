"""Actions on jobs with idle GPUs: set and remove idle rules, warn, stop a job or make it preemptible, snooze
warnings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from datetime import timedelta as td
from typing import Self

from django.db import transaction

from accounting.access import audit
from accounting.access.permissions import require
from accounting.actions.checks import check_choice, refused_if_taken
from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.models import Tenant, User
from scheduling.core.announcing import announce_warning
from scheduling.core.event_texts import sentence_of
from scheduling.core.locks import lock_schedule
from scheduling.idle.steps import Idleness, Step, Terms
from scheduling.jobs.actions import cancel_within
from scheduling.jobs.preemptible import set_preemptible_within
from scheduling.leases.history import note_now
from scheduling.models import Cluster, GpuUse, IdleRule, Job, Lease
from scheduling.models.event_codes import EventCode, Message
from scheduling.models.idle import LONGEST_MINUTES
from scheduling.models.ownership import require_changeable
from scheduling.models.versions import require_version

WHAT_FOLLOWS: dict[str, Step] = {
    IdleRule.Action.PREEMPTIBLE: Step.PREEMPTIBLE,
    IdleRule.Action.STOP: Step.STOP,
}
LONGEST_SNOOZE_HOURS = 366 * 24
FIELDS = ("action", "after_minutes", "grace_minutes", "snooze_hours", "services")


@transaction.atomic(durable=True)
def set_idle_rule(
    *,
    actor: User | None,
    tenant: Tenant | None = None,
    cluster: Cluster | None = None,
    action: str,
    after_minutes: int,
    grace_minutes: int,
    snooze_hours: int,
    services: bool = False,
    seen: Collection[str] | None = None,
) -> IdleRule:
    """Creates or replaces an idle rule and returns it. The rule is for one tenant with its subtree (`tenant`), for one
    cluster (`cluster`), or for all teams (both None).

    - `action`: nothing, only warn, warn and then stop the job, or warn and then make it preemptible.
    - `after_minutes`: idle time before the warning.
    - `grace_minutes`: idle time from the warning to the step after it.
    - `snooze_hours`: for how long the warning may be postponed; 0 means not at all.
    - `services`: whether to warn about replicas of services too. Replicas are never stopped.
    - `seen`: versions of which the present rule must have one; see accounting/models/versions.py.

    Raises NotAllowed unless the actor is an admin. Raises Refused, with the name of the field, for invalid values, or
    if both `tenant` and `cluster` are given.
    """
    require(actor, "idle_rule.set")
    held = IdleRule.objects.select_for_update(of=("self",)).filter(tenant=tenant, cluster=cluster).first()
    require_version(held, seen)
    before = _told(held) if held else {}
    rule = held or IdleRule(tenant=tenant, cluster=cluster)
    rule.action, rule.services, rule.snooze_hours = action, services, snooze_hours
    rule.after_minutes, rule.grace_minutes = after_minutes, grace_minutes
    check_rule(rule)
    with refused_if_taken("Somebody else has just set this rule. Check the rule and try again.", "action"):
        rule.save()
    audit.record(
        actor=actor,
        verb="idle_rule.set",
        target=tenant or cluster or rule,
        tenant=tenant,
        before=before,
        after=_told(rule),
    )
    return rule


def check_rule(rule: IdleRule) -> None:
    """Raises Refused, with the name of the field, if a value of the rule is invalid."""
    if rule.tenant is not None and rule.cluster is not None:
        raise Refused("Choose a team or a cluster, not both.", "cluster")
    check_choice("action", rule.action, IdleRule.Action.values, "action")
    for field in ("after_minutes", "grace_minutes"):
        if not 1 <= getattr(rule, field) <= LONGEST_MINUTES:
            raise Refused(f"Must be from 1 to {LONGEST_MINUTES} minutes.", field)
    if not 0 <= rule.snooze_hours <= LONGEST_SNOOZE_HOURS:
        raise Refused(f"The longest snooze must be from 0 to {LONGEST_SNOOZE_HOURS} hours.", "snooze_hours")


@transaction.atomic(durable=True)
def remove_idle_rule(*, actor: User | None, rule: IdleRule, seen: Collection[str] | None = None) -> None:
    """Removes an idle rule. The jobs that followed the rule then follow another rule, as IdleRules.rule_of finds it.

    `seen`: as for `set_idle_rule`.

    Raises NotAllowed unless the actor is an admin, and Refused if the rule no longer exists.
    """
    require(actor, "idle_rule.set")
    held = IdleRule.objects.select_for_update(of=("self",)).select_related("tenant", "cluster")
    found = held.filter(pk=rule.pk).first()
    if found is None:
        raise Refused("This rule no longer exists.")
    require_version(found, seen)
    target = found.tenant or found.cluster or found
    audit.record(
        actor=actor, verb="idle_rule.remove", target=target, tenant=found.tenant, before=_told(found)
    )
    found.delete()


def _told(rule: IdleRule) -> dict[str, object]:
    return {field: getattr(rule, field) for field in FIELDS}


@dataclass(frozen=True, slots=True)
class IdleRules:
    """All stored idle rules, with methods that find the rule for a job."""

    of_tenants: Mapping[int, IdleRule]
    of_clusters: Mapping[int, IdleRule]
    of_all: IdleRule | None

    @classmethod
    def read(cls) -> Self:
        return cls.of(IdleRule.objects.select_related("tenant", "cluster"))

    @classmethod
    def of(cls, found: Iterable[IdleRule]) -> Self:
        rules = list(found)
        return cls(
            of_tenants={rule.tenant_id: rule for rule in rules if rule.tenant_id is not None},
            of_clusters={rule.cluster_id: rule for rule in rules if rule.cluster_id is not None},
            of_all=next((rule for rule in rules if rule.tenant_id is None and rule.cluster_id is None), None),
        )

    def rule_of(self, tenant: Tenant, cluster_id: int | None) -> IdleRule | None:
        """Returns the first of these rules that exists, or None:

        - The rule of the tenant, or of its nearest ancestor that has a rule.
        - The rule of the cluster.
        - The rule of all teams.
        """
        for step in reversed(tenant.lineage):
            if step in self.of_tenants:
                return self.of_tenants[step]
        return self.of_clusters.get(cluster_id or 0, self.of_all)

    def terms_of(self, job: Job) -> Terms | None:
        """Returns the values of the idle rule that applies to a job; None if the job gets no idle warnings.

        `why_none` says in which cases a job gets none.
        """
        rule = self.rule_of(job.tenant, job.cluster_id)
        if rule is None or self.why_none(job):
            return None
        is_replica = job.kind == Job.Kind.REPLICA
        return Terms(
            after=td(minutes=rule.after_minutes),
            grace=td(minutes=rule.grace_minutes),
            snooze=td(hours=rule.snooze_hours),
            # A service would replace a stopped replica, so replicas are only warned about.
            then=Step.NOTHING if is_replica else WHAT_FOLLOWS.get(rule.action, Step.NOTHING),
        )

    def why_none(self, job: Job) -> str:
        """Returns why the job gets no idle warnings, worded for its readers; empty if it gets some."""
        rule = self.rule_of(job.tenant, job.cluster_id)
        if job.kind == Job.Kind.SESSION:
            return "idle rules leave out sessions, which have their own idle timeout"
        if rule is None:
            return "no idle rule is set"
        if rule.action == IdleRule.Action.NOTHING:
            return "the idle rule does nothing"
        if rule.action == IdleRule.Action.PREEMPTIBLE and job.preemptible:
            return "the idle rule leaves out preemptible jobs, which keep no GPUs from others"
        if job.kind == Job.Kind.REPLICA and not rule.services:
            return "the idle rule leaves out replicas of services"
        return ""


def idleness_of(use: GpuUse) -> Idleness:
    """Returns the Idleness of a job from its GpuUse row. Makes no query if the row was read with
    select_related("lease")."""
    return Idleness(
        since=use.idle_since,
        lasted=use.idle_for,
        measured_until=use.measured_until,
        is_of_this_attempt=use.lease.state == Lease.State.RUNNING,
        first_told=use.first_told_at,
        warned=use.warned_at,
        lasted_warned=use.idle_warned,
        snoozed_until=use.snoozed_until,
    )


def idle_to_step(now: datetime) -> list[int]:
    """Returns the ids of jobs with idle GPUs for which a step is due: a warning, or the step after the warning."""
    rules = IdleRules.read()
    idle = GpuUse.objects.idle().select_related("job__tenant", "lease").defer("job__spec")
    return [use.job_id for use in idle if _step(use, rules, now) is not Step.NOTHING]


def _step(use: GpuUse, rules: IdleRules, now: datetime) -> Step:
    terms = rules.terms_of(use.job)
    return Step.NOTHING if terms is None else idleness_of(use).step(terms, now)


@transaction.atomic(durable=True)
def step_idle(*, job_id: int) -> Step:
    """Executes and returns the step that is due for a job with idle GPUs.

    The step is to warn the owner and the managers, to stop the job, to make it preemptible, or nothing. Any number of
    workers may call this at any time.
    """
    lock_schedule(Job.objects.values_list("cluster_id", flat=True).get(pk=job_id))
    use = (
        GpuUse.objects.idle()
        .select_for_update(of=("self",))
        .select_related("job__tenant", "job__owner", "lease")
        .filter(job=job_id)
        .first()
    )
    if use is None:
        return Step.NOTHING
    now, rules = now_from_database(), IdleRules.read()
    step, terms = _step(use, rules, now), rules.terms_of(use.job)
    if step is Step.WARN and terms is not None:
        _warn(use, terms, now)
    elif step is Step.STOP:
        why = Message.of(EventCode.IDLE_STOPPED, seconds=use.idle_for.total_seconds())
        cancel_within(actor=None, job=use.job, why=why)
        after = {"idle_since": use.idle_since, "idle_seconds": round(use.idle_for.total_seconds())}
        audit.record(actor=None, verb="job.idle_stop", target=use.job, tenant=use.job.tenant, after=after)
    elif step is Step.PREEMPTIBLE:
        why = Message.of(EventCode.IDLE_PREEMPTIBLE, seconds=use.idle_for.total_seconds())
        set_preemptible_within(actor=None, job=use.job, preemptible=True, why=why)
        # If somebody ends the job's preemptible state, its owner is warned again first.
        GpuUse.objects.filter(pk=use.pk).update(warned_at=None)
        text = (
            f"{sentence_of(why)}. To let the job take part in the sharing again, end preemptible mode on the job's"
            " page"
        )
        announce_warning(use.job, "Idle GPUs", text, topic="preemptible", at=now)
    return step


def _warn(use: GpuUse, terms: Terms, now: datetime) -> None:
    job = use.job
    if use.first_told_at is None or (use.idle_since is not None and use.first_told_at < use.idle_since):
        use.first_told_at = now
    use.warned_at, use.idle_warned = now, td(0)
    use.save(update_fields=["warned_at", "first_told_at", "idle_warned"])
    left = idleness_of(use).grace_left(terms)
    said = Message.of(EventCode.IDLE_WARNED, seconds=use.idle_for.total_seconds())
    if left is not None:
        said = said.but(then=terms.then.value, left=left.total_seconds())
    note_now(job, "warned", said, at=now)
    announce_warning(job, "Idle GPUs", sentence_of(said), topic="idle", at=now)


@transaction.atomic(durable=True)
def snooze_idle(*, actor: User, job: Job, until: datetime, reason: str) -> GpuUse:
    """Postpones the idle warning of a job, and the step after the warning, to `until`. Stores the actor's reason.

    Raises NotAllowed unless the actor is the owner, a manager of the team or an operator. Raises Refused if the job has
    no idle GPUs or no idle rule applies. Also raises Refused if `until` is in the past or later than the rule allows,
    or if the reason is empty or too long.
    """
    require_changeable(actor, job, "snooze the idle warning of this job")
    reason = reason.strip()
    use = (
        GpuUse.objects.unused()
        .select_for_update(of=("self",))
        .select_related("job__tenant", "lease")
        .filter(job=job)
        .first()
    )
    if use is None:
        raise Refused("The job's GPUs are not idle, so there is no warning to snooze.")
    terms = IdleRules.read().terms_of(use.job)
    if terms is None:
        raise Refused("No idle rule applies to the job, so there is no warning to snooze.")
    now = now_from_database()
    longest = idleness_of(use).snooze_ends(terms, now)
    if until <= now:
        raise Refused("The time must be in the future.", "until")
    if until > longest:
        if longest > now:
            raise Refused(
                f"The warning can be snoozed until {longest:%Y-%m-%d %H:%M} UTC at the latest.", "until"
            )
        raise Refused("The idle rule allows no further snooze of this warning.", "until")
    if not reason or len(reason) > 300:
        raise Refused("Give a reason of 1 to 300 characters.", "reason")
    before = {"until": use.snoozed_until, "reason": use.snooze_reason} if use.snoozed_until else {}
    if use.first_told_at is None or (use.idle_since is not None and use.first_told_at < use.idle_since):
        use.first_told_at = now
    use.snoozed_until, use.snooze_reason, use.snoozed_by = until, reason, actor
    use.save(update_fields=["snoozed_until", "snooze_reason", "snoozed_by", "first_told_at"])
    said = Message.of(
        EventCode.IDLE_SNOOZED,
        user=actor.get_username(),
        until=until.astimezone(UTC).isoformat(),
        reason=reason,
    )
    note_now(use.job, "snoozed", said, at=now)
    after = {"until": until, "reason": reason}
    audit.record(
        actor=actor, verb="job.idle_snooze", target=use.job, tenant=use.job.tenant, before=before, after=after
    )
    return use
