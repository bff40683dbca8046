"""Roles: groups of workers of one gang that differ in command, image, number and resources."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from accounting.core.wording import fixed
from scheduling.spec import attachments, stored
from scheduling.spec.refused_values import RefusedAt

NAME = re.compile(r"[a-z]([a-z0-9-]{0,18}[a-z0-9])?")
MOST_ROLES, MOST_WORKERS = 10, 1024  # each worker gets the addresses of all in variables
LAUNCHER, WORKER = "launcher", "worker"  # the roles of an MPI job that names none


class Role(BaseModel):
    """An item of the field `roles` of a job spec. What it leaves empty is as in the rest of the spec."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, str_strip_whitespace=True, strict=True, allow_inf_nan=False
    )

    name: str
    workers: Annotated[int, Field(ge=1, le=MOST_WORKERS)] = 1
    gpus_per_worker: Annotated[int, Field(ge=0, le=64)] | None = None
    command: Annotated[str, Field(max_length=20_000)] = ""
    environment: Annotated[str, Field(max_length=300)] = ""
    variables: Annotated[dict[str, str], Field(max_length=200)] = {}
    cpu: Annotated[float, Field(ge=0.1, le=1024)] | None = None
    memory: attachments.Amount = ""
    # The job ends as soon as all workers of the roles with this mark have succeeded. No role has it: when all have.
    ends_job: bool = False

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is not the name of a role: use 1 to 20 lower-case letters, digits and hyphens, and begin"
                " with a letter"
            )
        return name

    @field_validator("command", "environment")
    @classmethod
    def _has_no_control_characters(cls, text: str) -> str:
        if any(ord(char) < 32 and char not in "\n\t" for char in text):
            raise ValueError("must not contain control characters")
        return text

    @property
    def holds_gpus(self) -> bool:
        return self.gpus_per_worker != 0

    @property
    def argv(self) -> list[str]:
        """Returns the argument list that runs the role's own command as a script of /bin/sh; empty if it has none."""
        return ["/bin/sh", "-c", self.command] if self.command else []


def _each_once(roles: list[Role]) -> list[Role]:
    names = [role.name for role in roles]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise RefusedAt((at, "name"), f"the list contains {name} twice")
    return roles


Roles = Annotated[list[Role], Field(max_length=MOST_ROLES), AfterValidator(_each_once)]


class SpecWithRoles(Protocol):
    """The type of a spec that has roles."""

    workers: Any
    gpus_per_worker: Any
    roles: Any
    launch: Any


def with_totals(data: Mapping[Any, Any]) -> dict[Any, Any]:
    """Returns a spec's mapping with the fields `workers` and `gpus_per_worker` that follow from its roles.

    `data` is the spec as a user wrote it. Fields that the user wrote stay unchanged. Adds nothing if the roles are
    invalid.
    """
    found, roles = dict(data), data.get("roles")
    if not isinstance(roles, list) or not all(isinstance(one, Mapping) for one in roles):
        return found
    counts = [(one.get("workers", 1), one.get("gpus_per_worker")) for one in roles]
    if not all(type(count) is int and (gpus is None or type(gpus) is int) for count, gpus in counts):
        return found
    held = [gpus for _, gpus in counts if gpus]
    if held:
        found.setdefault("gpus_per_worker", held[0])
    total = sum(count for count, gpus in counts if gpus != 0)
    if total:
        found.setdefault("workers", total)
    return found


def check_roles(spec: SpecWithRoles) -> None:
    """Raises RefusedAt if the roles do not fit together, or not to the other fields of the spec."""
    roles: Sequence[Role] = spec.roles
    if spec.launch and spec.workers > MOST_WORKERS:
        raise RefusedAt(("workers",), f"must be at most {fixed(MOST_WORKERS)} with launch: {spec.launch}")
    if not roles:
        return
    if not any(role.holds_gpus for role in roles):
        raise RefusedAt(("roles",), "at least one role must hold GPUs")
    for at, role in enumerate(roles):
        if role.gpus_per_worker not in (None, 0, spec.gpus_per_worker):
            raise RefusedAt(
                ("roles", at, "gpus_per_worker"),
                f"{role.gpus_per_worker} differs from the {spec.gpus_per_worker} GPUs of the other workers. Roles"
                " hold the same number of GPUs per worker, or 0",
            )
    total = sum(role.workers for role in roles if role.holds_gpus)
    if spec.workers != total:
        raise RefusedAt(
            ("workers",), f"the roles have {fixed(total)} workers with GPUs; leave the field workers out"
        )
    if sum(role.workers for role in roles) > MOST_WORKERS:
        raise RefusedAt(("roles",), f"must have at most {fixed(MOST_WORKERS)} workers in all")
    if spec.launch and [role.workers for role in roles if role.ends_job] != [1]:
        raise RefusedAt(
            ("roles",),
            f"launch: {spec.launch} needs a launcher: exactly one role with ends_job: true, and with one worker",
        )


class SpecOfRoles(BaseModel):
    """The fields of a stored job spec that say which workers it has."""

    model_config = ConfigDict(frozen=True)

    workers: int = 1
    gpus_per_worker: int = 1
    roles: list[Role] = []
    launch: str = ""

    @classmethod
    def of_stored(cls, spec: Any) -> Self:
        """Returns these fields of a stored job spec, without loading the rest of it."""
        return stored.load(cls, spec)


def roles_by_rank(spec: SpecWithRoles) -> list[Role]:
    """Returns the roles of a job in the order in which its workers are numbered: first those that hold GPUs.

    An MPI job of several workers that names no roles has the roles LAUNCHER and WORKER. Returns an empty list for other
    jobs without roles.
    """
    if spec.roles:
        return sorted(spec.roles, key=lambda role: not role.holds_gpus)
    if spec.launch and spec.workers > 1:
        return [
            Role(name=LAUNCHER, workers=1, ends_job=True),
            Role(name=WORKER, workers=spec.workers - 1),
        ]
    return []


def worker_names(spec: SpecWithRoles) -> list[str]:
    """Returns the name of each worker by rank, such as "ps 0". For a job without roles: its ranks."""
    roles = roles_by_rank(spec)
    if not roles:
        return [str(rank) for rank in range(spec.workers)]
    return [f"{role.name} {index}" for role in roles for index in range(role.workers)]


def leader_of(roles: Sequence[Role]) -> int:
    """Returns the rank of the worker that stands for the job: its progress and its port count.

    This is the first worker of the first role that ends the job, or else the first worker. `roles` are in the order of
    ranks.
    """
    first = 0
    for role in roles:
        if role.ends_job:
            return first
        first += role.workers
    return 0
