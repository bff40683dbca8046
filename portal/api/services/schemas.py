"""What calls about services and their replicas take and answer."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ninja import Field, Schema
from pydantic import ConfigDict

from portal.api.fields import Flag, Line, Whole
from portal.api.jobs.schemas import NewJob, Spec


class ServiceRules(Schema):
    replicas: Whole | None = Field(None, description="How many there should be; 1 where nothing is said.")
    max_surge: Whole | None = Field(None, description="So many more while revisions change; 1.")
    max_unavailable: Whole | None = Field(None, description="So many fewer ready while revisions change; 0.")
    progress_deadline_seconds: Whole | None = Field(
        None, description="A revision that gets no further for so long has failed; 600."
    )
    auto_rollback: Flag | None = Field(None, description="Go back from a revision that has failed; true.")


class NewService(NewJob, ServiceRules):
    """A job spec with a port, and how many replicas of it there should be."""

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
    """What is left out stays as it is. Another spec is another revision, which is rolled out."""

    spec: Spec | None = None
    stopped: Flag | None = None


class ServiceRevision(Schema):
    number: int
    spec: dict[str, Any]
    author: str
    at: datetime
    proved_at: datetime | None = Field(description="When all replicas had been ready, first.")
    failed_at: datetime | None
    why_failed: str


class Interruption(Schema):
    job_id: int = Field(description="Of who answered before.")
    name: str
    cause: str = Field(
        description="claimed, own_jobs, limit, moved, drained, lost, team_archived, owner_may_not, portal_stopped, "
        "person, ended or not_ready."
    )
    text: str = Field(description="In plain words.")
    began_at: datetime
    ended_at: datetime | None = Field(description="Null while nobody answers.")
    seconds: float = Field(description="How long it lasted, until now at most.")


class ServiceReplica(Schema):
    job_id: int
    name: str
    slot: int
    attempt: int
    revision: int
    state: str
    reason: str = Field(description="Why it waits, in a few words; empty for what does not wait.")
    ready: bool
    address: str = Field(description="Host and port; empty while it does not run.")
    why_not_ready: str
    claimable_from: datetime | None = Field(
        description="When others' claims may preempt it; null while it has no more than what is guaranteed."
    )


class Service(Schema):
    id: int
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
    good_revision: int | None = Field(description="The last one of which all replicas have been ready.")
    stopped_at: datetime | None
    removed_at: datetime | None
    created_at: datetime
    status: str = Field(description="In a word or two, as its page has it.")
    url: str = Field(
        description="Where members of its team reach it, whichever replicas it has, with an API token that may write. "
        "Empty where the portal has no host names for programs."
    )
    trouble: str = Field(description="What keeps it from being up as it should; empty while nothing does.")


class ReplicaFailure(Schema):
    job_id: int
    name: str
    ended_at: datetime
    end_message: str
    exit_meaning: str = Field(description="What its exit code means; empty where that says nothing.")
    last_lines: list[str] = Field(description="The end of its log, as plain text: 20 lines or 4 KB at most.")


class ServiceInFull(Service):
    last_failure: ReplicaFailure | None = Field(
        description="Of the current revision, while not all replicas are ready."
    )
    sentences: list[str] = Field(description="What is up, and what waits and why.")
    revisions: list[ServiceRevision]
    members: list[ServiceReplica]
    interruptions: list[Interruption] = Field(description="The latest 20, latest first.")
    expected_back_at: datetime | None = Field(
        description="When the first replica that waits starts at the latest, as far as that can be told."
    )


class ServiceFilters(Schema):
    team: Line = Field("", description="Slug of a team.")
    owner: Line = Field("", description="User name.")


class ServicePage(Schema):
    """Latest services first; ask again with `before` = `next` for older ones."""

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
    """Latest first; ask again with `before` = `next` for older ones."""

    items: list[ServiceEvent]
    next: int | None
