"""Endpoints for jobs: list, submit, read, change and cancel jobs."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated, Any, Protocol

from django.conf import settings
from django.db.models import F, QuerySet
from django.db.models.expressions import OrderBy
from django.http import QueryDict
from ninja import Header, Query, Router
from ninja.errors import HttpError
from ninja.responses import Status

from accounting.core.clock import now_from_database
from accounting.core.prepared import Prepared, RowLimit
from accounting.core.wording import fixed, unknown_choice
from accounting.models import Membership, Tenant, User
from accounting.models.tenants import ids_with_role, sees_every_tenant
from portal.api.document import MAY_CONFLICT
from portal.api.fields import AskedKey, IdempotencyKey, PageSize
from portal.api.filters import check_names
from portal.api.jobs import schemas
from portal.api.problems import problems_of
from portal.api.seen import NotSeen
from portal.api.versions import IfMatch, versions_in
from portal.jobs.columns import COLUMNS as LIST
from portal.jobs.columns import GROUPED_BY, LABEL
from portal.jobs.detail import cost_of, forecast_of, present_lease
from portal.jobs.failure import failure_of
from portal.jobs.filters import JobFilter, labelled, of_generation
from portal.jobs.groups import MOST_GROUPS, group
from portal.jobs.logs import log_end
from portal.jobs.repeated import costs_of
from portal.lists.columns import after
from portal.lists.saved import find_view, views_for
from portal.user_request import ApiRequest
from scheduling.backends.base import LogUnreadable
from scheduling.clusters.backend_factory import backend_for
from scheduling.core.event_texts import end_text, text_of
from scheduling.core.reason_labels import OF_LIMITS, SHORT
from scheduling.jobs.actions import cancel_job
from scheduling.jobs.cloning import clone_job
from scheduling.jobs.editing import edit_job
from scheduling.jobs.explain import Explainer, explain
from scheduling.jobs.preemptible import set_preemptible
from scheduling.jobs.preflight import Preflight, preflight
from scheduling.jobs.queue_place import QueuePlace
from scheduling.jobs.remedies import remedies_of, remedies_of_repeats
from scheduling.jobs.run_times import run_time_of
from scheduling.jobs.submitting import NotAllSubmitted, Outcome, submit_job, submit_jobs
from scheduling.jobs.time_limit import end_by_limit
from scheduling.leases.repeated_work import repeated_work_of
from scheduling.models import Cluster, Job, JobEvent
from scheduling.models.jobs import job_in_sight
from scheduling.models.versions import version_of
from scheduling.spec.job_spec import LONGEST_YAML, JobSpec, SpecError
from scheduling.spec.stored import value_of

router = Router(tags=["Jobs"])
MOST_YAML = 4 * LONGEST_YAML  # characters of all YAML in one call, because parsing YAML is slow

LOG_PIECE = 256 * 1024
NO_FILTERS = schemas.JobFilters.model_validate({})
NEWEST = [F("id").desc()]
AFTER_ALL = 2**63 - 1  # above the key of every job
# Each query reads one row more than the page shows, to know whether there is a next page. The SQL of each limit is
# prepared, so there are only three limits.
MOST_ROWS = (RowLimit(21), RowLimit(51), RowLimit(201))
# The database column of each field of a job in the answer.
COLUMNS = {
    name: name
    for name in (
        "id", "kind", "name", "state", "reason", "service_id", "workers", "max_workers", "gpus_per_worker",
        "priority", "preemptible", "spec", "created_at", "first_started_at", "ended_at", "files_removed_at",
        "exit_code", "end_reason", "end_code", "end_detail", "end_message", "steps_done", "failures",
    )
} | {"team": "tenant__slug", "owner": "owner__username", "cluster": "cluster__name"}  # fmt: skip
_columns_of = attrgetter(*(column.replace("__", ".") for column in COLUMNS.values()))


def visible_job(request: ApiRequest, job_id: int) -> Job:
    """Returns the job with this id. Raises NotSeen if there is no such job or the caller may not see the job."""
    found = job_in_sight(request.auth, _job.first(job_id)) if job_id < 2**63 else None
    if found is None:
        raise NotSeen("job", job_id)
    return found


_job = Prepared(lambda pk: Job.objects.filter(pk=pk).select_related("tenant", "owner", "cluster"))


@router.get("/jobs", response=schemas.JobPage, url_name="jobs")
def list_jobs(
    request: ApiRequest,
    filters: Query[schemas.JobFilters],
    before: AskedKey | None = None,
    limit: PageSize = 50,
) -> dict[str, Any]:
    """Returns one page of the jobs of the caller's teams, newest first, or in the order of `sort`.

    Pages of an order follow one another also while jobs come and go. A job whose place changes meanwhile can be missing
    or be listed twice.
    """
    user, most = request.auth, next(some for some in MOST_ROWS if some > limit)
    if filters == NO_FILTERS and not sees_every_tenant(user):
        found = _latest(ids_with_role(user), before or AFTER_ALL, most)
    else:
        jobs, sort = _viewed(user, filters)
        found = list(_rows(*_filtered(jobs, filters, sort, before, Job.objects.visible_to(user)))[:most])
    if not (found or before):
        check_names(user, team=filters.team, owner=filters.owner)
    items = [_shown(row) for row in found[:limit]]
    return {"items": items, "next": items[-1]["id"] if len(found) > limit else None}


@router.get("/jobs/groups", response=list[schemas.JobGroup], url_name="jobs_groups")
def list_groups(
    request: ApiRequest, filters: Query[schemas.JobFilters], by: Annotated[str, Query(max_length=400)]
) -> list[dict[str, Any]]:
    """Returns how many jobs and GPUs each team, owner, state, sweep or value of a label has, largest first.

    `by` is `team`, `owner`, `state`, `sweep` or `label:KEY`. The filters are those of the list of jobs. States in which
    jobs hold GPUs are one group, `running`. At most the 200 largest groups are returned.
    """
    if by not in GROUPED_BY and not (by.startswith(LABEL) and LIST.find(by)):
        raise SpecError({"by": unknown_choice("group", by, [*GROUPED_BY, f"{LABEL}KEY"])})
    jobs, _ = _filtered(_viewed(request.auth, filters)[0], filters, "")
    found = group(jobs, by)[:MOST_GROUPS]
    if not found:
        check_names(request.auth, team=filters.team, owner=filters.owner)
    return [
        {name: getattr(one, name) for name in ("value", "label", "jobs", "gpus")} | {"held_gpus": one.held}
        for one in found
    ]


def _filtered(
    jobs: QuerySet[Job],
    filters: schemas.JobFilters,
    sort: str,
    before: int | None = None,
    among: QuerySet[Job] | None = None,
) -> tuple[QuerySet[Job], list[OrderBy]]:
    """Returns the jobs that match the filters and follow the job `before` in the order, and the order.

    The job `before` is one of `among`: it may have left the view since the last page.
    """
    order = _order(sort)
    if before and sort:
        jobs = after(jobs, order, before, among=among)
    wanted = {
        "state": filters.state,
        "kind": filters.kind,
        "tenant__slug": filters.team,
        "owner__username": filters.owner,
        "name__icontains": filters.q,
        "pk__lt": None if sort else before,
        "sweep": filters.sweep,
        "pipeline": filters.pipeline,
        "service": filters.service,
    }
    jobs = jobs.filter(**{name: value for name, value in wanted.items() if value})
    if filters.preemptible is not None:
        jobs = jobs.filter(preemptible=filters.preemptible)
    if filters.generation:
        jobs = jobs.filter(of_generation(filters.generation))
    return labelled(jobs, filters.label) if filters.label else jobs, order


def _viewed(user: User, filters: schemas.JobFilters) -> tuple[QuerySet[Job], str]:
    """Returns the jobs of the view that the filters name, and the order. Without a view, returns all jobs."""
    jobs = Job.objects.visible_to(user)
    if not filters.view:
        return jobs, filters.sort
    views = views_for(user, "jobs")
    view = find_view(views, filters.view)
    if view is None:
        names = [one.name for one in views]
        raise SpecError(
            {"view": _unavailable_message("view", filters.view, names, none="You have no views yet.")}
        )
    chosen = JobFilter.read(QueryDict(view.query))
    return chosen.narrow(jobs, user), filters.sort or chosen.sort


def _order(sort: str) -> list[OrderBy]:
    """Returns the order of a list of jobs. Raises SpecError, with the columns, for an unknown one."""
    if sort and not LIST.sorts_by(sort):
        raise SpecError({"sort": unknown_choice("column", sort, [*LIST.known, f"{LABEL}KEY"])})
    return LIST.by(sort) if sort else NEWEST


def _rows(jobs: QuerySet[Job], order: Sequence[OrderBy] = NEWEST) -> QuerySet[Job, tuple[Any, ...]]:
    """Returns a tuple for each job, in this order. It contains the job's values of the columns in COLUMNS, and
    `_shown` formats it.

    Tuples are used because they are faster to create than model instances with related objects.
    """
    return jobs.order_by(*order).values_list(*COLUMNS.values())


@Prepared
def _latest(teams: list[int], before: int, most: RowLimit) -> QuerySet[Job, tuple[Any, ...]]:
    return _rows(Job.objects.filter(tenant__in=teams, pk__lt=before))[:most]


@router.post("/jobs", response={201: schemas.JobInFull}, url_name="jobs")
def submit(
    request: ApiRequest,
    new: schemas.NewJob,
    idempotency_key: IdempotencyKey = "",
) -> Any:
    """Submits a job. A call that repeats an Idempotency-Key returns the job of the first call.

    A job that can never run with the current nodes and limits is refused (409), with all reasons. With `even_if_never`
    it is queued instead, and waits until the nodes or limits change.
    """
    tenant, cluster = place_of(request.auth, new)
    job = submit_job(
        actor=request.auth,
        tenant=tenant,
        cluster=cluster,
        spec=read_spec(new.spec),
        request_key=idempotency_key or None,
        even_if_never=new.even_if_never,
    )
    return Status(201, show_job(job, request.auth))


@router.post("/jobs/bulk", response={201: schemas.BulkAnswers}, url_name="jobs_bulk")
def submit_bulk(
    request: ApiRequest,
    new: schemas.NewJobs,
    idempotency_key: Annotated[str, Header(alias="Idempotency-Key", max_length=70)] = "",
) -> Any:
    """Submits up to 1000 jobs of one team in one transaction, in the order of their specifications.

    With `atomic`, the call fails if any specification is refused, and no job is submitted. `problems` in the error
    response then names the position and field of each problem, such as `specs.3.workers`.

    Without `atomic`, the response has an answer for each specification: the id of its job, or its problems by field. If
    all specifications are refused, the call fails.

    A call that repeats an Idempotency-Key returns the jobs of the first call.
    """
    tenant, cluster = place_of(request.auth, new)
    if sum(len(spec) for spec in new.specs if isinstance(spec, str)) > MOST_YAML:
        raise SpecError(
            {
                "specs": (
                    f"must have at most {fixed(MOST_YAML)} characters of YAML in total. Send fewer "
                    "specifications, or use JSON."
                )
            }
        )
    outcomes: dict[int, Outcome] = {}
    specs: dict[int, JobSpec] = {}
    for position, spec in enumerate(new.specs):
        try:
            specs[position] = read_spec(spec)
        except SpecError as refusal:
            outcomes[position] = refusal
    if specs and not (outcomes and new.atomic):
        submitted = submit_jobs(
            actor=request.auth,
            tenant=tenant,
            cluster=cluster,
            specs=list(specs.values()),
            request_keys=[f"{idempotency_key}#{position}" for position in specs] if idempotency_key else None,
            even_if_never=new.even_if_never,
            all_or_none=new.atomic,
        )
        outcomes |= dict(zip(specs, submitted, strict=True))
    refusals = {position: one for position, one in outcomes.items() if not isinstance(one, Job)}
    accepted = len(outcomes) - len(refusals)
    if refusals and (new.atomic or not accepted):
        raise NotAllSubmitted(refusals)
    items = [show_outcome(outcomes[position]) for position in range(len(new.specs))]
    return Status(201, {"accepted": accepted, "refused": len(refusals), "items": items})


@router.post("/preflight", response=schemas.Preflight, url_name="preflight")
def check(request: ApiRequest, new: schemas.NewJob) -> dict[str, Any]:
    """Returns whether a job could run, when it would start approximately, and what it would cost per hour. Nothing is
    saved."""
    tenant, cluster = place_of(request.auth, new)
    answer = preflight(actor=request.auth, tenant=tenant, cluster=cluster, spec=read_spec(new.spec))
    return show_preflight(answer)


@router.get("/jobs/{int:job_id}", response=schemas.JobInFull, url_name="job")
def get_job(request: ApiRequest, job_id: int) -> dict[str, Any]:
    """Returns one job by its id."""
    return show_job(visible_job(request, job_id), request.auth)


@router.post("/jobs/{int:job_id}/clone", response={201: schemas.JobInFull}, url_name="job_clone")
def clone(request: ApiRequest, job_id: int, new: schemas.Clone, idempotency_key: IdempotencyKey = "") -> Any:
    """Submits a job like this one, with changes. A call that repeats an Idempotency-Key returns the job of the first.

    Without another name, the clone gets a free one, such as `train 2`. By default it is billed to the same team and
    runs on the same cluster.
    """
    job = visible_job(request, job_id)
    tenant, cluster = place_of(
        request.auth,
        new.model_copy(
            update={"team": new.team or job.tenant.slug, "cluster": new.cluster or job.cluster.name}
        ),
    )
    made = clone_job(
        actor=request.auth,
        job=job,
        changes=new.changes,
        tenant=tenant,
        cluster=cluster,
        request_key=idempotency_key or None,
        even_if_never=new.even_if_never,
    )
    return Status(201, show_job(made, request.auth))


@router.post("/jobs/{int:job_id}/cancel", response=schemas.JobInFull, url_name="job_cancel")
def cancel(request: ApiRequest, job_id: int) -> dict[str, Any]:
    """Cancels a job. Has no effect on a job that is already cancelled."""
    cancel_job(actor=request.auth, job=visible_job(request, job_id))
    return show_job(visible_job(request, job_id), request.auth)


@router.post("/jobs/{int:job_id}/preemptible", response=schemas.JobInFull, url_name="job_preemptible")
def make_preemptible(request: ApiRequest, job_id: int, wanted: schemas.Preemptible) -> dict[str, Any]:
    """Sets whether a job is preemptible, from the next round on. For callers who may cancel the job."""
    job = visible_job(request, job_id)
    set_preemptible(actor=request.auth, job=job, preemptible=wanted.preemptible)
    return show_job(visible_job(request, job_id), request.auth)


@router.patch("/jobs/{int:job_id}", response=schemas.JobInFull, url_name="job")
def edit(
    request: ApiRequest, job_id: int, changes: schemas.JobChanges, if_match: IfMatch = None
) -> dict[str, Any]:
    """Changes fields of a job, from the next round on; of an ended job only the labels. For those who may cancel it."""
    given = {name: getattr(changes, name) for name in changes.model_fields_set}
    job = visible_job(request, job_id)
    edit_job(actor=request.auth, job=job, changes=given, seen=versions_in(if_match))
    return show_job(visible_job(request, job_id), request.auth)


@router.get("/jobs/{int:job_id}/events", response=schemas.EventPage, url_name="job_events")
def events(request: ApiRequest, job_id: int, after: AskedKey = 0, limit: PageSize = 100) -> dict[str, Any]:
    """Returns one page of the events of a job, oldest first."""
    found = list(visible_job(request, job_id).events.filter(pk__gt=after)[: limit + 1])
    return {
        "items": [_show_event(event) for event in found[:limit]],
        "next": found[limit - 1].pk if len(found) > limit else None,
    }


@router.get("/jobs/{int:job_id}/log", response=schemas.Log, url_name="job_log", openapi_extra=MAY_CONFLICT)
def log(
    request: ApiRequest,
    job_id: int,
    rank: AskedKey = 0,
    offset: AskedKey = 0,
) -> dict[str, Any]:
    """Returns a piece of the log of the worker with the rank `rank`, from the byte offset `offset` on.

    Bytes that are not valid UTF-8 are shown as U+FFFD.
    """
    job = visible_job(request, job_id)
    workers = len(job.worker_names)
    if rank >= workers:
        raise HttpError(404, f"Rank {rank} does not exist. The job has ranks 0 to {workers - 1}.")
    end = log_end(job.pk)
    try:
        chunk = backend_for(job.cluster).read_log(
            job_id=job.pk,
            rank=rank,
            offset=offset,
            limit=LOG_PIECE,
            last_attempt=end.last_attempt if end else 0,
        )
    except LogUnreadable as error:
        raise HttpError(409, str(error)) from None
    complete = end is not None and (chunk.complete or (end.is_overdue and not chunk.data))
    cut = 0 if complete else len(chunk.data) - len(whole_characters(chunk.data))
    data = chunk.data[: len(chunk.data) - cut]
    return {
        "rank": rank,
        "offset": chunk.offset,
        "next_offset": chunk.next_offset - cut,
        "complete": complete,
        "text": data.decode("utf-8", "replace"),
    }


@router.get("/jobs/{int:job_id}/cost", response=schemas.JobCost, url_name="job_cost")
def cost(request: ApiRequest, job_id: int) -> dict[str, Any]:
    """Returns the GPU time and the cost of a job until now, by GPU type.

    Usage of the last hours, which the ledger has not booked yet, is included at the present prices.
    """
    found = cost_of(visible_job(request, job_id), request.auth)
    return {
        "gpu_seconds": found.gpu_seconds,
        "unbooked_gpu_seconds": found.unbooked,
        "costs": dict(found.amounts),
        "generations": [
            {
                "generation": one.name,
                "gpu_seconds": one.gpu_seconds,
                "cost": one.cost,
                "currency": one.currency,
            }
            for one in found.generations
        ],
    }


@router.get("/jobs/{int:job_id}/scheduling", response=schemas.Scheduling, url_name="job_scheduling")
def scheduling(request: ApiRequest, job_id: int) -> dict[str, Any]:
    """Returns why a job is in its state, which changes would let a waiting job start, and when the job is expected to
    start and end."""
    job = visible_job(request, job_id)
    explainer = Explainer(job.cluster, request.auth)
    why = explainer.explain(job)
    forecast = None if why.never else forecast_of(job)
    repeated = repeated_work_of(job)
    starts_by = forecast and forecast.starts_by
    planned = run_time_of(job, present_lease(job), forecast=forecast, now=now_from_database())
    return {
        "state": job.state,
        "sentence": why.sentence,
        "never": why.never,
        "detail": why.detail,
        "unblock": why.unblock,
        "remedies": remedies_of(job, reader=request.auth, explainer=explainer)
        + (remedies_of_repeats(job, reader=request.auth) if repeated else []),
        "queue": _show_place(explainer.place(job)),
        "repeated_work": repeated
        and {
            "sentence": repeated.sentence,
            "attempts": repeated.attempts,
            "step": repeated.step,
            "reached": repeated.reached,
            "gpu_seconds": repeated.total,
            "costs": dict(costs_of(job, request.auth, repeated)),
        },
        "starts_by": starts_by,
        "not_before": forecast and forecast.earliest,
        "deadline": job.deadline,
        "ends_by": planned and planned.ends_by,
        "stops_at": end_by_limit(job, request.auth),
        "is_late": planned is not None and planned.is_late,
    }


def _show_place(place: QueuePlace | None) -> dict[str, Any] | None:
    if place is None:
        return None
    same = ("sentence", "position", "of", "team_position", "team_of", "note")
    return {name: getattr(place, name) for name in same} | {
        "ahead": [
            {"id": one.pk, "name": one.name, "owner": one.owner, "gpus": one.gpus} for one in place.ahead
        ],
        "ahead_known": place.known,
        "ahead_others": place.others,
        "ahead_others_gpus": place.others_gpus,
    }


def _show_event(event: JobEvent) -> dict[str, Any]:
    same = ("id", "at", "kind", "code")
    shown = {name: getattr(event, name) for name in same}
    return shown | {"text": text_of(event), "attempt": event.epoch}


def whole_characters(data: bytes) -> bytes:
    """Returns `data` without its last bytes if they are only a part of a UTF-8 character."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if needed > back else data
        if byte < 0x80:
            break
    return data


def show_outcome(outcome: Outcome) -> dict[str, Any]:
    """Returns the answer for one specification of a bulk submission.

    - `id`: the id of the submitted job; None if the specification was refused.
    - `problems`: the problems of a refused specification, by field; empty if the job was submitted.
    """
    if isinstance(outcome, Job):
        return {"id": outcome.pk, "problems": {}}
    return {"id": None, "problems": problems_of(outcome)}


def read_spec(spec: dict[str, Any] | str) -> JobSpec:
    return JobSpec.from_yaml(spec) if isinstance(spec, str) else JobSpec.parse(spec)


class Placed(Protocol):
    """A submission that names a team and a cluster; either may be empty."""

    team: str
    cluster: str


def place_of(user: User, new: Placed) -> tuple[Tenant, Cluster]:
    """Returns the team and the cluster of a submission.

    If the submission names no team, the user's only team is used. If it names no cluster, the only attached cluster is
    used. Raises SpecError for a name that is not available, and for a missing name if there are several choices or no
    choice. The error lists the available names.
    """
    attached = Cluster.objects.attached()
    clusters = list(attached.filter(name=new.cluster) if new.cluster else attached[:2])
    problems: dict[str, str] = {}
    try:
        tenant = own_team(user, new.team)
    except SpecError as error:
        problems |= error.problems
    if len(clusters) != 1:
        names = list(attached.values_list("name", flat=True)[:20])
        problems["cluster"] = _unavailable_message(
            "cluster", new.cluster, names, none="No cluster is attached yet."
        )
    if problems:
        raise SpecError(problems)
    return tenant, clusters[0]


def own_team(user: User, slug: str) -> Tenant:
    """Returns the team with this slug in which the user may submit jobs; for an empty slug, the user's only team.

    Raises SpecError, with the available slugs, if there is no such team, or several for an empty slug.
    """
    own = Tenant.objects.visible_to(user, role=Membership.Role.MEMBER).active()
    found = list(own.filter(slug=slug) if slug else own[:2])
    if len(found) != 1:
        slugs = list(own.values_list("slug", flat=True)[:20])
        raise SpecError(
            {"team": _unavailable_message("team", slug, slugs, none="You are not a member of any team.")}
        )
    return found[0]


def _unavailable_message(what: str, given: str, available: list[str], *, none: str) -> str:
    """Returns the message for a missing or unknown team or cluster, with the available names.

    `what` is "team" or "cluster", and `given` is the name in the request. `none` is the message if nothing is
    available.
    """
    if not available:
        return none
    if given:
        return unknown_choice(what, given, available)
    return f"There is more than one {what}. Choose one of: {', '.join(available)}."


def show_job(job: Job, reader: User) -> dict[str, Any]:
    """Converts a job to the fields of the API's response to `reader`.

    They include which limit prevents a waiting job from starting, and how a failed job failed.
    """
    shown = _shown(_columns_of(job))
    if shown["reason"] and job.reason in OF_LIMITS:
        shown["reason"] = explain(job).short
    failure = failure_of(job)
    shown["version"] = version_of(job)
    shown["exit_meaning"] = failure.meaning if failure else ""
    shown["last_lines"] = failure.lines if failure else []
    shown["worker_names"] = job.worker_names
    shown["stops_at"] = end_by_limit(job, reader)
    return shown


def _shown(row: tuple[Any, ...]) -> dict[str, Any]:
    """Converts a job to the fields of the API's response. `row` contains the job's values of the columns in COLUMNS."""
    job = dict(zip(COLUMNS, row, strict=True))
    job["gpus"] = job["workers"] * job["gpus_per_worker"]
    job["labels"] = value_of(dict[str, str], job["spec"].get("labels"), {})
    job["end_message"] = end_text(job.pop("end_code"), job.pop("end_detail"), job["end_message"])
    job["reason"] = SHORT[job["reason"]] if job["state"] in Job.WAITING else ""
    return job


def show_preflight(answer: Preflight) -> dict[str, Any]:
    names = ("verdict", "sentences", "expected_start_seconds", "starts_by_generation", "detail")
    return {name: getattr(answer, name) for name in names} | {
        "cost_per_hour": {name: cost for name, (cost, _) in answer.cost_per_hour.items()},
        "currencies": {name: currency for name, (_, currency) in answer.cost_per_hour.items()},
        "currency": settings.FAIRLOT_CURRENCY,
    }
