"""Checks a job spec before it is submitted: whether the job can ever run, when it would start, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TypeAlias

import numpy as np
from django.conf import settings

from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.core.wording import counted, duration
from accounting.models import Generation, Price, Tenant, User
from fairshare.driver import Situation
from fairshare.forecast import rounds_until_start
from fairshare.model import Reason
from fairshare.reasons import may_run
from fairshare.starts.calibration import Outcomes, intervals
from fairshare.tree import Tree
from scheduling.clusters.isolation import why_refused
from scheduling.jobs.code import find_code
from scheduling.jobs.explain import Explainer, paused_in_words
from scheduling.jobs.run_times import run_time_of_spec
from scheduling.jobs.secrets import find_secrets
from scheduling.jobs.submitting import check_spec
from scheduling.jobs.volumes import find_volumes
from scheduling.models import Cluster, Job, Node
from scheduling.rounds.forecasts import HORIZON, MOST_JOBS, expected_waits
from scheduling.rounds.outcomes import outcomes_of
from scheduling.shares.situations import situation_now
from scheduling.shares.snapshot import read_snapshot, with_candidate
from scheduling.spec.job_spec import JobSpec

# With more jobs, the expected start is not computed for each GPU type.
MOST_COMPARED = 300

# (cost, currency) by name of the generation.
Costs: TypeAlias = dict[str, tuple[Decimal, str]]


@dataclass(frozen=True, slots=True)
class Preflight:
    """A prediction of what happens to a job that is submitted now."""

    verdict: str  # "never", "now" or "later"
    sentences: tuple[str, ...]
    # Earliest and latest start, in seconds from now; one of ten jobs starts earlier, and one of ten later.
    expected_start_seconds: tuple[float, float] | None = None
    cost_per_hour: Costs = field(default_factory=dict)
    # The same interval if the job accepted only this GPU type, by its name; the latest is None beyond HORIZON. Empty if
    # the job accepts only one, starts now, or the cluster is large.
    starts_by_generation: Mapping[str, tuple[float, float | None]] = field(default_factory=dict)
    detail: tuple[str, ...] = ()


def preflight(*, actor: User, tenant: Tenant, cluster: Cluster, spec: JobSpec) -> Preflight:
    """Returns a prediction for a job that `actor` would submit in `tenant`, from simulated rounds with the cluster's
    policy.

    Raises Refused if the cluster accepts no jobs of `actor`, and SpecError for an invalid spec.
    """
    if refusal := why_refused(cluster, actor):
        raise Refused(refusal, field="cluster")
    generation_ids = check_spec(cluster=cluster, spec=spec)
    find_secrets(owner=actor, tenant=tenant, spec=spec)
    find_volumes(tenant=tenant, cluster=cluster, spec=spec)
    find_code(actor=actor, tenant=tenant, cluster=cluster, spec=spec)
    candidate = Job(
        cluster=cluster,
        tenant=tenant,
        owner=actor,
        name=spec.name,
        workers=spec.workers,
        max_workers=spec.elastic_workers,
        gpus_per_worker=spec.gpus_per_worker,
        generation_ids=generation_ids,
        priority=spec.priority,
        preemptible=spec.preemptible,
        **run_time_of_spec(spec, now := now_from_database()),
    )
    cost = cost_per_hour(cluster, generation_ids, spec)
    explainer = Explainer(cluster, actor)
    if never := explainer.never_in_words(candidate):
        return Preflight("never", tuple(never), None, cost, {}, explainer.explain(candidate).detail)
    snapshot, legend = read_snapshot(cluster, now=now)
    snapshot = with_candidate(snapshot, legend, candidate)
    if snapshot.jobs.blocked[-1] == Reason.HOURS_SPENT:
        candidate.reason, candidate.state = int(Reason.HOURS_SPENT), Job.State.QUEUED
        explanation = explainer.explain(candidate)
        return Preflight("later", (explanation.sentence,), None, cost, {}, explanation.detail)
    candidate.reason = int(Reason.NONE)
    detail = explainer.explain(candidate).detail
    if spec.elastic_workers:
        least = counted(spec.workers, "worker")
        detail = (
            *detail,
            f"An elastic job pays for the workers that it has. The cost shown is that of {least}.",
        )
    if cluster.paused_at:
        return Preflight(
            "later", (f"{paused_in_words(cluster)}; no waiting job starts.",), None, cost, {}, detail
        )
    if len(snapshot.jobs) > MOST_JOBS:
        how = (
            "the job runs only on GPUs that no other job can use"
            if spec.preemptible
            else "the team's tickets decide when it is the job's turn"
        )
        others = len(snapshot.jobs) - 1
        sentence = f"{others} other jobs run or wait; {how}."
        return Preflight("later", (sentence,), None, cost, {}, detail)
    last = len(snapshot.jobs) - 1
    situation = situation_now(cluster, snapshot, legend.axes)
    rounds = rounds_until_start(situation, last, seed=0, most=1)
    if rounds == 0:
        sentence = f"The job starts within seconds (GPUs: {explainer.startable(candidate)})."
        return Preflight("now", (sentence,), (0.0, 5.0 + cluster.switch_seconds), cost, {}, detail)
    wait = _Wait(cluster, legend.jobs, situation, outcomes_of(cluster, now=now))
    found = _forecast(wait, rounds, cost, detail)
    found = replace(found, starts_by_generation=wait.by_generation(legend.generations))
    candidate.reason = int(situation.decide(seed=0).reason[last])
    if not candidate.reason:
        return found
    return replace(found, sentences=(*found.sentences, explainer.explain(candidate).sentence))


def _forecast(wait: _Wait, rounds: int | None, cost: Costs, detail: tuple[str, ...]) -> Preflight:
    if rounds == 1:
        latest = wait.situation.view.settings.quantum + wait.cluster.switch_seconds
        sentence = f"The job gets its turn in the next round, within about {duration(latest)}."
        return Preflight("later", (sentence,), (0.0, latest), cost, {}, detail)
    earliest, by = wait.interval()
    if by is None:
        sentence = f"The job will probably wait longer than {duration(earliest)}."
        return Preflight("later", (sentence,), None, cost, {}, detail)
    when = f"in {duration(earliest)} to {duration(by)}" if earliest >= 1 else f"within {duration(by)}"
    sentence = f"The job is expected to start {when}; 8 of 10 such forecasts should hold."
    return Preflight("later", (sentence,), (earliest, by), cost, {}, detail)


@dataclass(frozen=True, slots=True)
class _Wait:
    """Forecasts how long the last job of a situation waits, which is not stored. `jobs` are the keys of the others,
    `past` the outcomes of earlier forecasts."""

    cluster: Cluster
    jobs: Sequence[int]
    situation: Situation
    past: Outcomes

    def interval(self, situation: Situation | None = None) -> tuple[float, float | None]:
        """Returns the earliest and the latest start in seconds from now. The latest is None beyond HORIZON."""
        now = situation or self.situation
        last = len(now.view.jobs) - 1
        # One future is enough here, because a person waits for the answer.
        expected = expected_waits(self.cluster, now, self.jobs, [last], most=1)
        sides = intervals(expected, np.zeros(1), self.past, quantum=now.view.settings.quantum)
        earliest, latest = (float(side[0]) for side in sides)
        most = HORIZON.total_seconds()
        return min(earliest, most), latest if latest <= most else None

    def by_generation(self, generations: Sequence[int]) -> dict[str, tuple[float, float | None]]:
        """Returns the interval for each GPU type on which the job can run, by name, as if it accepted only this one.

        Returns {} if the job can run on only one, or if the cluster has so many jobs that it would take long.
        """
        view = self.situation.view
        accepts, _ = may_run(view, Tree.of(view.accounts.parent))
        columns = np.flatnonzero(accepts[-1]).tolist()
        if len(columns) < 2 or len(view.jobs) > MOST_COMPARED:
            return {}
        names = dict(Generation.objects.filter(pk__in=generations).values_list("id", "name"))
        found = {}
        for column in columns:
            only = view.jobs.accepts.copy()
            only[-1] = np.arange(only.shape[1]) == column
            changed = replace(view, jobs=replace(view.jobs, accepts=only))
            found[names[generations[column]]] = self.interval(replace(self.situation, view=changed))
        return dict(sorted(found.items()))


def _all_generations(cluster: Cluster) -> list[int]:
    return list(
        Node.objects.filter(cluster=cluster).present().values_list("generation_id", flat=True).distinct()
    )


def cost_per_hour(cluster: Cluster, generation_ids: list[int], spec: JobSpec) -> Costs:
    """Returns what one hour of the whole gang costs at today's prices, by name of each generation that the job accepts.

    A preemptible job pays the first of these prices that is set: for preemptible time, for borrowed time, the normal
    price.
    """
    wanted = generation_ids or _all_generations(cluster)
    prices = {
        price.generation_id: (_a_gpu_hour(price, preemptible=spec.preemptible) * spec.gpus, price.currency)
        for price in Price.objects.filter(generation__in=wanted, valid__contains=now_from_database())
    }
    names = dict(Generation.objects.filter(pk__in=wanted).values_list("id", "name"))
    free = Decimal(0), settings.FAIRLOT_CURRENCY
    return {names[pk]: prices.get(pk, free) for pk in sorted(wanted, key=names.__getitem__)}


def _a_gpu_hour(price: Price, *, preemptible: bool) -> Decimal:
    classes = (price.preemptible, price.borrowed) if preemptible else ()
    return next((known for known in classes if known is not None), price.per_gpu_hour)
