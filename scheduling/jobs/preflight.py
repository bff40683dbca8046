"""Checks a job spec before it is submitted: whether the job can ever run, when it would start, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TypeAlias

from django.conf import settings

from accounting.core.clock import now_from_database
from accounting.core.errors import Refused
from accounting.core.wording import duration
from accounting.models import Generation, Price, Tenant, User
from fairshare.forecast import rounds_until_start
from fairshare.model import Reason
from scheduling.clusters.isolation import why_refused
from scheduling.jobs.code import find_code
from scheduling.jobs.explain import Explainer, paused_in_words
from scheduling.jobs.run_times import run_time_of_spec
from scheduling.jobs.secrets import find_secrets
from scheduling.jobs.submitting import check_spec
from scheduling.jobs.volumes import find_volumes
from scheduling.models import Cluster, Job, Node
from scheduling.shares.situations import situation_now
from scheduling.shares.snapshot import read_snapshot, with_candidate
from scheduling.spec.job_spec import JobSpec

# Preflight simulates rounds; with more jobs, the simulation would take longer than a person waits.
MOST_JOBS = 3000
MOST_ROUNDS = 40


# (cost, currency) by name of the generation.
Costs: TypeAlias = dict[str, tuple[Decimal, str]]


@dataclass(frozen=True, slots=True)
class Preflight:
    """A prediction of what happens to a job that is submitted now."""

    verdict: str  # "never", "now" or "later"
    sentences: tuple[str, ...]
    # Earliest and latest start, in seconds from now; the latest assumes that no running job ends before.
    expected_start_seconds: tuple[float, float] | None = None
    cost_per_hour: Costs = field(default_factory=dict)
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
        gpus_per_worker=spec.gpus_per_worker,
        generation_ids=generation_ids,
        priority=spec.priority,
        preemptible=spec.preemptible,
        **run_time_of_spec(spec, now := now_from_database()),
    )
    cost = _cost_per_hour(cluster, generation_ids, spec)
    explainer = Explainer(cluster, actor)
    if never := explainer.never_in_words(candidate):
        return Preflight("never", tuple(never), None, cost, explainer.explain(candidate).detail)
    snapshot, legend = read_snapshot(cluster, now=now)
    snapshot = with_candidate(snapshot, legend, candidate)
    if snapshot.jobs.blocked[-1] == Reason.HOURS_SPENT:
        candidate.reason, candidate.state = int(Reason.HOURS_SPENT), Job.State.QUEUED
        explanation = explainer.explain(candidate)
        return Preflight("later", (explanation.sentence,), None, cost, explanation.detail)
    candidate.reason = int(Reason.NONE)
    detail = explainer.explain(candidate).detail
    if cluster.paused_at:
        return Preflight(
            "later", (f"{paused_in_words(cluster)}; no waiting job starts.",), None, cost, detail
        )
    if len(snapshot.jobs) > MOST_JOBS:
        how = (
            "the job runs only on GPUs that no other job can use"
            if spec.preemptible
            else "the team's tickets decide when it is the job's turn"
        )
        others = len(snapshot.jobs) - 1
        sentence = f"{others} other jobs run or wait; {how}."
        return Preflight("later", (sentence,), None, cost, detail)
    last = len(snapshot.jobs) - 1
    situation = situation_now(cluster, snapshot, legend.axes)
    rounds = rounds_until_start(situation, last, seed=0, most=MOST_ROUNDS)
    found = _forecast(cluster, snapshot.settings.quantum, rounds, cost, detail)
    if found.verdict == "now":
        return found
    candidate.reason = int(situation.decide(seed=0).reason[last])
    if not candidate.reason:
        return found
    return replace(found, sentences=(*found.sentences, explainer.explain(candidate).sentence))


def _forecast(
    cluster: Cluster, quantum: float, rounds: int | None, cost: Costs, detail: tuple[str, ...]
) -> Preflight:
    switch = cluster.switch_seconds
    if rounds == 0:
        sentence = "GPUs for the job are free or being freed: it starts within seconds."
        return Preflight("now", (sentence,), (0.0, 5.0 + switch), cost, detail)
    if rounds == 1:
        sentence = f"The job gets its turn in the next round, within about {duration(quantum + switch)}."
        return Preflight("later", (sentence,), (0.0, quantum + switch), cost, detail)
    if rounds is None:
        soon = duration(MOST_ROUNDS * quantum)
        sentence = (
            f"The job will probably wait longer than {soon} ({MOST_ROUNDS} rounds). It can start sooner if running jobs"
            " end."
        )
        return Preflight("later", (sentence,), None, cost, detail)
    latest = rounds * quantum + switch
    sentence = f"The job gets its turn within about {duration(latest)}, or sooner if a running job ends."
    return Preflight("later", (sentence,), (0.0, latest), cost, detail)


def _all_generations(cluster: Cluster) -> list[int]:
    return list(
        Node.objects.filter(cluster=cluster).present().values_list("generation_id", flat=True).distinct()
    )


def _cost_per_hour(cluster: Cluster, generation_ids: list[int], spec: JobSpec) -> Costs:
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
