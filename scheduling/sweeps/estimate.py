"""Estimates what a sweep would use and cost before it is created, from an assumed run time of its members."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from django.db.models import Q

from accounting.core.wording import counted
from accounting.models import Tenant, User
from scheduling.jobs.preflight import Costs, cost_per_hour
from scheduling.jobs.submitting import check_spec
from scheduling.models import Cluster, Job
from scheduling.spec.job_spec import JobSpec

LOOKED_AT = 2000  # the newest jobs of the team, among which a run of the same name is looked for
EXPECTED, LAST_RUN, AN_HOUR = "expected", "last_run", "an_hour"  # where the assumed run time comes from


@dataclass(frozen=True, slots=True)
class Estimate:
    """What all members use and cost together if each runs for `hours`.

    - `gpus`: of one member; of an elastic one the least with which it runs.
    - `at_once`: most members that run at the same time; None if only limits and free GPUs bound them.
    - `basis`: why `hours` is assumed: EXPECTED is the run time that the specification expects, LAST_RUN that of
      `last_run`, and AN_HOUR means that no run time is known.
    - `cost_per_hour`: of one member, at today's prices, by name of the GPU type.
    """

    members: int
    gpus: int
    at_once: int | None
    hours: float
    basis: str
    last_run: int | None
    cost_per_hour: Costs

    @property
    def seconds(self) -> float:
        return self.hours * 3600

    @property
    def gpu_hours(self) -> float:
        return self.members * self.gpus * self.hours

    @property
    def cost(self) -> Costs:
        """Returns the cost of all members, by name of the GPU type."""
        return self._times(self.members * Decimal(str(self.hours)))

    @property
    def cost_per_hour_at_once(self) -> Costs:
        """Returns the cost of an hour in which as many members run as may; empty without `at_once`."""
        return self._times(Decimal(self.at_once)) if self.at_once else {}

    @property
    def assumption(self) -> str:
        """Returns in words why this run time is assumed."""
        match self.basis:
            case "expected":
                return "the run time that you expect"
            case "last_run":
                return f"as long as job {self.last_run} of the same name ran"
        return "no run time is known; enter the expected hours for a better estimate"

    @property
    def size_in_words(self) -> str:
        each = f"{counted(self.members, 'member')} with {counted(self.gpus, 'GPU')} each"
        if self.at_once:
            return f"{each}, at most {self.at_once} at once: {counted(self.at_once * self.gpus, 'GPU')}"
        return f"{each}, as many at once as GPUs are free and limits allow"

    def _times(self, factor: Decimal) -> Costs:
        return {name: (cost * factor, currency) for name, (cost, currency) in self.cost_per_hour.items()}


def estimate_sweep(
    *, actor: User, tenant: Tenant, cluster: Cluster, spec: JobSpec, members: int, at_once: int | None
) -> Estimate:
    """Returns the estimate for a sweep of `members` members of `spec` in `tenant` on `cluster`.

    Raises SpecError if the cluster does not have what the spec names.
    """
    costs = cost_per_hour(cluster, check_spec(cluster=cluster, spec=spec), spec)
    hours, basis, last_run = 1.0, AN_HOUR, None
    if spec.expected_hours:
        hours, basis = spec.expected_hours, EXPECTED
    elif run := _last_run(actor, tenant, spec.name):
        hours, basis, last_run = round(run.held_for.total_seconds() / 3600, 4), LAST_RUN, run.pk
    bound = None if at_once is None else min(at_once, members)
    return Estimate(members, spec.gpus, bound, hours, basis, last_run, costs)


def _last_run(actor: User, tenant: Tenant, name: str) -> Job | None:
    """Returns the team's newest job that succeeded and has this name, or is a member of a sweep with this name."""
    newest = Job.objects.visible_to(actor).filter(tenant=tenant).order_by("-pk").values("pk")[:LOOKED_AT]
    same = Job.objects.filter(Q(name=name) | Q(sweep__name=name), pk__in=newest, state=Job.State.SUCCEEDED)
    return same.exclude(first_started_at=None).only("held_for").order_by("-pk").first()
