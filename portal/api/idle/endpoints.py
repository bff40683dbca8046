"""Endpoints for idle GPUs: read the measured use of allocated GPUs, set idle rules, and snooze the idle rule for a
job."""

from __future__ import annotations

from typing import Any

from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from ninja import Query, Router
from ninja.responses import Status

from accounting.models import Tenant
from portal.api.auth import Bearer, Session, require_permission
from portal.api.fields import FileFormat
from portal.api.idle import schemas
from portal.api.jobs.endpoints import visible_job
from portal.api.reports.schemas import Days
from portal.api.versions import IfMatch, versions_in
from portal.jobs.idle import IdleUse, idle_uses, use_of
from portal.models import Scope
from portal.reports.idle import TeamIdle, idle_by_team, idle_now
from portal.reports.idle_tables import idle_in_format
from portal.reports.periods import asked_period
from portal.reports.scope import chosen_tenant
from portal.user_request import ApiRequest
from scheduling.idle.actions import remove_idle_rule, set_idle_rule, snooze_idle
from scheduling.idle.preview import effect_of
from scheduling.idle.steps import Step
from scheduling.models import Cluster, IdleRule
from scheduling.models.versions import version_of

router = Router(tags=["Idle GPUs"])
MOST = 500


@router.get("/idle", response=list[schemas.IdleJob], url_name="idle")
def idle(
    request: ApiRequest,
    days: Query[Days],
    team: str | None = None,
    format: FileFormat = "json",  # noqa: A002
) -> list[dict[str, Any]] | HttpResponseBase:
    """Returns jobs with idle GPUs, longest idle time first.

    With `team`, these are jobs of this team and the teams below it; otherwise, jobs of all the caller's teams. JSON has
    at most 500 jobs. The other formats have all jobs, and also the idle time of each team, as in `/idle/teams`.
    """
    if format != "json":
        return idle_in_format(request.auth, request.GET, format)
    tenant = chosen_tenant(request.auth, request.GET)
    return [_show(seen) for seen in idle_uses(idle_now(request.auth, tenant)[:MOST])]


@router.get("/idle/teams", response=list[schemas.IdleTeam], url_name="idle_teams")
def teams(request: ApiRequest, days: Query[Days], team: str | None = None) -> list[dict[str, Any]]:
    """Returns the idle GPU time and its cost for each of the caller's teams, most idle time first.

    The idle time of a team does not include that of the teams below it.
    """
    tenant = chosen_tenant(request.auth, request.GET)
    return [_team(one) for one in idle_by_team(request.auth, asked_period(request.GET), tenant)]


@router.get("/jobs/{int:job_id}/gpu-use", response=schemas.GpuUse | None, url_name="job_gpu_use")
def gpu_use(request: ApiRequest, job_id: int) -> dict[str, Any] | None:
    """Returns the last measured GPU use of a job. Returns null if the job has ended or was never measured."""
    seen = use_of(visible_job(request, job_id))
    return None if seen is None else _use(seen)


@router.post(
    "/jobs/{int:job_id}/snooze",
    response=schemas.GpuUse,
    url_name="job_snooze",
    auth=[Bearer(Scope.WORK), Session()],
)
def snooze(request: ApiRequest, job_id: int, asked: schemas.Snooze) -> dict[str, Any] | None:
    """Postpones the idle warning of a job, and the action after the warning, until a given time.

    For the job's owner, managers of its team, and operators.
    """
    job = visible_job(request, job_id)
    snooze_idle(actor=request.auth, job=job, until=asked.until, reason=asked.reason)
    seen = use_of(job)
    return None if seen is None else _use(seen)


@router.get("/idle-rules", response=list[schemas.IdleRule], url_name="idle_rules")
def rules(request: ApiRequest) -> list[dict[str, Any]]:
    """Returns all idle rules. A rule says what happens to jobs whose GPUs stay idle. For operators."""
    require_permission(request, "idle_rule.read")
    found = IdleRule.objects.select_related("tenant", "cluster").order_by("pk")
    return [_rule(rule) for rule in found]


@router.put("/idle-rules", response=schemas.IdleRule, url_name="idle_rules")
def set_rule(request: ApiRequest, new: schemas.NewIdleRule, if_match: IfMatch = None) -> dict[str, Any]:
    """Sets the idle rule of a team, of a cluster or of the whole portal: what happens to jobs whose GPUs stay idle.

    Without `team` and `cluster`, sets the rule of the whole portal. For operators.
    """
    require_permission(request, "idle_rule.set")
    return _rule(set_idle_rule(actor=request.auth, seen=versions_in(if_match), **_values(new)))


@router.post("/idle-rules/preview", response=schemas.IdleRuleEffect, url_name="idle_rules_preview")
def preview_rule(request: ApiRequest, new: schemas.NewIdleRule) -> dict[str, Any]:
    """Returns how many running jobs an idle rule would warn or stop now. Changes nothing. For operators."""
    require_permission(request, "idle_rule.set")
    effect = effect_of(IdleRule(**_values(new)))
    names = ("running", "idle", "warned", "due")
    return {name: getattr(effect, name) for name in names} | {
        "then": None if effect.then is Step.NOTHING else effect.then.value,
        "grace_minutes": new.grace_minutes,
    }


@router.delete("/idle-rules/{int:rule_id}", response={204: None}, url_name="idle_rule")
def remove_rule(request: ApiRequest, rule_id: int, if_match: IfMatch = None) -> Status[Any]:
    """Removes an idle rule. For operators.

    Afterwards an inherited rule applies. It is the first of these that exists:

    - the rule of the nearest team above that has one,
    - the rule of the cluster,
    - the rule of the whole portal.
    """
    require_permission(request, "idle_rule.set")
    rule = get_object_or_404(IdleRule, pk=rule_id)
    remove_idle_rule(actor=request.auth, rule=rule, seen=versions_in(if_match))
    return Status(204, None)


def _values(new: schemas.NewIdleRule) -> dict[str, Any]:
    return new.dict(exclude={"team", "cluster"}) | {
        "tenant": get_object_or_404(Tenant, slug=new.team) if new.team else None,
        "cluster": get_object_or_404(Cluster, name=new.cluster) if new.cluster else None,
    }


def _show(seen: IdleUse) -> dict[str, Any]:
    job, lease = seen.use.job, seen.use.lease
    return _use(seen) | {
        "job": job.pk,
        "name": job.name,
        "team": job.tenant.slug,
        "owner": job.owner.get_username(),
        "cluster": job.cluster.name,
        "gpus": lease.gpus,
        "generation": lease.generation.name,
    }


def _team(one: TeamIdle) -> dict[str, Any]:
    row = one.booked
    names = ("part", "idle_cost", "cost", "currency")
    return {name: getattr(row, name) for name in names} | {
        "team": row.slug,
        "idle_gpu_seconds": row.idle,
        "processless_gpu_seconds": one.processless,
        "allocated_gpu_seconds": row.held,
    }


def _use(seen: IdleUse) -> dict[str, Any]:
    use = seen.use
    return {
        "measured_until": use.measured_until,
        "measure": use.measure,
        "percent": use.percent,
        "idle_since": use.idle_since,
        "processless_since": use.processless_since,
        "idle_seconds": use.idle_for.total_seconds(),
        "warned_at": use.warned_at if seen.is_warned else None,
        "acts_at": seen.acts_at,
        "then": seen.terms.then.value if seen.terms and seen.acts_at else None,
        "snoozed_until": use.snoozed_until if seen.is_snoozed else None,
        "snooze_reason": use.snooze_reason if seen.is_snoozed else "",
        "snooze_at_most": seen.snooze_ends,
    }


def _rule(rule: IdleRule) -> dict[str, Any]:
    names = ("id", "action", "after_minutes", "grace_minutes", "snooze_hours", "services")
    return {name: getattr(rule, name) for name in names} | {
        "version": version_of(rule),
        "team": rule.tenant.slug if rule.tenant else "",
        "cluster": rule.cluster.name if rule.cluster else "",
    }
