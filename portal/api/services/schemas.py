"""Request and response schemas of the endpoints for services and their replicas."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from ninja import Field, Schema
from pydantic import AwareDatetime, ConfigDict

from portal.api.fields import IN_DIGITS, Flag, Whole
from portal.api.jobs.schemas import NewJob, Spec
from portal.api.versions import VERSION


class ServiceRules(Schema):
    replicas: Whole | None = Field(None, description="Number of replicas; 1 by default.")
    max_surge: Whole | None = Field(
        None, description="Number of extra replicas allowed during a rollout; 1 by default."
    )
    max_unavailable: Whole | None = Field(
        None, description="Number of replicas that may be unavailable during a rollout; 0 by default."
    )
    progress_deadline_seconds: Whole | None = Field(
        None, description="Seconds without progress after which a rollout counts as failed; 600 by default."
    )
    auto_rollback: Flag | None = Field(
        None, description="Whether a failed rollout is rolled back; true by default."
    )


class NewService(NewJob, ServiceRules):
    """A service to create: a job specification with a port, the number of replicas, and the rollout rules."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "spec": {
                    "name": "chat",
                    "command": "python -m http.server $PORT",
                    "port": 8000,
                    "readiness_path": "/",
                },
                "replicas": 2,
            }
        }
    )


class ServiceChange(ServiceRules):
    """A change of a service. Fields that are left out stay unchanged. A new specification becomes a new revision, which
    is rolled out."""

    spec: Spec | None = None
    stopped: Flag | None = None


class ServiceRevision(Schema):
    number: int
    spec: dict[str, Any]
    author: str
    at: datetime
    proved_at: datetime | None = Field(
        description="Time at which all replicas of this revision had become ready; null before that time."
    )
    failed_at: datetime | None
    why_failed: str
    failed_job_id: int | None = Field(
        description="Id of the replica whose log says why this revision failed; null if it has not failed, or "
        "if no replica of it ran."
    )


class Interruption(Schema):
    job_id: int = Field(description="Id of the job that answered requests before the interruption.")
    name: str
    cause: str = Field(
        description="Fixed code of the cause, for API clients: `claimed`, `own_jobs`, `limit`, `moved`, "
        "`drained`, `lost`, `team_archived`, `owner_may_not`, `portal_stopped`, `person`, `replaced`, `ended` or "
        "`not_ready`."
    )
    text: str = Field(description="Cause of the interruption in plain words.")
    began_at: datetime
    ended_at: datetime | None = Field(description="End of the interruption; null while it lasts.")
    seconds: float = Field(
        description="Length of the interruption in seconds. If the interruption still lasts, its length "
        "until now."
    )


class ReservedAhead(Schema):
    """A window of an advance reservation of another team on nodes on which a service or session runs."""

    begins_at: datetime
    ends_at: datetime
    stops_at: datetime = Field(description="Time from which what runs there may be stopped.")
    gpus: int = Field(description="Number of GPUs that are reserved on these nodes.")
    nodes: list[str]
    jobs: list[str] = Field(description="Names of the replicas that run there, or of the session.")
    team: str = Field(description="Name of the team; empty if the caller may not know it.")


class ServiceReplica(Schema):
    job_id: int
    name: str
    slot: int
    attempt: int
    revision: int
    state: str
    reason: str = Field(description="Why the replica waits, in a few words; empty if it does not wait.")
    ready: bool
    address: str = Field(description="Host and port of the replica; empty while the replica does not run.")
    why_not_ready: str
    claimable_from: datetime | None = Field(
        description="Time from which other jobs may suspend the replica; null while its GPUs are guaranteed."
    )


class Service(Schema):
    id: int
    version: str = Field(description=VERSION)
    name: str
    team: str
    owner: str
    cluster: str
    replicas: int
    ready: int
    living: int
    max_surge: int
    max_unavailable: int
    progress_deadline_seconds: int
    auto_rollback: bool
    revision: int
    good_revision: int | None = Field(
        description="Number of the last revision whose replicas were all ready; null if there is no such revision."
    )
    stopped_at: datetime | None
    removed_at: datetime | None
    created_at: datetime
    status: str = Field(description="State of the service in one or two words, as on the service's page.")
    url: str = Field(
        description="URL at which members of the team reach the service, in a browser or with an API "
        "token that may write. Empty if the portal has no host names for services."
    )
    trouble: str = Field(description="Problems of the service in plain words; empty if there is no problem.")


class ReplicaFailure(Schema):
    job_id: int
    name: str
    revision: int
    ended_at: datetime | None = Field(description="End of the replica; null while Fairlot stops it.")
    end_message: str
    exit_meaning: str = Field(
        description="What the exit code of the failed replica means; empty if the code has no known meaning."
    )
    last_lines: list[str] = Field(
        description="The end of the failed replica's log as plain text: at most 20 lines or 4 KB."
    )


class ServiceInFull(Service):
    last_failure: ReplicaFailure | None = Field(
        description="The latest failure of the current revision while too few replicas are ready. If the latest "
        "rollout was rolled back, a replica of the revision that failed. Otherwise null."
    )
    sentences: list[str] = Field(
        description="Sentences about the replicas: how many run or wait, and why they wait."
    )
    revisions: list[ServiceRevision]
    members: list[ServiceReplica]
    interruptions: list[Interruption] = Field(description="The 20 most recent interruptions, newest first.")
    expected_back_at: datetime | None = Field(
        description="Time by which the first waiting replica is expected to start; null if unknown."
    )
    reserved_ahead: list[ReservedAhead] = Field(
        description="Windows of other teams' reservations, open or within a day, for which replicas may be stopped."
    )
    next_try_at: datetime | None = Field(
        description="Time from which Fairlot creates the next replica in place of one that ended by itself; null if "
        "none is due."
    )
    gives_up_at: datetime | None = Field(
        description="Time at which the rollout counts as failed if no further replica becomes ready before; null if "
        "no rollout is in progress, or if its replicas only wait for GPUs."
    )
    rolls_back_to: int | None = Field(
        description="Number of the revision to which Fairlot rolls back then; null if it does not."
    )


class ServicePage(Schema):
    """A page of services, newest first.

    To get the next page, with older services, call the endpoint again with the parameter `before` set to `next`, which
    is null on the last page.
    """

    items: list[Service]
    next: int | None


class Rollback(Schema):
    revision: Whole


class ServiceEvent(Schema):
    id: int
    at: datetime
    kind: str
    text: str


class ServiceEventPage(Schema):
    """A page of the events of a service, newest first.

    To get the next page, with older events, call the endpoint again with the parameter `before` set to `next`, which is
    null on the last page.
    """

    items: list[ServiceEvent]
    next: int | None


class TrafficPeriod(Schema):
    """The period of the traffic, and how fine its points are."""

    begins: AwareDatetime | None = Field(
        None, alias="from", description="Begin of the period. Without it, an hour before its end."
    )
    ends: AwareDatetime | None = Field(None, alias="to", description="End of the period. Without it, now.")
    most_points: Annotated[int, IN_DIGITS] = Field(
        240, ge=2, le=2000, description="The most points. It decides how long their windows are."
    )


class TrafficPoint(Schema):
    """The requests in one window. `at` is the begin of the window."""

    at: datetime
    requests: int
    requests_per_second: float
    client_errors: int = Field(description="Answers with a status from 400 to 499.")
    server_errors: int = Field(description="Answers of a replica with a status of 500 or more.")
    no_replica: int = Field(description="Requests that came while no replica was ready.")
    no_answer: int = Field(description="Requests whose replica could not be reached or broke off.")
    timed_out: int = Field(description="Requests whose replica did not answer in time.")
    left: int = Field(description="Requests whose sender left before the answer began.")
    p50_seconds: float | None = Field(
        description="Half of the answers began within this time; null without answers."
    )
    p95_seconds: float | None = Field(description="95 % of the answers began within this time.")
    p99_seconds: float | None = Field(description="99 % of the answers began within this time.")


class Traffic(Schema):
    """The requests to a service that passed Fairlot, in windows of `seconds`.

    Windows without requests have no point.
    """

    service: int
    seconds: int
    begins: datetime
    ends: datetime
    whole: TrafficPoint = Field(description="The whole period as one window.")
    points: list[TrafficPoint]
    not_counted: str = Field(description="Which requests are not counted, in plain words.")


class ReplicaLogLine(Schema):
    """A line of the log of a replica, or a part of a long line. `text` includes the line end."""

    job_id: int
    replica: str = Field(description="Name of the replica.")
    offset: int = Field(description="Byte offset of the line in the log of the replica. It never changes.")
    at: datetime | None = Field(description="When the line was written; null if this is not known.")
    text: str


class ReplicaLogLines(Schema):
    """Lines of the logs of the replicas of a service. `next` continues after them, as the parameter `after`.

    The lines are merged by time as far as they are there: those that replicas write later come later.
    """

    items: list[ReplicaLogLine]
    next: str
    complete: bool = Field(description="Whether the service was removed, and no more lines will come.")
    problems: list[str] = Field(description="Which logs cannot be read, and why.")
