"""Actions of users on sweeps: create, cancel, and run failed members again. The controller
(scheduling/sweeps/controller.py) then submits and cancels the jobs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Count

from accounting.access import audit
from accounting.core.bulk import insert_values
from accounting.core.clock import now_from_database
from accounting.core.errors import NotAllowed, Refused
from accounting.core.wording import fixed
from accounting.models import Membership, Tenant, User
from scheduling.core import pubsub
from scheduling.core.enqueue import wake_sweep
from scheduling.jobs.code_from_git import fetches_code
from scheduling.jobs.drafts import forget_draft
from scheduling.jobs.later import check_later, require_code, why_never
from scheduling.models import Cluster, Sweep, SweepMember
from scheduling.models.ownership import require_changeable
from scheduling.spec.job_spec import JobSpec, SpecError
from scheduling.spec.members import INDEX, why_no_metric
from scheduling.spec.placeholders import unknown_in
from scheduling.sweeps.commands import check_lengths, check_members, check_places, spec_of_member
from scheduling.sweeps.parameters import Parameters, Values

MOST_AT_ONCE = 1_000_000
LAST_STEP = 10**12
PREVIEWED = 5  # members that a preview shows


@dataclass(frozen=True)
class Rules:
    """How many members are at work at once, by which metric they are compared, and when the sweep stops.

    - `at_once`: most members that wait or run at the same time; None for no limit but those of the team.
    - `metric`, `goal`: the metric that the programs print, and whether lower or higher values are better.
    - `stop_at`: a member at work, or one that has succeeded, whose metric has this value or a better one stops the
      sweep; None for no such rule.
    - `stop_cancels`: whether the other members that wait or run are cancelled then.
    - `median_after`: the step from which on a member stops early if it is worse than the median of the others
      (scheduling/sweeps/stopping.py); None for no such rule.
    """

    at_once: int | None = None
    metric: str = ""
    goal: str = Sweep.Goal.MIN
    stop_at: float | None = None
    stop_cancels: bool = False
    median_after: int | None = None

    def check(self) -> None:
        """Raises SpecError, with each invalid field."""
        problems = {}
        if self.at_once is not None and not 1 <= self.at_once <= MOST_AT_ONCE:
            problems["at_once"] = (
                f"must be a whole number from 1 to {fixed(MOST_AT_ONCE)}, or empty for no limit"
            )
        if self.metric and (why := why_no_metric(self.metric)):
            problems["metric"] = why
        if self.goal not in Sweep.Goal.values:
            problems["goal"] = f"must be {' or '.join(Sweep.Goal.values)}"
        if self.stop_at is not None and not math.isfinite(self.stop_at):
            problems["stop_at"] = "must be a finite number, or empty"
        elif self.stop_at is not None and not self.metric:
            problems["metric"] = "must be set, because the sweep stops at a value of this metric"
        if self.median_after is not None and not 0 <= self.median_after <= LAST_STEP:
            problems["median_after"] = f"must be a whole number from 0 to {fixed(LAST_STEP)}, or empty"
        elif self.median_after is not None and not self.metric:
            problems["metric"] = "must be set, because members are stopped early by this metric"
        if problems:
            raise SpecError(problems)


@dataclass(frozen=True)
class Preview:
    """What a sweep would submit: the number of its members, and the first ones with their specifications.

    `notes` are sentences on what is allowed but seldom meant.
    """

    size: int
    first: Sequence[tuple[Values, JobSpec]]
    notes: Sequence[str]


def preview_sweep(*, spec: JobSpec, parameters: Parameters) -> Preview:
    """Returns what a sweep would submit. Raises SpecError, with each invalid field, if it is invalid."""
    members = _members(spec, parameters)
    first = [
        (values, spec_of_member(spec, index, values)) for index, values in enumerate(members[:PREVIEWED])
    ]
    return Preview(len(members), first, list(_notes(spec, members)))


def _notes(spec: JobSpec, members: Sequence[Values]) -> Iterator[str]:
    names = [*members[0], INDEX]
    for name in unknown_in("\n".join([spec.command, *(role.command for role in spec.roles)]), names):
        yield f"{{{name}}} is no parameter of this sweep, so it stays in the command as it is."
    different = {tuple(map(repr, values.values())) for values in members}
    if members[0] and len(different) < len(members):
        yield f"Only {fixed(len(different))} of the {fixed(len(members))} members have different parameters."


@fetches_code
@transaction.atomic(durable=True)
def create_sweep(
    *,
    actor: User,
    tenant: Tenant,
    cluster: Cluster,
    spec: JobSpec,
    parameters: Parameters,
    rules: Rules,
    request_key: str | None = None,
    even_if_never: bool = True,
) -> Sweep:
    """Creates a sweep owned by `actor` in `tenant`, with all its members. Their jobs are submitted later, a few at a
    time. If `request_key` was used before, returns the earlier sweep. The draft with this key is deleted.

    Raises NotAllowed unless the actor is a member of the tenant, and Refused if the tenant or the cluster accepts no
    jobs. Raises SpecError if the spec, the parameters or the rules are invalid. If `even_if_never` is False, also
    raises Refused if a member could never run.
    """
    if not Tenant.objects.visible_to(actor, role=Membership.Role.MEMBER).filter(pk=tenant.pk).exists():
        raise NotAllowed(f"Only members of {tenant.name} may submit jobs there.")
    if tenant.archived_at:
        raise Refused(f"{tenant.name} is archived; it accepts no new jobs.", "tenant")
    if cluster.detached_at:
        raise Refused(f"{cluster.name} is detached; it accepts no jobs.", "cluster")
    rules.check()
    members = _members(spec, parameters)
    forget_draft(actor, request_key)
    _check_place(actor, tenant, cluster, spec, even_if_never=even_if_never)
    written = {name: getattr(rules, name) for name in Rules.__dataclass_fields__}
    sweep = Sweep(
        tenant=tenant,
        owner=actor,
        cluster=cluster,
        name=spec.name,
        spec=spec.to_dict(),
        parameters=parameters.to_dict(),
        names=parameters.names,
        size=len(members),
        counts={SweepMember.State.PENDING.value: len(members)},
        request_key=request_key,
        **written,
    )
    try:
        with transaction.atomic():
            sweep.save(force_insert=True)
    except IntegrityError:
        if request_key is None:
            raise
        return Sweep.objects.get(owner=actor, request_key=request_key)
    rows = ((sweep.pk, index, dict(values)) for index, values in enumerate(members))
    insert_values(SweepMember, ["sweep", "index", "parameters"], rows)
    _tell(actor, "sweep.create", sweep, after=written | {"members": sweep.size})
    return sweep


@transaction.atomic(durable=True)
def cancel_sweep(*, actor: User, sweep: Sweep) -> Sweep:
    """Cancels the sweep: no more members are submitted, and those that wait or run are cancelled. Does nothing if the
    sweep is cancelled already or has ended."""
    sweep = lock_changeable(actor, sweep)
    if sweep.ended_at is None and sweep.state != Sweep.State.CANCELLED:
        cancel(actor, sweep)
    return sweep


@transaction.atomic(durable=True)
def run_failed_again(*, actor: User, sweep: Sweep) -> Sweep:
    """Makes all failed members pending again, so that each is submitted as a new job.

    Raises Refused if no member has failed, or if the sweep was cancelled or stopped.
    """
    sweep = lock_changeable(actor, sweep)
    if sweep.state not in (Sweep.State.RUNNING, Sweep.State.FINISHED):
        raise Refused(
            f"The sweep was {sweep.get_state_display().lower()}, so it submits no more jobs. Clone it instead."
        )
    require_code(
        actor=sweep.owner,
        tenant=sweep.tenant,
        cluster=sweep.cluster,
        spec=JobSpec.stored(sweep.spec),
        refused="The members cannot run again",
        instead="Clone the sweep.",
    )
    failed = sweep.members.filter(state=SweepMember.State.FAILED)
    count = failed.update(state=SweepMember.State.PENDING, job=None, metrics={}, outdone_at=None)
    if not count:
        raise Refused("No member of this sweep has failed.")
    sweep.state, sweep.ended_at = Sweep.State.RUNNING, None
    sweep.counts = counts_of(sweep)
    sweep.save(update_fields=["state", "ended_at", "counts"])
    _tell(actor, "sweep.run_again", sweep, after={"members": count})
    return sweep


def lock_changeable(actor: User, sweep: Sweep) -> Sweep:
    """Locks the sweep's row until the transaction ends, and returns the sweep. Raises NotAllowed if the actor may not
    change the sweep."""
    require_changeable(actor, sweep, "change this sweep")
    locked = Sweep.objects.select_for_update(of=("self",)).select_related("tenant", "owner", "cluster")
    return locked.get(pk=sweep.pk)


def cancel(actor: User | None, sweep: Sweep) -> None:
    """Cancels a sweep, within the transaction of a caller that has locked the sweep's row.

    The controller then cancels the jobs. `actor` None means that Fairlot cancels the sweep.
    """
    sweep.state, sweep.cancelled_by, sweep.trouble = Sweep.State.CANCELLED, actor, ""
    skip_pending(sweep)
    sweep.save(update_fields=["state", "cancelled_by", "trouble", "counts", "ended_at"])
    _tell(actor, "sweep.cancel", sweep)


def skip_pending(sweep: Sweep) -> None:
    """Marks the members that were not submitted as skipped, and ends the sweep if no other member is at work.

    The caller has locked the sweep's row, and saves `counts` and `ended_at`.
    """
    sweep.members.filter(state=SweepMember.State.PENDING).update(state=SweepMember.State.SKIPPED)
    sweep.counts = counts_of(sweep)
    if SweepMember.State.ACTIVE not in sweep.counts:
        sweep.ended_at = now_from_database()


def counts_of(sweep: Sweep) -> dict[str, int]:
    """Returns the number of the sweep's members in each state, without states that have none."""
    found = sweep.members.order_by().values_list("state").annotate(number=Count("pk"))
    return dict(found.order_by("state"))


def _members(spec: JobSpec, parameters: Parameters) -> list[Values]:
    """Returns the values of all members. Raises SpecError if they or their specifications are invalid."""
    parameters.check()
    check_members(spec, parameters.names)
    members = list(parameters.expand())
    check_lengths(spec, members)
    check_places(spec, members)
    JobSpec.parse(spec_of_member(spec, 0, members[0]).to_dict())
    return members


def _check_place(
    actor: User, tenant: Tenant, cluster: Cluster, spec: JobSpec, *, even_if_never: bool
) -> None:
    generation_ids = check_later(actor=actor, tenant=tenant, cluster=cluster, spec=spec)
    if not even_if_never and (
        never := why_never(
            actor=actor, tenant=tenant, cluster=cluster, spec=spec, generation_ids=generation_ids
        )
    ):
        raise Refused(never, field="even_if_never")


def _tell(actor: User | None, verb: str, sweep: Sweep, **changes: dict[str, Any]) -> None:
    audit.record(actor=actor, verb=verb, target=sweep, tenant=sweep.tenant, **changes)
    pubsub.publish(f"jobs:{sweep.tenant_id}")
    wake_sweep(sweep.pk)
