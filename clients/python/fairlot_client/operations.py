"""Describes each operation of the API once, for both clients.

Written by `make client` from the API's OpenAPI document.
"""

from __future__ import annotations

from typing import Any, Literal

from fairlot_client import answers
from fairlot_client.calls import (
    UNSET,
    Call,
    Event,
    Method,
    PagedMethod,
    Pages,
    StreamMethod,
    Unset,
    filled,
    given,
    set_fields,
)


def me() -> Call[answers.Me]:
    """Returns the caller's username, full name, portal role and teams."""
    return Call("GET", "/me")


def begin_login(*, name: str | Unset = UNSET) -> Call[answers.Login]:
    """Begins a login for a program that has no token yet.

    Show `user_code` and `url` to its user, and ask for the
    token every `interval` seconds.
    """
    return Call("POST", "/login", body=set_fields(name=name))


def login_token(*, device_code: str) -> Call[answers.LoginAnswer]:
    """Returns whether the program may have a token, and the token, once."""
    return Call("POST", "/login/token", body=set_fields(device_code=device_code))


def list_jobs(
    *,
    state: str | None = None,
    kind: str | None = None,
    team: str | None = None,
    owner: str | None = None,
    q: str | None = None,
    label: str | None = None,
    preemptible: bool | None = None,
    generation: str | None = None,
    sweep: int | None = None,
    pipeline: int | None = None,
    service: int | None = None,
    view: str | None = None,
    sort: str | None = None,
    before: int | None = None,
    page_size: int | None = None,
) -> Pages[answers.Job]:
    """Returns one page of the jobs of the caller's teams, newest first, or in the order of `sort`.

    Pages of an order follow one another also while jobs come and go. A job whose place changes meanwhile can be missing
    or be listed twice.
    """
    return Pages(
        Call(
            "GET",
            "/jobs",
            query=given(
                state=state,
                kind=kind,
                team=team,
                owner=owner,
                q=q,
                label=label,
                preemptible=preemptible,
                generation=generation,
                sweep=sweep,
                pipeline=pipeline,
                service=service,
                view=view,
                sort=sort,
                before=before,
                limit=page_size,
            ),
        ),
        "before",
    )


def list_job_groups(
    *,
    by: str,
    state: str | None = None,
    kind: str | None = None,
    team: str | None = None,
    owner: str | None = None,
    q: str | None = None,
    label: str | None = None,
    preemptible: bool | None = None,
    generation: str | None = None,
    sweep: int | None = None,
    pipeline: int | None = None,
    service: int | None = None,
    view: str | None = None,
    sort: str | None = None,
) -> Call[list[answers.JobGroup]]:
    """Returns how many jobs and GPUs each team, owner, state, sweep or value of a label has, largest first.

    `by` is `team`, `owner`, `state`, `sweep` or `label:KEY`. The filters are those of the list of jobs. States in which
    jobs hold GPUs are one group, `running`. At most the 200 largest groups are returned.
    """
    return Call(
        "GET",
        "/jobs/groups",
        query=given(
            state=state,
            kind=kind,
            team=team,
            owner=owner,
            q=q,
            label=label,
            preemptible=preemptible,
            generation=generation,
            sweep=sweep,
            pipeline=pipeline,
            service=service,
            view=view,
            sort=sort,
            by=by,
        ),
    )


def submit_job(
    *,
    spec: dict[str, Any] | str,
    idempotency_key: str | None = None,
    team: str | Unset = UNSET,
    cluster: str | Unset = UNSET,
    even_if_never: bool | Unset = UNSET,
) -> Call[answers.JobInFull]:
    """Submits a job.

    A call that repeats an Idempotency-Key returns the job of the first call.

    A job that can never run with the current nodes and limits is refused (409), with all reasons. With `even_if_never`
    it is queued instead, and waits until the nodes or limits change.
    """
    return Call(
        "POST",
        "/jobs",
        takes_key=True,
        key=idempotency_key,
        body=set_fields(spec=spec, team=team, cluster=cluster, even_if_never=even_if_never),
    )


def submit_jobs(
    *,
    specs: list[dict[str, Any] | str],
    idempotency_key: str | None = None,
    team: str | Unset = UNSET,
    cluster: str | Unset = UNSET,
    even_if_never: bool | Unset = UNSET,
    atomic: bool | Unset = UNSET,
) -> Call[answers.BulkAnswers]:
    """Submits up to 1000 jobs of one team in one transaction, in the order of their specifications.

    With `atomic`, the call fails if any specification is refused, and no job is submitted. `problems` in the error
    response then names the position and field of each problem, such as `specs.3.workers`.

    Without `atomic`, the response has an answer for each specification: the id of its job, or its problems by field. If
    all specifications are refused, the call fails.

    A call that repeats an Idempotency-Key returns the jobs of the first call.
    """
    return Call(
        "POST",
        "/jobs/bulk",
        takes_key=True,
        key=idempotency_key,
        body=set_fields(specs=specs, team=team, cluster=cluster, even_if_never=even_if_never, atomic=atomic),
    )


def check_job(
    *,
    spec: dict[str, Any] | str,
    team: str | Unset = UNSET,
    cluster: str | Unset = UNSET,
    even_if_never: bool | Unset = UNSET,
) -> Call[answers.Preflight]:
    """Returns whether a job could run, when it would start approximately, and what it would cost per hour.

    Nothing is
    saved.
    """
    return Call(
        "POST",
        "/preflight",
        body=set_fields(spec=spec, team=team, cluster=cluster, even_if_never=even_if_never),
    )


def get_job(job_id: int) -> Call[answers.JobInFull]:
    """Returns one job by its id."""
    return Call("GET", filled("/jobs/{job_id}", job_id=job_id))


def clone_job(
    job_id: int,
    *,
    idempotency_key: str | None = None,
    changes: dict[str, Any] | Unset = UNSET,
    team: str | Unset = UNSET,
    cluster: str | Unset = UNSET,
    even_if_never: bool | Unset = UNSET,
) -> Call[answers.JobInFull]:
    """Submits a job like this one, with changes.

    A call that repeats an Idempotency-Key returns the job of the first.

    Without another name, the clone gets a free one, such as `train 2`. By default it is billed to the same team and
    runs on the same cluster.
    """
    return Call(
        "POST",
        filled("/jobs/{job_id}/clone", job_id=job_id),
        takes_key=True,
        key=idempotency_key,
        body=set_fields(changes=changes, team=team, cluster=cluster, even_if_never=even_if_never),
    )


def cancel_job(job_id: int) -> Call[answers.JobInFull]:
    """Cancels a job.

    Has no effect on a job that is already cancelled.
    """
    return Call("POST", filled("/jobs/{job_id}/cancel", job_id=job_id))


def set_job_preemptible(job_id: int, *, preemptible: bool) -> Call[answers.JobInFull]:
    """Sets whether a job is preemptible, from the next round on.

    For callers who may cancel the job.
    """
    return Call(
        "POST", filled("/jobs/{job_id}/preemptible", job_id=job_id), body=set_fields(preemptible=preemptible)
    )


def list_job_events(
    job_id: int, *, after: int | None = None, page_size: int | None = None
) -> Pages[answers.Event]:
    """Returns one page of the events of a job, oldest first."""
    return Pages(
        Call(
            "GET", filled("/jobs/{job_id}/events", job_id=job_id), query=given(after=after, limit=page_size)
        ),
        "after",
    )


def read_job_log(job_id: int, *, rank: int | None = None, offset: int | None = None) -> Call[answers.Log]:
    """Returns a piece of the log of the worker with the rank `rank`, from the byte offset `offset` on.

    Bytes that are not valid UTF-8 are shown as U+FFFD.
    """
    return Call("GET", filled("/jobs/{job_id}/log", job_id=job_id), query=given(rank=rank, offset=offset))


def get_job_metrics(
    job_id: int,
    *,
    from_: str | None = None,
    to: str | None = None,
    by: Literal["time", "step"] | None = None,
    most_points: int | None = None,
) -> Call[answers.JobMetrics]:
    """Returns what the GPUs and the program of a job did over time, also after its end."""
    return Call(
        "GET",
        filled("/jobs/{job_id}/metrics", job_id=job_id),
        query=given(from_=from_, to=to, by=by, most_points=most_points),
    )


def follow_job_log(
    job_id: int, *, first_rank: int | None = None, last_rank: int | None = None, after: str | None = None
) -> Call[Event]:
    """Streams the lines of the workers from `first_rank` to `last_rank`, merged by time, while the job writes them.

    An event without a name has lines: `{"items": [...]}`, as `/log/lines` shows them. Its id is the position after
    them: send it as the header Last-Event-ID, or as `after`, to continue. Without a position, the stream begins at the
    start of a short log, or near the end of a long one; with `end`, at the end. The event `start` has the first
    position; `end` says that the job has ended and all is sent; `problem`, why the log cannot be read; `bye`, that the
    caller should connect again, after ten minutes or because rights may have changed.
    """
    return Call(
        "GET",
        filled("/jobs/{job_id}/log/stream", job_id=job_id),
        query=given(first_rank=first_rank, last_rank=last_rank, after=after),
    )


def read_job_log_lines(
    job_id: int, *, first_rank: int | None = None, last_rank: int | None = None, after: str | None = None
) -> Call[answers.LogLines]:
    """Returns the next lines of the workers from `first_rank` to `last_rank`, merged by time.

    Without `last_rank`, all workers from `first_rank` on, at most 64. Pass `next` as `after` to continue; while the job
    runs, an answer without lines means that there are no new ones yet.
    """
    return Call(
        "GET",
        filled("/jobs/{job_id}/log/lines", job_id=job_id),
        query=given(first_rank=first_rank, last_rank=last_rank, after=after),
    )


def search_job_log(
    job_id: int,
    *,
    q: str,
    regex: bool | None = None,
    context: int | None = None,
    first_rank: int | None = None,
    last_rank: int | None = None,
    after: str | None = None,
) -> Pages[answers.LogMatch]:
    """Returns at most 100 lines that contain the text `q`, or that match the regular expression `q`.

    Case and colours
    do not count.

    Regular expressions have the syntax of RE2. `context` is the number of lines before and after each match. Without
    `last_rank`, all workers from `first_rank` on are searched, at most 64.
    """
    return Pages(
        Call(
            "GET",
            filled("/jobs/{job_id}/log/search", job_id=job_id),
            query=given(
                q=q, regex=regex, context=context, first_rank=first_rank, last_rank=last_rank, after=after
            ),
        ),
        "after",
    )


def explain_job(job_id: int) -> Call[answers.Scheduling]:
    """Returns why a job is in its state, which changes would let a waiting job start, and when the job is expected to start and end."""
    return Call("GET", filled("/jobs/{job_id}/scheduling", job_id=job_id))


def get_job_cost(job_id: int) -> Call[answers.JobCost]:
    """Returns the GPU time and the cost of a job until now, by GPU type.

    Usage of the last hours, which the ledger has not booked yet, is included at the present prices.
    """
    return Call("GET", filled("/jobs/{job_id}/cost", job_id=job_id))


def get_job_gpu_use(job_id: int) -> Call[answers.GpuUse | None]:
    """Returns the last measured GPU use of a job.

    Returns null if the job has ended or was never measured.
    """
    return Call("GET", filled("/jobs/{job_id}/gpu-use", job_id=job_id))


def snooze_job(job_id: int, *, until: str, reason: str) -> Call[answers.GpuUse]:
    """Postpones the idle warning of a job, and the action after the warning, until a given time.

    For the job's owner, managers of its team, and operators.
    """
    return Call(
        "POST", filled("/jobs/{job_id}/snooze", job_id=job_id), body=set_fields(until=until, reason=reason)
    )


def change_job(
    job_id: int,
    *,
    if_match: str | None = None,
    priority: int | Unset | None = UNSET,
    labels: dict[str, str] | Unset | None = UNSET,
    generations: list[str] | Unset | None = UNSET,
    max_workers: int | Unset | None = UNSET,
    expected_hours: float | Unset | None = UNSET,
    deadline_hours: float | Unset | None = UNSET,
    time_limit_hours: float | Unset | None = UNSET,
) -> Call[answers.JobInFull]:
    """Changes fields of a job, from the next round on; of an ended job only the labels.

    For those who may cancel it.
    """
    return Call(
        "PATCH",
        filled("/jobs/{job_id}", job_id=job_id),
        version=if_match,
        body=set_fields(
            priority=priority,
            labels=labels,
            generations=generations,
            max_workers=max_workers,
            expected_hours=expected_hours,
            deadline_hours=deadline_hours,
            time_limit_hours=time_limit_hours,
        ),
    )


def list_views(
    *, list: Literal["jobs", "sweeps", "pipelines", "services", "schedules", "sessions"] | None = None
) -> Call[list[answers.View]]:
    """Returns the views of a list that the caller may open: the caller's own ones, and those of the caller's teams."""
    return Call("GET", "/views", query=given(list=list))


def save_view(
    *,
    name: str,
    query: str,
    list: Literal["jobs", "sweeps", "pipelines", "services", "schedules", "sessions"] | Unset = UNSET,
    team: str | Unset = UNSET,
    is_default: bool | Unset = UNSET,
) -> Call[answers.View]:
    """Saves a view of the caller, in place of the caller's view of the same name."""
    return Call(
        "POST", "/views", body=set_fields(list=list, name=name, query=query, team=team, is_default=is_default)
    )


def remove_view(view_id: int) -> Call[None]:
    """Removes a view.

    For its owner, and for managers of the team that sees it.
    """
    return Call("DELETE", filled("/views/{view_id}", view_id=view_id))


def upload_code(*, content: bytes, team: str | None = None, name: str | None = None) -> Call[answers.Upload]:
    """Uploads code for the jobs of a team, and returns the digest by which a job specification names it.

    The body is a zip, tar.gz or tar archive, or multipart/form-data with files named `code_files`: one archive, or
    single files without folders. The same files have the same digest. `team` is the slug of the team; it may be left
    out by members of one team. `proposals` has values for a job with these files.
    """
    return Call("POST", "/code", body=content, query=given(team=team, name=name))


def convert_file(
    *, text: str, format: str | Unset = UNSET, cluster: str | Unset = UNSET
) -> Call[answers.Conversion]:
    """Converts a text of another system to jobs, services, schedules, sweeps and pipelines, and reports what became of each field.

    Nothing is saved or submitted. A text that cannot be converted has a report with `refused` lines and no works.
    """
    return Call("POST", "/convert", body=set_fields(text=text, format=format, cluster=cluster))


def list_job_files(
    job_id: int, *, path: str | None = None, after: str | None = None, limit: int | None = None
) -> Call[answers.FilePage]:
    """Returns one page of a folder of a job, also while the job runs.

    The empty path is the folder of `work`, which has the working folder of each worker, and `checkpoint`.
    """
    return Call(
        "GET", filled("/jobs/{job_id}/files", job_id=job_id), query=given(path=path, after=after, limit=limit)
    )


def read_job_file(job_id: int, *, path: str | None = None) -> Call[bytes]:
    """Streams a file of a job, or the range that the header Range asks for.

    Only plain files with one name can be downloaded. A file that the job makes shorter meanwhile ends early.
    """
    return Call(
        "GET", filled("/jobs/{job_id}/files/content", job_id=job_id), query=given(path=path), is_file=True
    )


def download_job_files(job_id: int, *, path: str | None = None) -> Call[bytes]:
    """Streams a folder of a job as a zip archive.

    A file in it, `NOT IN THIS ARCHIVE.txt`, lists what is left out, such as links, and why.
    """
    return Call(
        "GET", filled("/jobs/{job_id}/files/archive", job_id=job_id), query=given(path=path), is_file=True
    )


def list_job_results(job_id: int, *, limit: int | None = None) -> Call[answers.Results]:
    """Returns the newest files that a job wrote or changed, from all its folders, also while the job runs.

    Left out are uploaded files that are as they were, hidden files, virtual environments and caches.
    """
    return Call("GET", filled("/jobs/{job_id}/results", job_id=job_id), query=given(limit=limit))


def download_job_results(job_id: int) -> Call[bytes]:
    """Streams the files that a job wrote or changed as a zip archive, as far as `results` lists them.

    A file in it, `NOT IN THIS ARCHIVE.txt`, lists what is left out, and why.
    """
    return Call("GET", filled("/jobs/{job_id}/results/archive", job_id=job_id), is_file=True)


def delete_job_files(job_id: int) -> Call[answers.Deletion]:
    """Has the log and all files of an ended job deleted soon.

    Calling it again changes nothing.

    For the owner, managers of the team and operators. You cannot undo the deletion.
    """
    return Call("DELETE", filled("/jobs/{job_id}/files", job_id=job_id))


def list_storage(
    *, team: str | None = None, page: int | None = None, page_size: int | None = None
) -> Pages[answers.JobStorage]:
    """Returns which jobs of the caller's teams take how much disk space, biggest first."""
    return Pages(Call("GET", "/storage", query=given(team=team, page=page, limit=page_size)), "page")


def list_sweeps(
    *,
    team: str | None = None,
    owner: str | None = None,
    view: str | None = None,
    sort: str | None = None,
    state: Literal["running", "finished", "stopped", "cancelled"] | None = None,
    before: int | None = None,
    page_size: int | None = None,
) -> Pages[answers.Sweep]:
    """Returns one page of the sweeps of the caller's teams, newest first or in the order of `sort`."""
    return Pages(
        Call(
            "GET",
            "/sweeps",
            query=given(
                team=team, owner=owner, view=view, sort=sort, state=state, before=before, limit=page_size
            ),
        ),
        "before",
    )


def create_sweep(
    *,
    spec: dict[str, Any] | str,
    parameters: answers.SweepParameters,
    idempotency_key: str | None = None,
    team: str | Unset = UNSET,
    cluster: str | Unset = UNSET,
    even_if_never: bool | Unset = UNSET,
    at_once: int | Unset | None = UNSET,
    metric: str | Unset = UNSET,
    goal: Literal["min", "max"] | Unset = UNSET,
    stop_at: float | Unset | None = UNSET,
    stop_cancels: bool | Unset = UNSET,
    median_after: int | Unset | None = UNSET,
) -> Call[answers.SweepInFull]:
    """Creates a sweep that the caller owns.

    Its jobs are submitted over time, as earlier ones start.

    A call that repeats an Idempotency-Key returns the sweep of the first call.
    """
    return Call(
        "POST",
        "/sweeps",
        takes_key=True,
        key=idempotency_key,
        body=set_fields(
            spec=spec,
            team=team,
            cluster=cluster,
            even_if_never=even_if_never,
            parameters=parameters,
            at_once=at_once,
            metric=metric,
            goal=goal,
            stop_at=stop_at,
            stop_cancels=stop_cancels,
            median_after=median_after,
        ),
    )


def preview_sweep(
    *,
    spec: dict[str, Any] | str,
    parameters: answers.SweepParameters,
    team: str | Unset = UNSET,
    cluster: str | Unset = UNSET,
    at_once: int | Unset | None = UNSET,
) -> Call[answers.SweepPreview]:
    """Returns how many jobs a sweep would submit, the commands of the first five, and what all members would cost.

    Creates nothing.
    """
    return Call(
        "POST",
        "/sweeps/preview",
        body=set_fields(spec=spec, parameters=parameters, team=team, cluster=cluster, at_once=at_once),
    )


def get_sweep(sweep_id: int) -> Call[answers.SweepInFull]:
    """Returns a sweep with its specification, its parameters and its best member."""
    return Call("GET", filled("/sweeps/{sweep_id}", sweep_id=sweep_id))


def list_sweep_members(
    sweep_id: int,
    *,
    state: Literal["pending", "active", "succeeded", "failed", "cancelled", "stopped", "skipped"]
    | None = None,
    after: int | None = None,
    page_size: int | None = None,
) -> Pages[answers.SweepMember]:
    """Returns one page of the members of a sweep, in the order of their index.

    With `format=csv`, returns all members as a CSV file, with a column for each parameter and metric.
    """
    return Pages(
        Call(
            "GET",
            filled("/sweeps/{sweep_id}/members", sweep_id=sweep_id),
            query=given(state=state, after=after, limit=page_size),
        ),
        "after",
    )


def list_sweep_members_file(
    sweep_id: int,
    *,
    format: Literal["csv"],
    state: Literal["pending", "active", "succeeded", "failed", "cancelled", "stopped", "skipped"]
    | None = None,
    after: int | None = None,
    limit: int | None = None,
) -> Call[bytes]:
    """Returns one page of the members of a sweep, in the order of their index.

    With `format=csv`, returns all members as a CSV file, with a column for each parameter and metric.
    """
    return Call(
        "GET",
        filled("/sweeps/{sweep_id}/members", sweep_id=sweep_id),
        query=given(state=state, format=format, after=after, limit=limit),
        is_file=True,
    )


def cancel_sweep(sweep_id: int) -> Call[answers.Sweep]:
    """Cancels a sweep and all its jobs.

    Cancelling a sweep that has ended has no effect.
    """
    return Call("POST", filled("/sweeps/{sweep_id}/cancel", sweep_id=sweep_id))


def run_failed_members(sweep_id: int) -> Call[answers.Sweep]:
    """Submits all failed members of a sweep again, as new jobs.

    Refused (409) if no member has failed.
    """
    return Call("POST", filled("/sweeps/{sweep_id}/run-failed", sweep_id=sweep_id))


def list_pipelines(
    *,
    team: str | None = None,
    owner: str | None = None,
    view: str | None = None,
    sort: str | None = None,
    state: Literal["running", "succeeded", "failed", "cancelled"] | None = None,
    before: int | None = None,
    page_size: int | None = None,
) -> Pages[answers.Pipeline]:
    """Returns one page of the pipelines of the caller's teams, newest first or in the order of `sort`."""
    return Pages(
        Call(
            "GET",
            "/pipelines",
            query=given(
                team=team, owner=owner, view=view, sort=sort, state=state, before=before, limit=page_size
            ),
        ),
        "before",
    )


def create_pipeline(
    *,
    idempotency_key: str | None = None,
    pipeline: dict[str, Any] | str | Unset | None = UNSET,
    spec: dict[str, Any] | str | Unset | None = UNSET,
    needs: list[Any] | Unset = UNSET,
    team: str | Unset = UNSET,
    cluster: str | Unset = UNSET,
    even_if_never: bool | Unset = UNSET,
) -> Call[answers.PipelineInFull]:
    """Creates a pipeline that the caller owns.

    Each job is submitted once what it needs has ended.

    A call that repeats an Idempotency-Key returns the pipeline of the first call.
    """
    return Call(
        "POST",
        "/pipelines",
        takes_key=True,
        key=idempotency_key,
        body=set_fields(
            pipeline=pipeline, spec=spec, needs=needs, team=team, cluster=cluster, even_if_never=even_if_never
        ),
    )


def get_pipeline(pipeline_id: int) -> Call[answers.PipelineInFull]:
    """Returns a pipeline with its steps and its definition."""
    return Call("GET", filled("/pipelines/{pipeline_id}", pipeline_id=pipeline_id))


def cancel_pipeline(pipeline_id: int) -> Call[answers.Pipeline]:
    """Cancels a pipeline and all its jobs.

    Cancelling a pipeline that has ended has no effect.
    """
    return Call("POST", filled("/pipelines/{pipeline_id}/cancel", pipeline_id=pipeline_id))


def run_pipeline_again(pipeline_id: int, *, step: str | Unset = UNSET) -> Call[answers.Pipeline]:
    """Runs steps of an ended pipeline again, as new jobs; all other steps keep their results.

    Refused (409) while the pipeline runs, and without `step` if no step has failed.
    """
    return Call(
        "POST",
        filled("/pipelines/{pipeline_id}/run-again", pipeline_id=pipeline_id),
        body=set_fields(step=step),
    )


def list_drafts() -> Call[list[answers.Draft]]:
    """Returns the caller's drafts, the one that was changed last first."""
    return Call("GET", "/drafts")


def create_draft(
    *,
    spec: dict[str, Any] | str,
    idempotency_key: str | None = None,
    team: str | Unset = UNSET,
    cluster: str | Unset = UNSET,
) -> Call[answers.DraftInFull]:
    """Keeps a job as a draft of the caller's.

    A call that repeats an Idempotency-Key replaces the draft of the first
    call.

    A draft is submitted on the portal's page, or with `POST /jobs` and the draft's `request_key` as Idempotency-Key.
    """
    return Call(
        "POST",
        "/drafts",
        takes_key=True,
        key=idempotency_key,
        body=set_fields(spec=spec, team=team, cluster=cluster),
    )


def get_draft(draft_id: int) -> Call[answers.DraftInFull]:
    """Returns one of the caller's drafts, with its content and its problems."""
    return Call("GET", filled("/drafts/{draft_id}", draft_id=draft_id))


def delete_draft(draft_id: int) -> Call[None]:
    """Deletes one of the caller's drafts."""
    return Call("DELETE", filled("/drafts/{draft_id}", draft_id=draft_id))


def list_templates(
    *, team: str | None = None, q: str | None = None, before: int | None = None, page_size: int | None = None
) -> Pages[answers.Template]:
    """Returns one page of the templates that the caller may use, newest first."""
    return Pages(
        Call("GET", "/templates", query=given(team=team, q=q, before=before, limit=page_size)), "before"
    )


def publish_template(
    *,
    description: str,
    spec: dict[str, Any] | str,
    name: str,
    parameters: list[dict[str, Any]] | Unset = UNSET,
    team: str | Unset = UNSET,
    for_all: bool | Unset = UNSET,
) -> Call[answers.TemplateVersion]:
    """Publishes a template for a team, or for all teams.

    For managers of the team and admins.
    """
    return Call(
        "POST",
        "/templates",
        body=set_fields(
            description=description, spec=spec, parameters=parameters, name=name, team=team, for_all=for_all
        ),
    )


def get_template(template_id: int, *, version: int | None = None) -> Call[answers.TemplateVersion]:
    """Returns a version of a template, by default the latest.

    Withdrawn templates stay readable.
    """
    return Call(
        "GET", filled("/templates/{template_id}", template_id=template_id), query=given(version=version)
    )


def publish_template_version(
    template_id: int,
    *,
    description: str,
    spec: dict[str, Any] | str,
    parameters: list[dict[str, Any]] | Unset = UNSET,
) -> Call[answers.TemplateVersion]:
    """Publishes a new version of a template.

    Earlier versions stay as they were.
    """
    return Call(
        "POST",
        filled("/templates/{template_id}/versions", template_id=template_id),
        body=set_fields(description=description, spec=spec, parameters=parameters),
    )


def withdraw_template(template_id: int) -> Call[None]:
    """Withdraws a template, so that nobody can use it any more.

    Withdrawing it again has no effect.
    """
    return Call("POST", filled("/templates/{template_id}/withdraw", template_id=template_id))


def preview_template(
    template_id: int, *, values: dict[str, Any] | Unset = UNSET, version: int | Unset | None = UNSET
) -> Call[answers.FilledTemplate]:
    """Returns the job specification that a template gives with these values.

    Submits nothing.
    """
    return Call(
        "POST",
        filled("/templates/{template_id}/preview", template_id=template_id),
        body=set_fields(values=values, version=version),
    )


def submit_template(
    template_id: int,
    *,
    idempotency_key: str | None = None,
    values: dict[str, Any] | Unset = UNSET,
    version: int | Unset | None = UNSET,
    team: str | Unset = UNSET,
    cluster: str | Unset = UNSET,
    even_if_never: bool | Unset = UNSET,
) -> Call[answers.JobInFull]:
    """Submits a job from a template.

    A call that repeats an Idempotency-Key returns the job of the first call.
    """
    return Call(
        "POST",
        filled("/templates/{template_id}/submit", template_id=template_id),
        takes_key=True,
        key=idempotency_key,
        body=set_fields(
            values=values, version=version, team=team, cluster=cluster, even_if_never=even_if_never
        ),
    )


def list_services(
    *,
    team: str | None = None,
    owner: str | None = None,
    view: str | None = None,
    sort: str | None = None,
    before: int | None = None,
    page_size: int | None = None,
) -> Pages[answers.Service]:
    """Returns one page of the services of the caller's teams, newest first or in the order of `sort`.

    Removed services are left out.
    """
    return Pages(
        Call(
            "GET",
            "/services",
            query=given(team=team, owner=owner, view=view, sort=sort, before=before, limit=page_size),
        ),
        "before",
    )


def create_service(
    *,
    spec: dict[str, Any] | str,
    replicas: int | Unset | None = UNSET,
    max_surge: int | Unset | None = UNSET,
    max_unavailable: int | Unset | None = UNSET,
    progress_deadline_seconds: int | Unset | None = UNSET,
    auto_rollback: bool | Unset | None = UNSET,
    team: str | Unset = UNSET,
    cluster: str | Unset = UNSET,
    even_if_never: bool | Unset = UNSET,
) -> Call[answers.Service]:
    """Creates a service that the caller owns.

    The service gets the name in the field `name` of the specification. The name must be unique in the team (otherwise
    409).
    """
    return Call(
        "POST",
        "/services",
        body=set_fields(
            replicas=replicas,
            max_surge=max_surge,
            max_unavailable=max_unavailable,
            progress_deadline_seconds=progress_deadline_seconds,
            auto_rollback=auto_rollback,
            spec=spec,
            team=team,
            cluster=cluster,
            even_if_never=even_if_never,
        ),
    )


def get_service(service_id: int) -> Call[answers.ServiceInFull]:
    """Returns a service with its revisions and its current replicas."""
    return Call("GET", filled("/services/{service_id}", service_id=service_id))


def change_service(
    service_id: int,
    *,
    if_match: str | None = None,
    replicas: int | Unset | None = UNSET,
    max_surge: int | Unset | None = UNSET,
    max_unavailable: int | Unset | None = UNSET,
    progress_deadline_seconds: int | Unset | None = UNSET,
    auto_rollback: bool | Unset | None = UNSET,
    spec: dict[str, Any] | str | Unset | None = UNSET,
    stopped: bool | Unset | None = UNSET,
) -> Call[answers.Service]:
    """Changes the given fields of a service, and leaves the others unchanged.

    The fields are the number of replicas, the rollout rules, the specification, and whether the service is stopped.
    """
    return Call(
        "PATCH",
        filled("/services/{service_id}", service_id=service_id),
        version=if_match,
        body=set_fields(
            replicas=replicas,
            max_surge=max_surge,
            max_unavailable=max_unavailable,
            progress_deadline_seconds=progress_deadline_seconds,
            auto_rollback=auto_rollback,
            spec=spec,
            stopped=stopped,
        ),
    )


def remove_service(service_id: int) -> Call[None]:
    """Removes a service and ends its replicas.

    The records and bills of the replicas are kept.

    Has no effect on a service that is already removed.
    """
    return Call("DELETE", filled("/services/{service_id}", service_id=service_id))


def roll_back_service(service_id: int, *, revision: int) -> Call[answers.Service]:
    """Rolls a service back: an earlier revision is rolled out again."""
    return Call(
        "POST",
        filled("/services/{service_id}/rollback", service_id=service_id),
        body=set_fields(revision=revision),
    )


def list_service_events(
    service_id: int, *, before: int | None = None, page_size: int | None = None
) -> Pages[answers.ServiceEvent]:
    """Returns one page of the events of a service, newest first."""
    return Pages(
        Call(
            "GET",
            filled("/services/{service_id}/events", service_id=service_id),
            query=given(before=before, limit=page_size),
        ),
        "before",
    )


def get_service_traffic(
    service_id: int, *, from_: str | None = None, to: str | None = None, most_points: int | None = None
) -> Call[answers.Traffic]:
    """Returns how many requests a service got over time, how long answers took to begin, and how many requests failed."""
    return Call(
        "GET",
        filled("/services/{service_id}/traffic", service_id=service_id),
        query=given(from_=from_, to=to, most_points=most_points),
    )


def read_service_log_lines(
    service_id: int, *, after: str | None = None, recent: bool | None = None
) -> Call[answers.ReplicaLogLines]:
    """Returns the next lines of the logs of a service's replicas, merged by time.

    Replicas that ended in the last 24 hours belong to them. Begins with the oldest lines, or with `recent` at about the
    last 64 KiB. Pass `next` as `after` to continue; an answer without lines means that there are no new ones yet.
    """
    return Call(
        "GET",
        filled("/services/{service_id}/log/lines", service_id=service_id),
        query=given(after=after, recent=recent),
    )


def list_terminals(job_id: int) -> Call[answers.Terminals]:
    """Returns the open shells of a job.

    Users who may neither open a terminal in the job nor cancel it see none.
    """
    return Call("GET", filled("/jobs/{job_id}/terminals", job_id=job_id))


def end_terminal(job_id: int, terminal_id: str) -> Call[None]:
    """Ends a shell and the programs that it runs.

    Its user may, and users who may cancel the job. Has no effect on a
    shell that has ended.
    """
    return Call(
        "DELETE", filled("/jobs/{job_id}/terminals/{terminal_id}", job_id=job_id, terminal_id=terminal_id)
    )


def list_sessions(
    *,
    team: str | None = None,
    owner: str | None = None,
    view: str | None = None,
    sort: str | None = None,
    before: int | None = None,
    page_size: int | None = None,
) -> Pages[answers.Session]:
    """Returns one page of the sessions of the caller's teams, newest first or in the order of `sort`.

    Ended sessions are included.
    """
    return Pages(
        Call(
            "GET",
            "/sessions",
            query=given(team=team, owner=owner, view=view, sort=sort, before=before, limit=page_size),
        ),
        "before",
    )


def start_session(
    *,
    spec: dict[str, Any] | str,
    team: str | Unset = UNSET,
    cluster: str | Unset = UNSET,
    even_if_never: bool | Unset = UNSET,
    kind: Literal["notebook", "vscode"] | Unset = UNSET,
    idle_timeout_minutes: int | Unset = UNSET,
    time_limit_hours: int | Unset = UNSET,
    files_from: int | Unset | None = UNSET,
) -> Call[answers.SessionInFull]:
    """Starts a session that the caller owns.

    The job specification must have one worker and a port.

    A specification without a command gets the command of `kind`: JupyterLab or VS Code.
    """
    return Call(
        "POST",
        "/sessions",
        body=set_fields(
            spec=spec,
            team=team,
            cluster=cluster,
            even_if_never=even_if_never,
            kind=kind,
            idle_timeout_minutes=idle_timeout_minutes,
            time_limit_hours=time_limit_hours,
            files_from=files_from,
        ),
    )


def get_session(session_id: int) -> Call[answers.SessionInFull]:
    """Returns a session.

    The session's log, events and cost are those of the job with the same id.
    """
    return Call("GET", filled("/sessions/{session_id}", session_id=session_id))


def stop_session(session_id: int) -> Call[None]:
    """Stops a session.

    Its program gets the usual grace period to end. Has no effect on a session that is already
    stopped.
    """
    return Call("DELETE", filled("/sessions/{session_id}", session_id=session_id))


def keep_session(session_id: int) -> Call[answers.SessionInFull]:
    """Restarts the idle timeout of a session, so that the session is not stopped as idle."""
    return Call("POST", filled("/sessions/{session_id}/keep", session_id=session_id))


def list_schedules(
    *,
    team: str | None = None,
    owner: str | None = None,
    view: str | None = None,
    sort: str | None = None,
    before: int | None = None,
    page_size: int | None = None,
) -> Pages[answers.Schedule]:
    """Returns one page of the schedules of the caller's teams, newest first or in the order of `sort`.

    Deleted schedules are left out.
    """
    return Pages(
        Call(
            "GET",
            "/schedules",
            query=given(team=team, owner=owner, view=view, sort=sort, before=before, limit=page_size),
        ),
        "before",
    )


def create_schedule(
    *,
    spec: dict[str, Any] | str,
    expression: str,
    idempotency_key: str | None = None,
    team: str | Unset = UNSET,
    cluster: str | Unset = UNSET,
    even_if_never: Literal[False] | Unset = UNSET,
    time_zone: str | Unset = UNSET,
    begins: str | Unset | None = UNSET,
    ends: str | Unset | None = UNSET,
    missed: Literal["skip", "once", "all"] | Unset = UNSET,
    catch_up_seconds: int | Unset = UNSET,
    overlap: Literal["allow", "forbid", "replace"] | Unset = UNSET,
    paused: bool | Unset = UNSET,
) -> Call[answers.Schedule]:
    """Creates a schedule that the caller owns.

    A call that repeats an Idempotency-Key returns the schedule of the first
    call.
    """
    return Call(
        "POST",
        "/schedules",
        takes_key=True,
        key=idempotency_key,
        body=set_fields(
            spec=spec,
            team=team,
            cluster=cluster,
            even_if_never=even_if_never,
            expression=expression,
            time_zone=time_zone,
            begins=begins,
            ends=ends,
            missed=missed,
            catch_up_seconds=catch_up_seconds,
            overlap=overlap,
            paused=paused,
        ),
    )


def get_schedule(schedule_id: int) -> Call[answers.ScheduleInFull]:
    """Returns a schedule and the times of its next ten runs."""
    return Call("GET", filled("/schedules/{schedule_id}", schedule_id=schedule_id))


def change_schedule(
    schedule_id: int,
    *,
    spec: dict[str, Any] | str,
    expression: str,
    if_match: str | None = None,
    team: str | Unset = UNSET,
    cluster: str | Unset = UNSET,
    even_if_never: Literal[False] | Unset = UNSET,
    time_zone: str | Unset = UNSET,
    begins: str | Unset | None = UNSET,
    ends: str | Unset | None = UNSET,
    missed: Literal["skip", "once", "all"] | Unset = UNSET,
    catch_up_seconds: int | Unset = UNSET,
    overlap: Literal["allow", "forbid", "replace"] | Unset = UNSET,
) -> Call[answers.Schedule]:
    """Replaces the specification, timetable and rules of a schedule.

    The team does not change, but the caller becomes
    the owner.
    """
    return Call(
        "PUT",
        filled("/schedules/{schedule_id}", schedule_id=schedule_id),
        version=if_match,
        body=set_fields(
            spec=spec,
            team=team,
            cluster=cluster,
            even_if_never=even_if_never,
            expression=expression,
            time_zone=time_zone,
            begins=begins,
            ends=ends,
            missed=missed,
            catch_up_seconds=catch_up_seconds,
            overlap=overlap,
        ),
    )


def delete_schedule(schedule_id: int, *, if_match: str | None = None) -> Call[None]:
    """Deletes a schedule.

    The records of its runs and the jobs that it submitted are kept.
    """
    return Call("DELETE", filled("/schedules/{schedule_id}", schedule_id=schedule_id), version=if_match)


def pause_schedule(schedule_id: int) -> Call[answers.Schedule]:
    """Pauses a schedule until it is resumed.

    Pausing a paused schedule has no effect.
    """
    return Call("POST", filled("/schedules/{schedule_id}/pause", schedule_id=schedule_id))


def resume_schedule(schedule_id: int) -> Call[answers.Schedule]:
    """Resumes a paused schedule.

    Its rule `missed` decides what happens to the runs that were missed during the
    pause.
    """
    return Call("POST", filled("/schedules/{schedule_id}/resume", schedule_id=schedule_id))


def run_schedule(schedule_id: int, *, idempotency_key: str | None = None) -> Call[answers.ScheduleRun]:
    """Submits the job of a schedule now.

    A call that repeats an Idempotency-Key returns the run of the first call.
    """
    return Call(
        "POST",
        filled("/schedules/{schedule_id}/run", schedule_id=schedule_id),
        takes_key=True,
        key=idempotency_key,
    )


def list_schedule_runs(
    schedule_id: int, *, before: int | None = None, page_size: int | None = None
) -> Pages[answers.ScheduleRun]:
    """Returns one page of the runs of a schedule, newest first."""
    return Pages(
        Call(
            "GET",
            filled("/schedules/{schedule_id}/runs", schedule_id=schedule_id),
            query=given(before=before, limit=page_size),
        ),
        "before",
    )


def gpu_map() -> Call[list[answers.Cluster]]:
    """Returns the attached clusters, their nodes, and the current allocations of their GPUs."""
    return Call("GET", "/gpu-map")


def list_holders(
    *,
    by: Literal["team", "user"] | None = None,
    cluster: str | None = None,
    generation: str | None = None,
    team: str | None = None,
    node: str | None = None,
) -> Call[answers.WhoHolds]:
    """Returns who holds GPUs now, by team or by user, most GPUs first.

    All teams that the caller may not see are one row, the last one, whose `team` is null.
    """
    return Call(
        "GET", "/holders", query=given(by=by, cluster=cluster, generation=generation, team=team, node=node)
    )


def list_consumers(
    *,
    period: Literal["day", "week"] | None = None,
    by: Literal["team", "user"] | None = None,
    generation: str | None = None,
    team: str | None = None,
    limit: int | None = None,
) -> Call[answers.Consumers]:
    """Returns the GPU time and cost that the ledger has booked in the last day or week, most GPU time first.

    Teams that the caller may not see are left out. GPU time is booked at every full hour while a job holds GPUs, and
    when the job releases them.
    """
    return Call(
        "GET", "/consumers", query=given(period=period, by=by, generation=generation, team=team, limit=limit)
    )


def get_share(
    *, team: str, period: Literal["today", "1h", "24h", "7d", "30d"] | None = None, cluster: str | None = None
) -> Call[answers.Share]:
    """Returns the GPU time on one cluster that a team was entitled to and received, including the teams below it.

    Without `cluster`, the first cluster by name is used.
    """
    return Call("GET", "/share", query=given(team=team, period=period, cluster=cluster))


def list_trades(
    *,
    period: Literal["today", "1h", "24h", "7d", "30d", "this-month", "last-month", "dates"] | None = None,
    from_: str | None = None,
    to: str | None = None,
    zone: str | None = None,
    team: str | None = None,
    generation: str | None = None,
    before: int | None = None,
    page_size: int | None = None,
) -> Pages[answers.Trade]:
    """Returns one page of the trades of the caller's teams, newest first.

    To get the next page, with older trades, set `before` to this page's `next`, which is null on the last page. Formats
    other than JSON contain all trades of the period, and the GPU-seconds that the ledger booked for trades.
    """
    return Pages(
        Call(
            "GET",
            "/trades",
            query=given(
                period=period,
                from_=from_,
                to=to,
                zone=zone,
                team=team,
                generation=generation,
                before=before,
                limit=page_size,
            ),
        ),
        "before",
    )


def list_trades_file(
    *,
    format: Literal["csv", "xlsx", "pdf"],
    period: Literal["today", "1h", "24h", "7d", "30d", "this-month", "last-month", "dates"] | None = None,
    from_: str | None = None,
    to: str | None = None,
    zone: str | None = None,
    team: str | None = None,
    generation: str | None = None,
    before: int | None = None,
    limit: int | None = None,
) -> Call[bytes]:
    """Returns one page of the trades of the caller's teams, newest first.

    To get the next page, with older trades, set `before` to this page's `next`, which is null on the last page. Formats
    other than JSON contain all trades of the period, and the GPU-seconds that the ledger booked for trades.
    """
    return Call(
        "GET",
        "/trades",
        query=given(
            period=period,
            from_=from_,
            to=to,
            zone=zone,
            team=team,
            generation=generation,
            before=before,
            limit=limit,
            format=format,
        ),
        is_file=True,
    )


def list_booked_trades(
    *,
    period: Literal["today", "1h", "24h", "7d", "30d", "this-month", "last-month", "dates"] | None = None,
    from_: str | None = None,
    to: str | None = None,
    zone: str | None = None,
) -> Call[list[answers.BookedTrades]]:
    """Returns the GPU-seconds that the caller's teams gave and got in trades, as booked in the ledger, by generation.

    Operators get the totals of all teams. Over all teams, the given and the received GPU-seconds of a generation are
    equal.
    """
    return Call("GET", "/trades/booked", query=given(period=period, from_=from_, to=to, zone=zone))


def list_trade_limits(*, team: str) -> Call[list[answers.TradeLimit]]:
    """Returns the trade limits that are set on a team.

    The trade limits of the teams above also apply to this team.
    """
    return Call("GET", "/trade-limits", query=given(team=team))


def set_trade_limits(*, team: str, limits: list[answers.TradeLimit]) -> Call[list[answers.TradeLimit]]:
    """Replaces all trade limits of a team that the caller manages.

    An empty list removes all trade limits.
    """
    return Call("PUT", "/trade-limits", body=limits, query=given(team=team))


def get_usage(
    *,
    period: Literal["today", "this-month", "last-month", "dates"] | None = None,
    from_: str | None = None,
    to: str | None = None,
    zone: str | None = None,
    by: Literal["user", "job", "generation", "day", "label", "tenant"] | None = None,
    team: str | None = None,
    label: str | None = None,
) -> Call[answers.Usage]:
    """Returns the usage report: the GPU-seconds and the cost of each group, where `by` chooses the groups.

    `by=label` groups by the values of the label whose key is given as `label`. Jobs without this label form a group
    whose label is null.
    """
    return Call(
        "GET",
        "/usage",
        query=given(period=period, from_=from_, to=to, zone=zone, by=by, team=team, label=label),
    )


def get_usage_file(
    *,
    format: Literal["csv", "xlsx", "pdf"],
    period: Literal["today", "this-month", "last-month", "dates"] | None = None,
    from_: str | None = None,
    to: str | None = None,
    zone: str | None = None,
    by: Literal["user", "job", "generation", "day", "label", "tenant"] | None = None,
    team: str | None = None,
    label: str | None = None,
) -> Call[bytes]:
    """Returns the usage report: the GPU-seconds and the cost of each group, where `by` chooses the groups.

    `by=label` groups by the values of the label whose key is given as `label`. Jobs without this label form a group
    whose label is null.
    """
    return Call(
        "GET",
        "/usage",
        query=given(
            period=period, from_=from_, to=to, zone=zone, by=by, team=team, label=label, format=format
        ),
        is_file=True,
    )


def get_statement(
    *,
    period: Literal["today", "this-month", "last-month", "dates"] | None = None,
    from_: str | None = None,
    to: str | None = None,
    zone: str | None = None,
    team: str | None = None,
    part: str | None = None,
) -> Call[answers.Statement]:
    """Returns the statement of a team: its bill for a period, including the teams below it.

    With `format=csv`, the file contains only one table of the statement, which `part` chooses.
    """
    return Call(
        "GET", "/statement", query=given(period=period, from_=from_, to=to, zone=zone, team=team, part=part)
    )


def get_statement_file(
    *,
    format: Literal["csv", "xlsx", "pdf"],
    period: Literal["today", "this-month", "last-month", "dates"] | None = None,
    from_: str | None = None,
    to: str | None = None,
    zone: str | None = None,
    team: str | None = None,
    part: str | None = None,
) -> Call[bytes]:
    """Returns the statement of a team: its bill for a period, including the teams below it.

    With `format=csv`, the file contains only one table of the statement, which `part` chooses.
    """
    return Call(
        "GET",
        "/statement",
        query=given(period=period, from_=from_, to=to, zone=zone, team=team, part=part, format=format),
        is_file=True,
    )


def get_capacity(
    *,
    period: Literal["today", "this-month", "last-month", "dates"] | None = None,
    from_: str | None = None,
    to: str | None = None,
    zone: str | None = None,
    cluster: str | None = None,
) -> Call[answers.Capacity]:
    """Returns how the GPU time of the clusters was used, in GPU-seconds by class, such as busy, idle or free.

    Also
    returns the value of this time, divided into parts.

    The value is GPU-hours times price. Its parts are, for example, the costs of the teams and the value of free GPUs.
    Covers only closed hours, which are completely booked in the ledger. For operators.
    """
    return Call(
        "GET", "/capacity", query=given(period=period, from_=from_, to=to, zone=zone, cluster=cluster)
    )


def get_capacity_file(
    *,
    format: Literal["csv", "xlsx", "pdf"],
    period: Literal["today", "this-month", "last-month", "dates"] | None = None,
    from_: str | None = None,
    to: str | None = None,
    zone: str | None = None,
    cluster: str | None = None,
) -> Call[bytes]:
    """Returns how the GPU time of the clusters was used, in GPU-seconds by class, such as busy, idle or free.

    Also
    returns the value of this time, divided into parts.

    The value is GPU-hours times price. Its parts are, for example, the costs of the teams and the value of free GPUs.
    Covers only closed hours, which are completely booked in the ledger. For operators.
    """
    return Call(
        "GET",
        "/capacity",
        query=given(period=period, from_=from_, to=to, zone=zone, cluster=cluster, format=format),
        is_file=True,
    )


def get_fairness(
    *,
    period: Literal["today", "this-month", "last-month", "dates"] | None = None,
    from_: str | None = None,
    to: str | None = None,
    zone: str | None = None,
    team: str | None = None,
    cluster: str | None = None,
) -> Call[answers.Fairness]:
    """Returns the GPU time that each team was entitled to, and the GPU time that it received.

    The amounts of a team do not include those of the teams below it.
    """
    return Call(
        "GET",
        "/fairness",
        query=given(period=period, from_=from_, to=to, zone=zone, team=team, cluster=cluster),
    )


def get_fairness_file(
    *,
    format: Literal["csv", "xlsx", "pdf"],
    period: Literal["today", "this-month", "last-month", "dates"] | None = None,
    from_: str | None = None,
    to: str | None = None,
    zone: str | None = None,
    team: str | None = None,
    cluster: str | None = None,
) -> Call[bytes]:
    """Returns the GPU time that each team was entitled to, and the GPU time that it received.

    The amounts of a team do not include those of the teams below it.
    """
    return Call(
        "GET",
        "/fairness",
        query=given(period=period, from_=from_, to=to, zone=zone, team=team, cluster=cluster, format=format),
        is_file=True,
    )


def get_operations_report(
    subject: Literal["use", "nodes", "waits", "waste", "prices", "chargeback"],
    *,
    period: Literal["today", "this-month", "last-month", "dates"] | None = None,
    from_: str | None = None,
    to: str | None = None,
    zone: str | None = None,
    cluster: str | None = None,
) -> Call[answers.Tables]:
    """Returns the tables of the report `subject`.

    Each table has a key, rows and totals. For operators.
    """
    return Call(
        "GET",
        filled("/operations/{subject}", subject=subject),
        query=given(period=period, from_=from_, to=to, zone=zone, cluster=cluster),
    )


def get_operations_report_file(
    subject: Literal["use", "nodes", "waits", "waste", "prices", "chargeback"],
    *,
    format: Literal["csv", "xlsx", "pdf"],
    period: Literal["today", "this-month", "last-month", "dates"] | None = None,
    from_: str | None = None,
    to: str | None = None,
    zone: str | None = None,
    cluster: str | None = None,
) -> Call[bytes]:
    """Returns the tables of the report `subject`.

    Each table has a key, rows and totals. For operators.
    """
    return Call(
        "GET",
        filled("/operations/{subject}", subject=subject),
        query=given(period=period, from_=from_, to=to, zone=zone, cluster=cluster, format=format),
        is_file=True,
    )


def get_chargeback(
    *,
    period: Literal["today", "this-month", "last-month", "dates"] | None = None,
    from_: str | None = None,
    to: str | None = None,
    zone: str | None = None,
    cluster: str | None = None,
) -> Call[answers.Tables]:
    """Returns the cost that each team bears, by generation.

    For operators.

    Covers only closed hours, which are the hours whose GPU time and costs are completely booked in the ledger.
    """
    return Call(
        "GET", "/chargeback", query=given(period=period, from_=from_, to=to, zone=zone, cluster=cluster)
    )


def get_chargeback_file(
    *,
    format: Literal["csv", "xlsx", "pdf"],
    period: Literal["today", "this-month", "last-month", "dates"] | None = None,
    from_: str | None = None,
    to: str | None = None,
    zone: str | None = None,
    cluster: str | None = None,
) -> Call[bytes]:
    """Returns the cost that each team bears, by generation.

    For operators.

    Covers only closed hours, which are the hours whose GPU time and costs are completely booked in the ledger.
    """
    return Call(
        "GET",
        "/chargeback",
        query=given(period=period, from_=from_, to=to, zone=zone, cluster=cluster, format=format),
        is_file=True,
    )


def export(
    form: Literal["sacct.txt", "xdmod.txt", "jobs.csv", "jobs.json"],
    *,
    period: Literal["today", "this-month", "last-month", "dates"] | None = None,
    from_: str | None = None,
    to: str | None = None,
    zone: str | None = None,
    team: str | None = None,
    anonymous: Literal["", "1"] | None = None,
    all: Literal["", "whole"] | None = None,
) -> Call[bytes]:
    """Streams the jobs of a period as a file, for example in the format of Slurm's sacct.

    Operators get all jobs;
    managers get the jobs of their teams.

    A job that is only partly in the period is exported with its time in the period. With `all=whole`, it is exported
    with all its time. The file `xdmod.txt` always contains whole attempts: those that ended in the period. With
    `anonymous=1`, names are replaced by pseudonyms.
    """
    return Call(
        "GET",
        filled("/exports/{form}", form=form),
        query=given(period=period, from_=from_, to=to, zone=zone, team=team, anonymous=anonymous, all=all),
        is_file=True,
    )


def list_subscriptions() -> Call[list[answers.Subscription]]:
    """Returns the caller's subscriptions to reports by mail."""
    return Call("GET", "/subscriptions")


def subscribe(
    *,
    rhythm: Literal["weekly", "monthly"],
    report: Literal[
        "statement",
        "usage",
        "fairness",
        "idle",
        "trades",
        "anomalies",
        "use",
        "nodes",
        "waits",
        "waste",
        "prices",
        "chargeback",
        "capacity",
    ]
    | Unset = UNSET,
    team: str | Unset = UNSET,
    by: Literal["", "user", "job", "generation", "day", "label", "tenant"] | Unset = UNSET,
    label: str | Unset = UNSET,
    form: Literal["pdf", "xlsx", "csv", "link"] | Unset = UNSET,
) -> Call[answers.Subscription]:
    """Subscribes the caller to reports by mail, about one team or about all teams that the caller may see.

    If the caller already has a subscription with the same report, team, grouping and frequency, only its file format
    (`form`) changes.
    """
    return Call(
        "PUT",
        "/subscriptions",
        body=set_fields(report=report, team=team, by=by, label=label, rhythm=rhythm, form=form),
    )


def unsubscribe(subscription_id: int) -> Call[None]:
    """Ends one of the caller's subscriptions to reports by mail."""
    return Call("DELETE", filled("/subscriptions/{subscription_id}", subscription_id=subscription_id))


def follow_notifications(*, after: str | None = None) -> Call[Event]:
    """Streams the caller's notifications as they arrive: jobs that end, fail or wait, sweeps, services, budgets, requests.

    An event without a name is a notification, as the list shows it. Its id is the position after it: send it as the
    header Last-Event-ID, or as `after`, to get those that came meanwhile. Without a position, the stream begins with
    those to come. The event `bye` says that the caller should connect again, after ten minutes or because rights may
    have changed.
    """
    return Call("GET", "/notifications/stream", query=given(after=after))


def list_notifications(
    *, unread: bool | None = None, before: int | None = None, limit: int | None = None
) -> Call[answers.Notifications]:
    """Returns the caller's notifications, newest first.

    With `unread=true`, leaves out those that were read. With `before`, returns only those with smaller ids.
    """
    return Call("GET", "/notifications", query=given(unread=unread, before=before, limit=limit))


def mark_notifications(
    *, ids: list[int] | Unset | None = UNSET, read: bool | Unset = UNSET
) -> Call[answers.Changed]:
    """Marks notifications of the caller as read, or as unread.

    Returns how many changed.
    """
    return Call("POST", "/notifications/read", body=set_fields(ids=ids, read=read))


def list_notification_rules() -> Call[list[answers.Rule]]:
    """Returns the caller's rules, and the rules of the channels of teams that the caller manages.

    A caller without a rule about `me` in a place has the usual one there: in the bell, all events; by mail, warnings,
    budgets and requests.
    """
    return Call("GET", "/notification-rules")


def set_notification_rule(
    *,
    events: list[
        Literal[
            "job.failed",
            "job.ended",
            "job.waiting",
            "job.warned",
            "job.started",
            "job.suspended",
            "sweep.ended",
            "service.failed",
            "budget.warning",
            "request.open",
            "request.answered",
            "channel.failed",
            "token.revoked",
            "team.member",
        ]
    ],
    if_match: str | None = None,
    about: Literal["me", "team", "job"] | Unset = UNSET,
    team: str | Unset = UNSET,
    job: int | Unset | None = UNSET,
    way: Literal["bell", "mail", "channel"] | Unset = UNSET,
    channel: int | Unset | None = UNSET,
    rhythm: Literal["at_once", "hourly", "daily"] | Unset = UNSET,
    wait_minutes: Literal[15, 60, 240, 1440] | Unset = UNSET,
) -> Call[answers.Rule]:
    """Sets which events the caller wants to know about a subject in one place.

    Replaces an earlier rule about both.

    A rule that posts to a channel of a team belongs to the team, and must be about it.
    """
    return Call(
        "PUT",
        "/notification-rules",
        version=if_match,
        body=set_fields(
            about=about,
            team=team,
            job=job,
            events=events,
            way=way,
            channel=channel,
            rhythm=rhythm,
            wait_minutes=wait_minutes,
        ),
    )


def remove_notification_rule(rule_id: int, *, if_match: str | None = None) -> Call[None]:
    """Removes a rule."""
    return Call("DELETE", filled("/notification-rules/{rule_id}", rule_id=rule_id), version=if_match)


def list_notification_channels() -> Call[list[answers.Channel]]:
    """Returns the caller's channels, and those of the teams that the caller manages.

    Only the answers that create or change a channel have its `signing_key`, which tokens that only read must not get.
    """
    return Call("GET", "/notification-channels")


def create_notification_channel(
    *, kind: Literal["slack", "teams", "webhook"], name: str, url: str, team: str | Unset = UNSET
) -> Call[answers.Channel]:
    """Creates a channel that belongs to the caller, or to a team that the caller manages."""
    return Call("POST", "/notification-channels", body=set_fields(kind=kind, name=name, url=url, team=team))


def change_notification_channel(
    channel_id: int, *, name: str, if_match: str | None = None, url: str | Unset | None = UNSET
) -> Call[answers.Channel]:
    """Changes the name of a channel and, if `url` is given, its address."""
    return Call(
        "PUT",
        filled("/notification-channels/{channel_id}", channel_id=channel_id),
        version=if_match,
        body=set_fields(name=name, url=url),
    )


def remove_notification_channel(channel_id: int, *, if_match: str | None = None) -> Call[None]:
    """Removes a channel with its rules."""
    return Call(
        "DELETE", filled("/notification-channels/{channel_id}", channel_id=channel_id), version=if_match
    )


def test_notification_channel(channel_id: int) -> Call[answers.Tested]:
    """Posts a test to a channel, and returns whether the channel took it.

    A success resumes a paused channel.
    """
    return Call("POST", filled("/notification-channels/{channel_id}/test", channel_id=channel_id))


def get_sharing_anomalies(
    *,
    team: str | None = None,
    cluster: str | None = None,
    analysis: int | None = None,
    cause: str | None = None,
    offset: int | None = None,
    limit: int | None = None,
) -> Call[answers.SharingAnomalies]:
    """Returns one page of the sharing anomalies that an analysis found: jobs of the caller's teams that sharing delayed.

    The job with the longest delay comes first. Without `analysis`, the latest finished analysis of the cluster is used.
    If no analysis is finished, the latest unfinished one is used. In formats other than JSON, one file contains all
    anomalies and not only one page.
    """
    return Call(
        "GET",
        "/share/anomalies",
        query=given(team=team, cluster=cluster, analysis=analysis, cause=cause, offset=offset, limit=limit),
    )


def get_sharing_anomalies_file(
    *,
    format: Literal["csv", "xlsx", "pdf"],
    team: str | None = None,
    cluster: str | None = None,
    analysis: int | None = None,
    cause: str | None = None,
    offset: int | None = None,
    limit: int | None = None,
) -> Call[bytes]:
    """Returns one page of the sharing anomalies that an analysis found: jobs of the caller's teams that sharing delayed.

    The job with the longest delay comes first. Without `analysis`, the latest finished analysis of the cluster is used.
    If no analysis is finished, the latest unfinished one is used. In formats other than JSON, one file contains all
    anomalies and not only one page.
    """
    return Call(
        "GET",
        "/share/anomalies",
        query=given(
            team=team,
            cluster=cluster,
            analysis=analysis,
            cause=cause,
            offset=offset,
            limit=limit,
            format=format,
        ),
        is_file=True,
    )


def start_analysis(*, cluster: str, days: int | Unset = UNSET) -> Call[answers.Analysis]:
    """Starts an analysis of the last `days` days of a cluster, up to the last full hour.

    It runs in the background. For
    operators.

    If an analysis of exactly this period exists, no new one starts. The existing one then continues with the teams that
    have no result yet.
    """
    return Call("POST", "/share/anomalies", body=set_fields(cluster=cluster, days=days))


def repeat_analysis(analysis_id: int) -> Call[answers.Analysis]:
    """Repeats an analysis for those teams for which it has no result.

    For operators.
    """
    return Call("POST", filled("/share/anomalies/{analysis_id}/again", analysis_id=analysis_id))


def list_idle_jobs(
    *,
    period: Literal["today", "this-month", "last-month", "dates"] | None = None,
    from_: str | None = None,
    to: str | None = None,
    zone: str | None = None,
    team: str | None = None,
) -> Call[list[answers.IdleJob]]:
    """Returns jobs with idle GPUs, longest idle time first.

    With `team`, these are jobs of this team and the teams below it; otherwise, jobs of all the caller's teams. JSON has
    at most 500 jobs. The other formats have all jobs, and also the idle time of each team, as in `/idle/teams`.
    """
    return Call("GET", "/idle", query=given(period=period, from_=from_, to=to, zone=zone, team=team))


def list_idle_jobs_file(
    *,
    format: Literal["csv", "xlsx", "pdf"],
    period: Literal["today", "this-month", "last-month", "dates"] | None = None,
    from_: str | None = None,
    to: str | None = None,
    zone: str | None = None,
    team: str | None = None,
) -> Call[bytes]:
    """Returns jobs with idle GPUs, longest idle time first.

    With `team`, these are jobs of this team and the teams below it; otherwise, jobs of all the caller's teams. JSON has
    at most 500 jobs. The other formats have all jobs, and also the idle time of each team, as in `/idle/teams`.
    """
    return Call(
        "GET",
        "/idle",
        query=given(period=period, from_=from_, to=to, zone=zone, team=team, format=format),
        is_file=True,
    )


def list_idle_teams(
    *,
    period: Literal["today", "this-month", "last-month", "dates"] | None = None,
    from_: str | None = None,
    to: str | None = None,
    zone: str | None = None,
    team: str | None = None,
) -> Call[list[answers.IdleTeam]]:
    """Returns the idle GPU time and its cost for each of the caller's teams, most idle time first.

    The idle time of a team does not include that of the teams below it.
    """
    return Call("GET", "/idle/teams", query=given(period=period, from_=from_, to=to, zone=zone, team=team))


def list_idle_rules() -> Call[list[answers.IdleRule]]:
    """Returns all idle rules.

    A rule says what happens to jobs whose GPUs stay idle. For operators.
    """
    return Call("GET", "/idle-rules")


def set_idle_rule(
    *,
    action: Literal["nothing", "warn", "preemptible", "stop"] | Literal["only_idle"],
    after_minutes: int,
    if_match: str | None = None,
    team: str | Unset = UNSET,
    cluster: str | Unset = UNSET,
    grace_minutes: int | Unset = UNSET,
    snooze_hours: int | Unset = UNSET,
    services: bool | Unset = UNSET,
) -> Call[answers.IdleRule]:
    """Sets the idle rule of a team, of a cluster or of the whole portal: what happens to jobs whose GPUs stay idle.

    Without `team` and `cluster`, sets the rule of the whole portal. For operators.
    """
    return Call(
        "PUT",
        "/idle-rules",
        version=if_match,
        body=set_fields(
            team=team,
            cluster=cluster,
            action=action,
            after_minutes=after_minutes,
            grace_minutes=grace_minutes,
            snooze_hours=snooze_hours,
            services=services,
        ),
    )


def preview_idle_rule(
    *,
    action: Literal["nothing", "warn", "preemptible", "stop"] | Literal["only_idle"],
    after_minutes: int,
    team: str | Unset = UNSET,
    cluster: str | Unset = UNSET,
    grace_minutes: int | Unset = UNSET,
    snooze_hours: int | Unset = UNSET,
    services: bool | Unset = UNSET,
) -> Call[answers.IdleRuleEffect]:
    """Returns how many running jobs an idle rule would warn or stop now.

    Changes nothing. For operators.
    """
    return Call(
        "POST",
        "/idle-rules/preview",
        body=set_fields(
            team=team,
            cluster=cluster,
            action=action,
            after_minutes=after_minutes,
            grace_minutes=grace_minutes,
            snooze_hours=snooze_hours,
            services=services,
        ),
    )


def remove_idle_rule(rule_id: int, *, if_match: str | None = None) -> Call[None]:
    """Removes an idle rule.

    For operators.

    Afterwards an inherited rule applies. It is the first of these that exists:

    - the rule of the nearest team above that has one,
    - the rule of the cluster,
    - the rule of the whole portal.
    """
    return Call("DELETE", filled("/idle-rules/{rule_id}", rule_id=rule_id), version=if_match)


def list_clusters() -> Call[list[answers.AttachedCluster]]:
    """Returns all clusters, including detached ones.

    For operators.
    """
    return Call("GET", "/clusters")


def attach_cluster(
    *,
    kubeconfig: str,
    name: str,
    namespace_prefix: str | Unset = UNSET,
    writes_per_second: float | Unset = UNSET,
    writes_at_once: int | Unset = UNSET,
    checkpoint_claim: str | Unset = UNSET,
) -> Call[answers.AttachedCluster]:
    """Attaches a Kubernetes cluster.

    If a detached cluster has the given name, that cluster is attached again. For
    admins.
    """
    return Call(
        "POST",
        "/clusters",
        body=set_fields(
            kubeconfig=kubeconfig,
            name=name,
            namespace_prefix=namespace_prefix,
            writes_per_second=writes_per_second,
            writes_at_once=writes_at_once,
            checkpoint_claim=checkpoint_claim,
        ),
    )


def get_cluster(cluster: str) -> Call[answers.AttachedCluster]:
    """Returns a cluster with the result of its last check.

    For operators.
    """
    return Call("GET", filled("/clusters/{cluster}", cluster=cluster))


def check_cluster(cluster: str) -> Call[answers.AttachedCluster]:
    """Checks now whether Fairlot can access the cluster, and returns the result of the check.

    For operators.
    """
    return Call("POST", filled("/clusters/{cluster}/check", cluster=cluster))


def replace_kubeconfig(cluster: str, *, kubeconfig: str) -> Call[answers.AttachedCluster]:
    """Replaces the kubeconfig of a cluster.

    For admins.
    """
    return Call(
        "PUT",
        filled("/clusters/{cluster}/kubeconfig", cluster=cluster),
        body=set_fields(kubeconfig=kubeconfig),
    )


def set_cluster_reachable(cluster: str, *, ranges: list[str]) -> Call[answers.AttachedCluster]:
    """Sets the address ranges outside a team's namespace to which the team's jobs in the cluster may connect.

    For
    admins.
    """
    return Call(
        "PUT", filled("/clusters/{cluster}/reachable", cluster=cluster), body=set_fields(ranges=ranges)
    )


def set_standalone_pods(cluster: str, *, standalone_pods: bool) -> Call[answers.AttachedCluster]:
    """Sets whether a new job with one worker runs as a bare pod, without a Kubernetes Job.

    For admins.
    """
    return Call(
        "PUT",
        filled("/clusters/{cluster}/standalone-pods", cluster=cluster),
        body=set_fields(standalone_pods=standalone_pods),
    )


def detach_cluster(cluster: str) -> Call[answers.AttachedCluster]:
    """Detaches a cluster and deletes its kubeconfig.

    For admins.

    Refused (409) while the cluster has jobs that have not ended.
    """
    return Call("POST", filled("/clusters/{cluster}/detach", cluster=cluster))


def get_cluster_settings(cluster: str) -> Call[answers.Settings]:
    """Returns the scheduling settings of a cluster.

    For operators.
    """
    return Call("GET", filled("/clusters/{cluster}/settings", cluster=cluster))


def change_cluster_settings(
    cluster: str,
    *,
    if_match: str | None = None,
    ordering: Literal["stride", "lottery"] | Unset | None = UNSET,
    slicing: Literal["checkpoint", "freeze", "auto"] | Unset | None = UNSET,
    quantum_seconds: float | Unset | None = UNSET,
    min_hold_seconds: float | Unset | None = UNSET,
    notice_seconds: float | Unset | None = UNSET,
    overhead_limit: float | Unset | None = UNSET,
    cpu_per_gpu: float | Unset | None = UNSET,
    memory_per_gpu: float | Unset | None = UNSET,
    cpu_limit_per_gpu: float | Unset | None = UNSET,
    memory_limit_per_gpu: float | Unset | None = UNSET,
    trading: bool | Unset | None = UNSET,
    dry_run: bool | Unset = UNSET,
) -> Call[answers.SettingsAnswer]:
    """Changes the given scheduling settings of a cluster, from the next round on, and returns what changed.

    With
    `dry_run`, changes nothing. For admins.
    """
    return Call(
        "PATCH",
        filled("/clusters/{cluster}/settings", cluster=cluster),
        version=if_match,
        body=set_fields(
            ordering=ordering,
            slicing=slicing,
            quantum_seconds=quantum_seconds,
            min_hold_seconds=min_hold_seconds,
            notice_seconds=notice_seconds,
            overhead_limit=overhead_limit,
            cpu_per_gpu=cpu_per_gpu,
            memory_per_gpu=memory_per_gpu,
            cpu_limit_per_gpu=cpu_limit_per_gpu,
            memory_limit_per_gpu=memory_limit_per_gpu,
            trading=trading,
            dry_run=dry_run,
        ),
    )


def get_policy(cluster: str) -> Call[answers.Policy]:
    """Returns the scheduling policy of a cluster, the policy's options, and the shadow policy.

    For operators.
    """
    return Call("GET", filled("/clusters/{cluster}/policy", cluster=cluster))


def set_policy(
    cluster: str,
    *,
    name: str,
    options: dict[str, bool | float | str] | Unset = UNSET,
    shadow: answers.PolicyVersion | Unset | None = UNSET,
) -> Call[answers.Policy]:
    """Sets the scheduling policy of a cluster, its options, and the shadow policy.

    For admins.

    The change takes effect in the next round.
    """
    return Call(
        "PUT",
        filled("/clusters/{cluster}/policy", cluster=cluster),
        body=set_fields(name=name, options=options, shadow=shadow),
    )


def preview_policy(
    cluster: str, *, name: str, options: dict[str, bool | float | str] | Unset = UNSET
) -> Call[list[answers.ShareChange]]:
    """Returns how the current shares would change if the cluster used the given policy.

    Nothing is saved. For
    admins.
    """
    return Call(
        "POST",
        filled("/clusters/{cluster}/policy/preview", cluster=cluster),
        body=set_fields(name=name, options=options),
    )


def compare_policies(cluster: str) -> Call[answers.Comparison]:
    """Compares the decisions of a cluster's policy and of its shadow policy in the rounds of the last day.

    For
    operators.
    """
    return Call("GET", filled("/clusters/{cluster}/policy/comparison", cluster=cluster))


def get_drain(cluster: str, node: str) -> Call[answers.DrainedNode]:
    """Returns a node, and the jobs that its drain affects.

    For operators.

    If the node is not being drained, returns the jobs that a drain would affect.
    """
    return Call("GET", filled("/clusters/{cluster}/nodes/{node}/drain", cluster=cluster, node=node))


def drain_node(
    cluster: str,
    node: str,
    *,
    reason: str,
    mode: Literal["finish", "deadline", "now"] | Unset = UNSET,
    deadline: str | Unset | None = UNSET,
) -> Call[answers.DrainedNode]:
    """Drains a node.

    No new job starts on it. Its running jobs finish, end by a deadline, or stop now. For
    operators.
    """
    return Call(
        "POST",
        filled("/clusters/{cluster}/nodes/{node}/drain", cluster=cluster, node=node),
        body=set_fields(reason=reason, mode=mode, deadline=deadline),
    )


def undrain_node(cluster: str, node: str) -> Call[answers.DrainedNode]:
    """Ends the drain of a node, so that new jobs may start on it again.

    Jobs that still run on it continue. For
    operators.
    """
    return Call("DELETE", filled("/clusters/{cluster}/nodes/{node}/drain", cluster=cluster, node=node))


def drain_nodes(
    cluster: str,
    *,
    nodes: list[str],
    reason: str,
    mode: Literal["finish", "deadline", "now"] | Unset = UNSET,
    deadline: str | Unset | None = UNSET,
    dry_run: bool | Unset = UNSET,
) -> Call[answers.DrainedNodes]:
    """Drains several nodes of a cluster together, or returns what that would affect.

    For operators.
    """
    return Call(
        "POST",
        filled("/clusters/{cluster}/drain", cluster=cluster),
        body=set_fields(nodes=nodes, reason=reason, mode=mode, deadline=deadline, dry_run=dry_run),
    )


def return_nodes(cluster: str, *, nodes: list[str]) -> Call[answers.DrainedNodes]:
    """Ends the drain of several nodes of a cluster, so that new jobs may start on them again.

    For operators.
    """
    return Call("POST", filled("/clusters/{cluster}/return", cluster=cluster), body=set_fields(nodes=nodes))


def list_announcements(*, every: bool | None = None) -> Call[list[answers.Announcement]]:
    """Returns the announcements that the caller's pages show now.

    With `every`, operators get all announcements.
    """
    return Call("GET", "/announcements", query=given(every=every))


def create_announcement(
    *,
    text: str,
    severity: Literal["info", "warning", "critical"] | Unset = UNSET,
    begins_at: str | Unset | None = UNSET,
    ends_at: str | Unset | None = UNSET,
    dismissible: bool | Unset = UNSET,
    roles: list[Literal["viewer", "member", "manager", "operator", "admin"]] | Unset = UNSET,
    teams: list[str] | Unset = UNSET,
    clusters: list[str] | Unset = UNSET,
) -> Call[answers.Announcement]:
    """Makes an announcement, which pages show above their content.

    For operators.
    """
    return Call(
        "POST",
        "/announcements",
        body=set_fields(
            text=text,
            severity=severity,
            begins_at=begins_at,
            ends_at=ends_at,
            dismissible=dismissible,
            roles=roles,
            teams=teams,
            clusters=clusters,
        ),
    )


def change_announcement(
    announcement_id: int,
    *,
    text: str,
    if_match: str | None = None,
    severity: Literal["info", "warning", "critical"] | Unset = UNSET,
    begins_at: str | Unset | None = UNSET,
    ends_at: str | Unset | None = UNSET,
    dismissible: bool | Unset = UNSET,
    roles: list[Literal["viewer", "member", "manager", "operator", "admin"]] | Unset = UNSET,
    teams: list[str] | Unset = UNSET,
    clusters: list[str] | Unset = UNSET,
) -> Call[answers.Announcement]:
    """Replaces an announcement.

    If the text changes, users who dismissed it see it again. For operators.
    """
    return Call(
        "PUT",
        filled("/announcements/{announcement_id}", announcement_id=announcement_id),
        version=if_match,
        body=set_fields(
            text=text,
            severity=severity,
            begins_at=begins_at,
            ends_at=ends_at,
            dismissible=dismissible,
            roles=roles,
            teams=teams,
            clusters=clusters,
        ),
    )


def withdraw_announcement(announcement_id: int, *, if_match: str | None = None) -> Call[None]:
    """Withdraws an announcement, so that no page shows it any more.

    For operators.
    """
    return Call(
        "DELETE",
        filled("/announcements/{announcement_id}", announcement_id=announcement_id),
        version=if_match,
    )


def dismiss_announcement(announcement_id: int) -> Call[None]:
    """Removes an announcement from the caller's own pages."""
    return Call("POST", filled("/announcements/{announcement_id}/dismiss", announcement_id=announcement_id))


def list_advance_reservations() -> Call[list[answers.AdvanceReservation]]:
    """Returns the advance reservations of the caller's teams, latest first; for operators, of all teams."""
    return Call("GET", "/advance-reservations")


def get_advance_reservation(reservation_id: int) -> Call[answers.AdvanceReservation]:
    """Returns one advance reservation."""
    return Call("GET", filled("/advance-reservations/{reservation_id}", reservation_id=reservation_id))


def create_advance_reservation(
    *,
    name: str,
    team: str,
    generation: str,
    begins: str,
    ends: str,
    cluster: str,
    gpus: int | Unset | None = UNSET,
    nodes: list[str] | Unset = UNSET,
    weekly_until: str | Unset | None = UNSET,
    zone: str | Unset = UNSET,
    lends: bool | Unset = UNSET,
    dry_run: bool | Unset = UNSET,
) -> Call[answers.AdvanceReservation]:
    """Reserves GPUs for a team.

    With `dry_run`, answers 200 and says whom it would hit. For operators.
    """
    return Call(
        "POST",
        "/advance-reservations",
        body=set_fields(
            name=name,
            team=team,
            generation=generation,
            begins=begins,
            ends=ends,
            gpus=gpus,
            nodes=nodes,
            weekly_until=weekly_until,
            zone=zone,
            lends=lends,
            dry_run=dry_run,
            cluster=cluster,
        ),
    )


def change_advance_reservation(
    reservation_id: int,
    *,
    name: str,
    team: str,
    generation: str,
    begins: str,
    ends: str,
    if_match: str | None = None,
    gpus: int | Unset | None = UNSET,
    nodes: list[str] | Unset = UNSET,
    weekly_until: str | Unset | None = UNSET,
    zone: str | Unset = UNSET,
    lends: bool | Unset = UNSET,
    dry_run: bool | Unset = UNSET,
) -> Call[answers.AdvanceReservation]:
    """Replaces the terms of an advance reservation from now on.

    For operators.
    """
    return Call(
        "PUT",
        filled("/advance-reservations/{reservation_id}", reservation_id=reservation_id),
        version=if_match,
        body=set_fields(
            name=name,
            team=team,
            generation=generation,
            begins=begins,
            ends=ends,
            gpus=gpus,
            nodes=nodes,
            weekly_until=weekly_until,
            zone=zone,
            lends=lends,
            dry_run=dry_run,
        ),
    )


def cancel_advance_reservation(reservation_id: int, *, if_match: str | None = None) -> Call[None]:
    """Cancels an advance reservation: an open window ends now, and later ones do not come.

    For operators.
    """
    return Call(
        "DELETE",
        filled("/advance-reservations/{reservation_id}", reservation_id=reservation_id),
        version=if_match,
    )


def create_team(
    *, parent: str | None, tickets: int, name: str, dry_run: bool | Unset = UNSET
) -> Call[answers.TeamChange]:
    """Creates a team (201).

    For admins.

    With `dry_run`, creates nothing, and returns how the team would change the shares of other teams (200).
    """
    return Call("POST", "/teams", body=set_fields(dry_run=dry_run, parent=parent, tickets=tickets, name=name))


def set_team_tickets(
    team: str, *, tickets: int, if_match: str | None = None, dry_run: bool | Unset = UNSET
) -> Call[answers.TeamChange]:
    """Sets the tickets of a team, which are its weight among its sibling teams.

    For admins.
    """
    return Call(
        "PUT",
        filled("/teams/{team}/tickets", team=team),
        version=if_match,
        body=set_fields(dry_run=dry_run, tickets=tickets),
    )


def move_team(
    team: str, *, parent: str | None, if_match: str | None = None, dry_run: bool | Unset = UNSET
) -> Call[answers.TeamChange]:
    """Moves a team, including the teams below it, under another team or to the top level.

    For admins.
    """
    return Call(
        "PUT",
        filled("/teams/{team}/parent", team=team),
        version=if_match,
        body=set_fields(dry_run=dry_run, parent=parent),
    )


def set_team_archived(
    team: str, *, archived: bool, if_match: str | None = None, dry_run: bool | Unset = UNSET
) -> Call[answers.TeamChange]:
    """Archives a team or, if the field `archived` in the request is false, restores an archived team.

    For admins.
    """
    return Call(
        "PUT",
        filled("/teams/{team}/archived", team=team),
        version=if_match,
        body=set_fields(dry_run=dry_run, archived=archived),
    )


def list_members(team: str) -> Call[list[answers.Member]]:
    """Returns the direct members of a team.

    For the team's managers and for admins.
    """
    return Call("GET", filled("/teams/{team}/members", team=team))


def add_member(
    team: str,
    *,
    user: str,
    role: Literal["viewer", "member", "manager"] | Unset = UNSET,
    tickets: int | Unset = UNSET,
) -> Call[answers.Member]:
    """Adds an existing user to a team.

    For the team's managers and for admins.
    """
    return Call(
        "POST",
        filled("/teams/{team}/members", team=team),
        body=set_fields(user=user, role=role, tickets=tickets),
    )


def change_member(
    team: str,
    user: str,
    *,
    if_match: str | None = None,
    role: Literal["viewer", "member", "manager"] | Unset | None = UNSET,
    tickets: int | Unset | None = UNSET,
) -> Call[answers.Member]:
    """Changes the role or the tickets of a member.

    For the team's managers and for admins.
    """
    return Call(
        "PATCH",
        filled("/teams/{team}/members/{user}", team=team, user=user),
        version=if_match,
        body=set_fields(role=role, tickets=tickets),
    )


def remove_member(team: str, user: str, *, if_match: str | None = None) -> Call[None]:
    """Removes a member from a team.

    The user's work stays in the team. For the team's managers and for admins.
    """
    return Call("DELETE", filled("/teams/{team}/members/{user}", team=team, user=user), version=if_match)


def list_invitations(team: str) -> Call[list[answers.Invitation]]:
    """Returns the open invitations to a team, without their links.

    For the team's managers and for admins.
    """
    return Call("GET", filled("/teams/{team}/invitations", team=team))


def create_invitation(
    team: str,
    *,
    role: Literal["viewer", "member", "manager"] | Unset = UNSET,
    tickets: int | Unset = UNSET,
    email: str | Unset = UNSET,
    most_uses: int | Unset = UNSET,
    days: int | Unset = UNSET,
) -> Call[answers.NewInvitationLink]:
    """Creates an invitation to a team, and returns its link.

    For the team's managers and for admins.

    A user who opens the link can join the team. With `email`, Fairlot also sends the link to this address.
    """
    return Call(
        "POST",
        filled("/teams/{team}/invitations", team=team),
        body=set_fields(role=role, tickets=tickets, email=email, most_uses=most_uses, days=days),
    )


def revoke_invitation(team: str, invitation_id: int) -> Call[None]:
    """Revokes an invitation, so that its link no longer works.

    For the team's managers and for admins.
    """
    return Call(
        "DELETE", filled("/teams/{team}/invitations/{invitation_id}", team=team, invitation_id=invitation_id)
    )


def accept_invitation(*, invitation: str) -> Call[answers.Membership]:
    """Accepts an invitation: the caller becomes a member of its team.

    If the caller is a member, the role stays.
    """
    return Call("POST", "/invitations/accept", body=set_fields(invitation=invitation))


def preview_tickets(
    *, team: str, tickets: int, user: str | Unset | None = UNSET
) -> Call[list[answers.ShareChange]]:
    """Returns how the current shares would change if a team, or a member of a team, had the given number of tickets.

    Nothing is saved. Operators get the shares of all teams. Managers get those of their team, and of its members if a
    member is given.
    """
    return Call("POST", "/tickets/preview", body=set_fields(team=team, user=user, tickets=tickets))


def list_limits(*, team: str) -> Call[list[answers.Limit]]:
    """Returns the limits of a team and their current usage.

    For the team's managers and for operators.
    """
    return Call("GET", "/limits", query=given(team=team))


def list_own_limits() -> Call[list[answers.OwnLimit]]:
    """Returns the limits that bind the caller, with their usage.

    Limits on users have a row for each of the caller's teams, with the caller's usage there. Limits on a team as a
    whole have the usage of the team.
    """
    return Call("GET", "/limits/own")


def set_limit(
    *,
    kind: Literal["gpus", "gpu_hours", "money", "queued_jobs", "longest_run", "borrowed", "storage"],
    limit: float | str,
    team: str,
    generation: str | Unset | None = UNSET,
    user: str | Unset | None = UNSET,
    each_user: bool | Unset = UNSET,
    period: Literal["", "month", "quarter", "rolling"] | Unset = UNSET,
    days: int | Unset | None = UNSET,
    at_limit: Literal["block", "idle", "warn"] | Unset = UNSET,
) -> Call[answers.Limit]:
    """Sets a limit.

    If a limit of the same kind and scope exists, its amount is replaced.

    For admins. Managers of the team set limits on its members, which stand beside those that admins set.
    """
    return Call(
        "POST",
        "/limits",
        body=set_fields(
            kind=kind,
            limit=limit,
            generation=generation,
            user=user,
            each_user=each_user,
            period=period,
            days=days,
            at_limit=at_limit,
            team=team,
        ),
    )


def remove_limit(limit_id: int, *, if_match: str | None = None) -> Call[None]:
    """Removes a limit.

    For admins; managers of the team remove limits that managers set.
    """
    return Call("DELETE", filled("/limits/{limit_id}", limit_id=limit_id), version=if_match)


def preview_limit(
    *,
    kind: Literal["gpus", "gpu_hours", "money", "queued_jobs", "longest_run", "borrowed", "storage"],
    limit: float | str,
    team: str,
    generation: str | Unset | None = UNSET,
    user: str | Unset | None = UNSET,
    each_user: bool | Unset = UNSET,
    period: Literal["", "month", "quarter", "rolling"] | Unset = UNSET,
    days: int | Unset | None = UNSET,
    at_limit: Literal["block", "idle", "warn"] | Unset = UNSET,
) -> Call[list[answers.ShareChange]]:
    """Returns how the current shares would change if the given limit were set.

    Nothing is saved.

    Operators get the shares of all teams, managers of the team those of their team.
    """
    return Call(
        "POST",
        "/limits/preview",
        body=set_fields(
            kind=kind,
            limit=limit,
            generation=generation,
            user=user,
            each_user=each_user,
            period=period,
            days=days,
            at_limit=at_limit,
            team=team,
        ),
    )


def preview_limit_removal(limit_id: int) -> Call[list[answers.ShareChange]]:
    """Returns how the current shares would change if the given limit were removed.

    Nothing is removed. For
    operators.
    """
    return Call("POST", filled("/limits/{limit_id}/removal/preview", limit_id=limit_id))


def list_budgets(*, team: str) -> Call[list[answers.Budget]]:
    """Returns the budgets of a team, each with the amounts spent and forecast.

    For the team's managers and for
    operators.
    """
    return Call("GET", "/budgets", query=given(team=team))


def set_budget(
    *,
    team: str,
    amount: float | str,
    if_match: str | None = None,
    period: Literal["month", "quarter"] | Unset = UNSET,
    percentages: list[int] | Unset | None = UNSET,
    by_forecast: bool | Unset | None = UNSET,
    webhook_url: str | Unset | None = UNSET,
) -> Call[answers.SetBudget]:
    """Sets a team's budget per calendar month or quarter.

    Optional settings that are left out keep their values.

    For admins and for managers of the team. An amount that a manager sets must not exceed the budget of any team above
    for the same kind of period.

    `signing_key` in the response is the key that signs the webhook calls. It is null unless the caller is an admin, or
    is the manager who set the webhook address.
    """
    return Call(
        "PUT",
        "/budgets",
        version=if_match,
        body=set_fields(
            team=team,
            amount=amount,
            period=period,
            percentages=percentages,
            by_forecast=by_forecast,
            webhook_url=webhook_url,
        ),
    )


def remove_budget(budget_id: int, *, if_match: str | None = None) -> Call[None]:
    """Removes a budget.

    For managers of the team and for admins.
    """
    return Call("DELETE", filled("/budgets/{budget_id}", budget_id=budget_id), version=if_match)


def list_requests(
    *,
    state: Literal["", "open", "approved", "declined", "withdrawn"] | None = None,
    before: int | None = None,
    page_size: int | None = None,
) -> Pages[answers.Request]:
    """Returns one page of the requests of the teams that the caller manages, newest first.

    Operators get all teams'
    requests.

    To get the next page, with older requests, set `before` to this page's `next`, which is null on the last page.
    """
    return Pages(Call("GET", "/requests", query=given(state=state, before=before, limit=page_size)), "before")


def ask_for(
    *,
    team: str,
    kind: Literal["tickets", "limit", "extension", "team"],
    reason: str,
    until: str | Unset | None = UNSET,
    tickets: int | Unset | None = UNSET,
    name: str | Unset | None = UNSET,
    limit: answers.LimitTerms | Unset | None = UNSET,
    extends: int | Unset | None = UNSET,
) -> Call[answers.Request]:
    """Makes a request to the operators, for a team that the caller manages."""
    return Call(
        "POST",
        "/requests",
        body=set_fields(
            team=team,
            kind=kind,
            reason=reason,
            until=until,
            tickets=tickets,
            name=name,
            limit=limit,
            extends=extends,
        ),
    )


def get_request(request_id: int) -> Call[answers.Request]:
    """Returns a request and the operators' answer to it, if there is one."""
    return Call("GET", filled("/requests/{request_id}", request_id=request_id))


def approve_request(
    request_id: int,
    *,
    answer: str | Unset = UNSET,
    tickets: int | Unset | None = UNSET,
    name: str | Unset | None = UNSET,
    limit: float | str | Unset | None = UNSET,
    until: str | Unset | None = UNSET,
) -> Call[answers.Request]:
    """Approves a request, which takes effect immediately.

    For fields that are left out, the requested values are
    granted. For operators.
    """
    return Call(
        "POST",
        filled("/requests/{request_id}/approve", request_id=request_id),
        body=set_fields(answer=answer, tickets=tickets, name=name, limit=limit, until=until),
    )


def decline_request(request_id: int, *, answer: str) -> Call[answers.Request]:
    """Declines a request with a reason.

    For operators.
    """
    return Call(
        "POST",
        filled("/requests/{request_id}/decline", request_id=request_id),
        body=set_fields(answer=answer),
    )


def withdraw_request(request_id: int) -> Call[answers.Request]:
    """Withdraws a request that the operators have not answered yet.

    For managers of the team.
    """
    return Call("POST", filled("/requests/{request_id}/withdraw", request_id=request_id))


def list_secrets() -> Call[list[answers.Secret]]:
    """Returns the secrets that jobs of the caller may use: the caller's secrets and the secrets of the caller's teams."""
    return Call("GET", "/secrets")


def create_secret(
    *,
    name: str,
    value: str | Unset | None = UNSET,
    values: dict[str, str] | Unset = UNSET,
    team: str | Unset = UNSET,
) -> Call[answers.Secret]:
    """Creates a secret that belongs to the caller, or to a team that the caller manages."""
    return Call("POST", "/secrets", body=set_fields(value=value, values=values, name=name, team=team))


def replace_secret(
    secret_id: int,
    *,
    if_match: str | None = None,
    value: str | Unset | None = UNSET,
    values: dict[str, str] | Unset = UNSET,
) -> Call[answers.Secret]:
    """Replaces the content of a secret.

    A running job gets the new content when its next attempt starts.
    """
    return Call(
        "PUT",
        filled("/secrets/{secret_id}", secret_id=secret_id),
        version=if_match,
        body=set_fields(value=value, values=values),
    )


def delete_secret(secret_id: int) -> Call[None]:
    """Deletes a secret.

    Refused (409) while a job that has not ended uses the secret.
    """
    return Call("DELETE", filled("/secrets/{secret_id}", secret_id=secret_id))


def list_volumes() -> Call[list[answers.Volume]]:
    """Returns the volumes that jobs of the caller may mount.

    Operators get all volumes.
    """
    return Call("GET", "/volumes")


def list_audit_events(
    *,
    actor: str | None = None,
    kind: str | None = None,
    verb: str | None = None,
    target: str | None = None,
    q: str | None = None,
    from_: str | None = None,
    to: str | None = None,
    zone: str | None = None,
    before: int | None = None,
    page_size: int | None = None,
) -> Pages[answers.AuditEvent]:
    """Returns one page of the changes that match, newest first.

    Operators read all; managers those of their teams.

    To get the next page, with older changes, set `before` to this page's `next`, which is null on the last page.
    """
    return Pages(
        Call(
            "GET",
            "/audit",
            query=given(
                actor=actor,
                kind=kind,
                verb=verb,
                target=target,
                q=q,
                from_=from_,
                to=to,
                zone=zone,
                before=before,
                limit=page_size,
            ),
        ),
        "before",
    )


def export_audit_events(
    form: Literal["audit.csv", "audit.jsonl"],
    *,
    actor: str | None = None,
    kind: str | None = None,
    verb: str | None = None,
    target: str | None = None,
    q: str | None = None,
    from_: str | None = None,
    to: str | None = None,
    zone: str | None = None,
) -> Call[bytes]:
    """Streams all changes that match as CSV or as JSON lines, newest first.

    Operators read all; managers those of their
    teams.
    """
    return Call(
        "GET",
        filled("/audit/{form}", form=form),
        query=given(actor=actor, kind=kind, verb=verb, target=target, q=q, from_=from_, to=to, zone=zone),
        is_file=True,
    )


def list_prices() -> Call[list[answers.Price]]:
    """Returns the past, present and planned prices of all GPU types, of each the latest first.

    For admins.
    """
    return Call("GET", "/prices")


def set_price(
    *,
    generation: str,
    per_gpu_hour: float | str,
    idle: float | str | Unset | None = UNSET,
    preemptible: float | str | Unset | None = UNSET,
    borrowed: float | str | Unset | None = UNSET,
    since: str | Unset | None = UNSET,
) -> Call[answers.Price]:
    """Sets the price of a GPU-hour from a moment on, until the next price that is already set.

    For admins.
    """
    return Call(
        "POST",
        "/prices",
        body=set_fields(
            generation=generation,
            per_gpu_hour=per_gpu_hour,
            idle=idle,
            preemptible=preemptible,
            borrowed=borrowed,
            since=since,
        ),
    )


def remove_price(price_id: int) -> Call[None]:
    """Removes a planned price, so that the price before it stays valid.

    For admins.

    A price that has begun stays: set another one instead.
    """
    return Call("DELETE", filled("/prices/{price_id}", price_id=price_id))


def grant_volume(
    cluster: str, *, name: str, source: str, read_only: bool | Unset = UNSET, team: str | Unset = UNSET
) -> Call[answers.GrantedVolume]:
    """Grants a volume: allows jobs of one team, or of every team, to mount it.

    For operators.

    The volume is a persistent volume claim or, on a local cluster, a folder.
    """
    return Call(
        "POST",
        filled("/clusters/{cluster}/volumes", cluster=cluster),
        body=set_fields(name=name, source=source, read_only=read_only, team=team),
    )


def withdraw_volume(cluster: str, volume_id: int) -> Call[None]:
    """Withdraws a volume.

    From then on, no attempt that mounts the volume starts. For operators.
    """
    return Call(
        "DELETE", filled("/clusters/{cluster}/volumes/{volume_id}", cluster=cluster, volume_id=volume_id)
    )


def get_work(username: str, *, team: str) -> Call[answers.Work]:
    """Returns how many unfinished jobs, sweeps, pipelines, sessions, services and schedules a user has in a team.

    The user may already have left the team. For managers and admins.
    """
    return Call("GET", filled("/work/{username}", username=username), query=given(team=team))


def hand_over_work(username: str, *, team: str, to: str) -> Call[answers.HandedOver]:
    """Hands over a user's unfinished work in a team to another member.

    For managers and admins.

    Work that uses secrets stays with the user. The response lists this work in `kept`.
    """
    return Call(
        "POST", filled("/work/{username}/hand-over", username=username), body=set_fields(team=team, to=to)
    )


class Operations:
    """The methods of both clients."""

    me = Method(me)
    begin_login = Method(begin_login)
    login_token = Method(login_token)
    list_jobs = PagedMethod(list_jobs)
    list_job_groups = Method(list_job_groups)
    submit_job = Method(submit_job)
    submit_jobs = Method(submit_jobs)
    check_job = Method(check_job)
    get_job = Method(get_job)
    clone_job = Method(clone_job)
    cancel_job = Method(cancel_job)
    set_job_preemptible = Method(set_job_preemptible)
    list_job_events = PagedMethod(list_job_events)
    read_job_log = Method(read_job_log)
    get_job_metrics = Method(get_job_metrics)
    follow_job_log = StreamMethod(follow_job_log)
    read_job_log_lines = Method(read_job_log_lines)
    search_job_log = PagedMethod(search_job_log)
    explain_job = Method(explain_job)
    get_job_cost = Method(get_job_cost)
    get_job_gpu_use = Method(get_job_gpu_use)
    snooze_job = Method(snooze_job)
    change_job = Method(change_job)
    list_views = Method(list_views)
    save_view = Method(save_view)
    remove_view = Method(remove_view)
    upload_code = Method(upload_code)
    convert_file = Method(convert_file)
    list_job_files = Method(list_job_files)
    read_job_file = Method(read_job_file)
    download_job_files = Method(download_job_files)
    list_job_results = Method(list_job_results)
    download_job_results = Method(download_job_results)
    delete_job_files = Method(delete_job_files)
    list_storage = PagedMethod(list_storage)
    list_sweeps = PagedMethod(list_sweeps)
    create_sweep = Method(create_sweep)
    preview_sweep = Method(preview_sweep)
    get_sweep = Method(get_sweep)
    list_sweep_members = PagedMethod(list_sweep_members)
    list_sweep_members_file = Method(list_sweep_members_file)
    cancel_sweep = Method(cancel_sweep)
    run_failed_members = Method(run_failed_members)
    list_pipelines = PagedMethod(list_pipelines)
    create_pipeline = Method(create_pipeline)
    get_pipeline = Method(get_pipeline)
    cancel_pipeline = Method(cancel_pipeline)
    run_pipeline_again = Method(run_pipeline_again)
    list_drafts = Method(list_drafts)
    create_draft = Method(create_draft)
    get_draft = Method(get_draft)
    delete_draft = Method(delete_draft)
    list_templates = PagedMethod(list_templates)
    publish_template = Method(publish_template)
    get_template = Method(get_template)
    publish_template_version = Method(publish_template_version)
    withdraw_template = Method(withdraw_template)
    preview_template = Method(preview_template)
    submit_template = Method(submit_template)
    list_services = PagedMethod(list_services)
    create_service = Method(create_service)
    get_service = Method(get_service)
    change_service = Method(change_service)
    remove_service = Method(remove_service)
    roll_back_service = Method(roll_back_service)
    list_service_events = PagedMethod(list_service_events)
    get_service_traffic = Method(get_service_traffic)
    read_service_log_lines = Method(read_service_log_lines)
    list_terminals = Method(list_terminals)
    end_terminal = Method(end_terminal)
    list_sessions = PagedMethod(list_sessions)
    start_session = Method(start_session)
    get_session = Method(get_session)
    stop_session = Method(stop_session)
    keep_session = Method(keep_session)
    list_schedules = PagedMethod(list_schedules)
    create_schedule = Method(create_schedule)
    get_schedule = Method(get_schedule)
    change_schedule = Method(change_schedule)
    delete_schedule = Method(delete_schedule)
    pause_schedule = Method(pause_schedule)
    resume_schedule = Method(resume_schedule)
    run_schedule = Method(run_schedule)
    list_schedule_runs = PagedMethod(list_schedule_runs)
    gpu_map = Method(gpu_map)
    list_holders = Method(list_holders)
    list_consumers = Method(list_consumers)
    get_share = Method(get_share)
    list_trades = PagedMethod(list_trades)
    list_trades_file = Method(list_trades_file)
    list_booked_trades = Method(list_booked_trades)
    list_trade_limits = Method(list_trade_limits)
    set_trade_limits = Method(set_trade_limits)
    get_usage = Method(get_usage)
    get_usage_file = Method(get_usage_file)
    get_statement = Method(get_statement)
    get_statement_file = Method(get_statement_file)
    get_capacity = Method(get_capacity)
    get_capacity_file = Method(get_capacity_file)
    get_fairness = Method(get_fairness)
    get_fairness_file = Method(get_fairness_file)
    get_operations_report = Method(get_operations_report)
    get_operations_report_file = Method(get_operations_report_file)
    get_chargeback = Method(get_chargeback)
    get_chargeback_file = Method(get_chargeback_file)
    export = Method(export)
    list_subscriptions = Method(list_subscriptions)
    subscribe = Method(subscribe)
    unsubscribe = Method(unsubscribe)
    follow_notifications = StreamMethod(follow_notifications)
    list_notifications = Method(list_notifications)
    mark_notifications = Method(mark_notifications)
    list_notification_rules = Method(list_notification_rules)
    set_notification_rule = Method(set_notification_rule)
    remove_notification_rule = Method(remove_notification_rule)
    list_notification_channels = Method(list_notification_channels)
    create_notification_channel = Method(create_notification_channel)
    change_notification_channel = Method(change_notification_channel)
    remove_notification_channel = Method(remove_notification_channel)
    test_notification_channel = Method(test_notification_channel)
    get_sharing_anomalies = Method(get_sharing_anomalies)
    get_sharing_anomalies_file = Method(get_sharing_anomalies_file)
    start_analysis = Method(start_analysis)
    repeat_analysis = Method(repeat_analysis)
    list_idle_jobs = Method(list_idle_jobs)
    list_idle_jobs_file = Method(list_idle_jobs_file)
    list_idle_teams = Method(list_idle_teams)
    list_idle_rules = Method(list_idle_rules)
    set_idle_rule = Method(set_idle_rule)
    preview_idle_rule = Method(preview_idle_rule)
    remove_idle_rule = Method(remove_idle_rule)
    list_clusters = Method(list_clusters)
    attach_cluster = Method(attach_cluster)
    get_cluster = Method(get_cluster)
    check_cluster = Method(check_cluster)
    replace_kubeconfig = Method(replace_kubeconfig)
    set_cluster_reachable = Method(set_cluster_reachable)
    set_standalone_pods = Method(set_standalone_pods)
    detach_cluster = Method(detach_cluster)
    get_cluster_settings = Method(get_cluster_settings)
    change_cluster_settings = Method(change_cluster_settings)
    get_policy = Method(get_policy)
    set_policy = Method(set_policy)
    preview_policy = Method(preview_policy)
    compare_policies = Method(compare_policies)
    get_drain = Method(get_drain)
    drain_node = Method(drain_node)
    undrain_node = Method(undrain_node)
    drain_nodes = Method(drain_nodes)
    return_nodes = Method(return_nodes)
    list_announcements = Method(list_announcements)
    create_announcement = Method(create_announcement)
    change_announcement = Method(change_announcement)
    withdraw_announcement = Method(withdraw_announcement)
    dismiss_announcement = Method(dismiss_announcement)
    list_advance_reservations = Method(list_advance_reservations)
    get_advance_reservation = Method(get_advance_reservation)
    create_advance_reservation = Method(create_advance_reservation)
    change_advance_reservation = Method(change_advance_reservation)
    cancel_advance_reservation = Method(cancel_advance_reservation)
    create_team = Method(create_team)
    set_team_tickets = Method(set_team_tickets)
    move_team = Method(move_team)
    set_team_archived = Method(set_team_archived)
    list_members = Method(list_members)
    add_member = Method(add_member)
    change_member = Method(change_member)
    remove_member = Method(remove_member)
    list_invitations = Method(list_invitations)
    create_invitation = Method(create_invitation)
    revoke_invitation = Method(revoke_invitation)
    accept_invitation = Method(accept_invitation)
    preview_tickets = Method(preview_tickets)
    list_limits = Method(list_limits)
    list_own_limits = Method(list_own_limits)
    set_limit = Method(set_limit)
    remove_limit = Method(remove_limit)
    preview_limit = Method(preview_limit)
    preview_limit_removal = Method(preview_limit_removal)
    list_budgets = Method(list_budgets)
    set_budget = Method(set_budget)
    remove_budget = Method(remove_budget)
    list_requests = PagedMethod(list_requests)
    ask_for = Method(ask_for)
    get_request = Method(get_request)
    approve_request = Method(approve_request)
    decline_request = Method(decline_request)
    withdraw_request = Method(withdraw_request)
    list_secrets = Method(list_secrets)
    create_secret = Method(create_secret)
    replace_secret = Method(replace_secret)
    delete_secret = Method(delete_secret)
    list_volumes = Method(list_volumes)
    list_audit_events = PagedMethod(list_audit_events)
    export_audit_events = Method(export_audit_events)
    list_prices = Method(list_prices)
    set_price = Method(set_price)
    remove_price = Method(remove_price)
    grant_volume = Method(grant_volume)
    withdraw_volume = Method(withdraw_volume)
    get_work = Method(get_work)
    hand_over_work = Method(hand_over_work)
