"""The JobSpec: the versioned description of a job. Forms, YAML and the API all produce a JobSpec."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal, Self

import re2
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from accounting.core.old_names import contradictions
from accounting.core.texts import not_storable, why_no_name
from accounting.core.wording import fixed, shown
from scheduling.spec import attachments, pod_fields, stored, yaml_core
from scheduling.spec.checkpoints import Checkpoint
from scheduling.spec.code import Code
from scheduling.spec.labels import Labels
from scheduling.spec.refused_values import RefusedAt, path_of
from scheduling.spec.requirements import Requirements
from scheduling.spec.retries import Retries
from scheduling.spec.roles import MOST_WORKERS, Roles, check_roles, with_totals

DEFAULT_PROGRESS = r"\bstep[ =:]+(\d+)"
# The former names of fields, which are accepted for one more version, and the present names.
NEW_NAMES = {"only_idle": "preemptible"}
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
URL_PATH = re.compile(r"/[!#-&(-;=?-_a-z~]*")  # ASCII without blanks and quotation marks
# The fields that only jobs which end by themselves may set, and their defaults.
ONLY_OF_JOBS: dict[str, Any] = {
    "expected_hours": None, "deadline_hours": None, "time_limit_hours": None, "retries": Retries(), "roles": [],
    "launch": "", "max_workers": None,
}  # fmt: skip
LONGEST_YAML = 65_536  # characters; parsing this many takes about a second
RESERVED_VARIABLES = {
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    # Some container runtimes read these variables too, and would give a job GPUs that Fairlot did not.
    "AMD_VISIBLE_DEVICES",
    "ASCEND_VISIBLE_DEVICES",
    "CUDA_VERSION",
    "HABANA_VISIBLE_DEVICES",
    "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
}


class SpecError(Exception):
    """Raised when a spec is invalid. `problems` maps each invalid field to what is wrong and what is accepted."""

    def __init__(self, problems: dict[str, str]) -> None:
        super().__init__("; ".join(f"{field}: {text}" for field, text in problems.items()))
        self.problems = problems


def why_no_variable(name: str, value: str, secrets: Collection[str] = ()) -> str:
    """Explains to users why a worker cannot have the environment variable `name` with the value `value`; "" if it can.

    `secrets` are the names of variables that come from secrets.
    """
    if not VARIABLE_NAME.fullmatch(name):
        return f"{name!r} is not a variable name: use letters, digits and _, and do not begin with a digit"
    if name in RESERVED_VARIABLES or name.startswith("FAIRLOT_"):
        return f"{name} is set by Fairlot itself; choose another name"
    if "\0" in value:
        return "must not contain zero bytes (U+0000)"
    return f"{name} is already one of the secrets; choose another name" if name in secrets else ""


def by_new_names(data: Any) -> Any:
    """Returns a spec's mapping with former field names replaced by the current ones.

    Returns `data` unchanged if it is not a mapping.
    """
    if not isinstance(data, dict):
        return data
    return {NEW_NAMES.get(name, name): value for name, value in data.items()}


class JobSpec(BaseModel):
    """A user's description of a job. A spec with unknown fields is refused with an error for each of them."""

    # Strict types: true and "5" are not accepted as numbers, and 5 is not accepted as text.
    model_config = ConfigDict(
        extra="forbid", frozen=True, str_strip_whitespace=True, strict=True, allow_inf_nan=False
    )

    version: Annotated[int, Field(ge=1, le=1)] = 1
    name: Annotated[str, Field(min_length=1, max_length=120)]
    command: Annotated[str, Field(min_length=1, max_length=20_000)]
    environment: Annotated[str, Field(max_length=300)] = ""
    workers: Annotated[int, Field(ge=1, le=4096)] = 1
    # Of an elastic job, which runs with any number of workers from `workers` to this. None: `workers` is the number.
    max_workers: Annotated[int, Field(ge=1, le=4096)] | None = None
    gpus_per_worker: Annotated[int, Field(ge=1, le=64)] = 1
    generations: Annotated[list[str], Field(max_length=50)] = []
    variables: Annotated[dict[str, str], Field(max_length=200)] = {}
    checkpoint_grace_seconds: Annotated[float, Field(ge=0, le=3600)] = 30
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    progress_pattern: Annotated[str, Field(max_length=500)] = DEFAULT_PROGRESS
    secrets: attachments.SecretVariables = {}
    secret_files: attachments.SecretFolders = []
    volumes: attachments.Volumes = []
    code: Code | None = None
    requirements: Requirements = ""
    # CPUs of each worker; None: the part of the node's CPUs that corresponds to the worker's GPUs.
    cpu: Annotated[float, Field(ge=0.1, le=1024)] | None = None
    memory: attachments.Amount = ""
    shm: attachments.Amount = ""
    working_directory: attachments.Folder = ""
    user_id: attachments.Id | None = None
    group_id: attachments.Id | None = None
    image_pull_policy: Literal["", "Always", "IfNotPresent", "Never"] = ""
    image_pull_secret: attachments.SecretName = ""
    # The port at which the first worker answers. Programs read it from the variable PORT, because not every backend can
    # provide the port that is asked for.
    port: Annotated[int, Field(ge=1024, le=65_535)] | None = None
    readiness_path: Annotated[str, Field(max_length=1000)] = ""
    readiness_period_seconds: Annotated[int, Field(ge=1, le=300)] = 5
    readiness_failures: Annotated[int, Field(ge=1, le=100)] = 3
    labels: Labels = {}
    preemptible: bool = False  # a preemptible job takes no share and runs only on idle GPUs
    # The expected total time on GPUs, and the time from the submit to the deadline.
    expected_hours: Annotated[float, Field(gt=0, le=8760)] | None = None
    deadline_hours: Annotated[float, Field(gt=0, le=8760)] | None = None
    # The total time on GPUs, over all attempts, after which the job is stopped. None: only limits of its team apply.
    time_limit_hours: Annotated[float, Field(gt=0, le=8760)] | None = None
    retries: Retries = Retries()
    checkpoint: Checkpoint = ""
    # Workers that differ. `workers` is then the number of those that hold GPUs, and follows from the roles.
    roles: Roles = []
    # What starts the processes: "" the command, in every worker; mpi: mpirun, which the launcher's command calls.
    launch: Literal["", "mpi"] = ""

    @model_validator(mode="before")
    @classmethod
    def _counts_workers_of_roles(cls, data: Any) -> Any:
        return with_totals(data) if isinstance(data, dict) else data

    @field_validator("name", "command", "environment", "progress_pattern")
    @classmethod
    def _has_no_control_characters(cls, text: str) -> str:
        if any(ord(char) < 32 and char not in "\n\t" for char in text):
            raise ValueError("must not contain control characters")
        return text

    @field_validator("name")
    @classmethod
    def _can_be_read(cls, name: str) -> str:
        if "\n" in name:
            raise ValueError("must not have several lines")
        if why := why_no_name(name):
            raise ValueError(why)
        return name

    @field_validator("generations")
    @classmethod
    def _names_each_generation_once(cls, generations: list[str]) -> list[str]:
        for place, name in enumerate(generations):
            if not name or not name.isprintable():
                raise RefusedAt((place,), "must not be empty or contain control characters")
            if name in generations[:place]:
                raise RefusedAt((place,), f"the list contains {name} twice")
        return generations

    @field_validator("variables", "secrets")
    @classmethod
    def _has_usable_names(cls, variables: dict[str, str]) -> dict[str, str]:
        for name, value in variables.items():
            if why := why_no_variable(name, value):
                raise RefusedAt((name,), why)
        return variables

    @field_validator("progress_pattern")
    @classmethod
    def _has_one_number(cls, pattern: str) -> str:
        options = re2.Options()
        options.log_errors = False  # the user gets the message, so the log need not have it
        try:
            compiled = re2.compile(pattern, options)
        except re2.error as error:
            raise ValueError(f"is not a valid regular expression (RE2): {why_no_pattern(error)}") from None
        if compiled.groups != 1:
            raise ValueError("must have exactly one group (…), which captures the number of steps")
        return pattern

    @field_validator("port")
    @classmethod
    def _is_told_to_the_program(cls, port: int | None, info: ValidationInfo) -> int | None:
        if port is not None and "PORT" in info.data.get("variables", {}):
            raise ValueError(
                "Fairlot sets the variable PORT to this port, so variables must not contain PORT"
            )
        return port

    @field_validator("readiness_path")
    @classmethod
    def _is_a_path_to_ask_for(cls, path: str, info: ValidationInfo) -> str:
        if path and not URL_PATH.fullmatch(path):
            raise ValueError(
                "must begin with /, and must not contain spaces, quotation marks or non-ASCII characters"
            )
        if path and info.data.get("port", 0) is None:
            raise ValueError("needs a port: set the field “port”, too")
        return path

    @model_validator(mode="after")
    def _brings_what_can_be_together(self) -> Self:
        attachments.check_together(self)
        return self

    @model_validator(mode="after")
    def _has_roles_that_fit(self) -> Self:
        check_roles(self)
        for at, role in enumerate(self.roles):
            for name, value in role.variables.items():
                if why := why_no_variable(name, value, self.secrets):
                    raise RefusedAt(("roles", at, "variables", name), why)
        return self

    @model_validator(mode="after")
    def _is_a_sane_gang(self) -> Self:
        for name, workers in (("workers", self.workers), ("max_workers", self.max_workers or 0)):
            if workers * self.gpus_per_worker > 65_536:
                raise RefusedAt((name,), f"{name} times gpus_per_worker is more than {fixed(65_536)} GPUs")
        if self.max_workers is None:
            return self
        if self.max_workers < self.workers:
            raise RefusedAt(
                ("max_workers",), f"{self.max_workers} is less than the {self.workers} of workers"
            )
        if self.roles:
            raise RefusedAt(("max_workers",), "is only for jobs without roles, whose workers are all alike")
        if self.launch and not 2 <= self.workers <= self.max_workers <= MOST_WORKERS:
            raise RefusedAt(
                ("max_workers",),
                f"needs at least 2 workers, and at most {fixed(MOST_WORKERS)}, with launch: {self.launch}",
            )
        return self

    @property
    def elastic_workers(self) -> int | None:
        """Returns the most workers of an elastic job; None if the number of workers is fixed."""
        is_elastic = self.max_workers is not None and self.max_workers > self.workers
        return self.max_workers if is_elastic else None

    @property
    def gpus(self) -> int:
        return self.workers * self.gpus_per_worker

    def problems_of_endless(self) -> dict[str, str]:
        """Returns an error text, by field, for each field that this spec sets but that a service or session must not
        have.

        These are the fields in ONLY_OF_JOBS. Services and sessions must not have them, because they do not end by
        themselves.
        """
        given = {name for name, usual in ONLY_OF_JOBS.items() if getattr(self, name) != usual}
        return dict.fromkeys(sorted(given), "is only for jobs that end by themselves")

    @property
    def argv(self) -> list[str]:
        """Returns the argument list that runs the command as a script of /bin/sh."""
        return ["/bin/sh", "-c", self.command]

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def to_yaml(self) -> str:
        """Returns the spec as YAML, without the fields that have their default value. `from_yaml` restores an equal
        spec."""
        return dump_spec({"version": 1, **self.model_dump(mode="json", exclude_defaults=True)})

    @classmethod
    def stored(cls, data: Any) -> Self:
        """Loads a spec from `data`, the stored form of a spec that was accepted earlier.

        Does not validate the spec, because the rules may have changed since then.
        """
        return stored.load(cls, by_new_names(data))

    @classmethod
    def parse(cls, data: Any) -> Self:
        """Validates `data` and returns the spec. Raises SpecError with each invalid field and what is accepted
        there."""
        if not isinstance(data, dict):
            raise SpecError({"": "a job spec is a mapping of fields, such as name and command"})
        if flaw := not_storable(data):
            path, why = ".".join(flaw[0]), flaw[1]
            raise SpecError({path: f"{why} (accepted: {ACCEPTED[path]})" if path in ACCEPTED else why})
        if wrong := contradictions(data, NEW_NAMES):
            raise SpecError(wrong)
        data = by_new_names(data)
        if foreign := pod_fields.refusals(data, frozenset(cls.model_fields)):
            raise SpecError(foreign)
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise SpecError(_plain_problems(error)) from None

    @classmethod
    def from_yaml(cls, text: str) -> Self:
        """Reads a spec from one YAML 1.2 document.

        Raises SpecError if the spec is invalid, or if the YAML contains duplicate keys, tags or aliases.
        """
        if len(text) > LONGEST_YAML:
            raise SpecError(
                {"yaml": f"must have at most {fixed(LONGEST_YAML)} characters, not {fixed(len(text))}"}
            )
        try:
            data = yaml_core.read(text)
        except yaml_core.NotYaml as error:
            raise SpecError({"yaml": str(error)}) from None
        return cls.parse(data)


def why_no_pattern(error: re2.error) -> str:
    """Returns RE2's message about an invalid pattern as str, because the library may give bytes."""
    said = error.args[0] if error.args else ""
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)


def dump_stored(data: Any) -> str:
    """Returns a stored spec as YAML, without the fields that have their default value. Does not validate the spec.

    Values that cannot be loaded appear as they are stored.
    """
    spec = JobSpec.stored(data)
    known = spec.to_dict()
    given = by_new_names(data) if isinstance(data, dict) else {"spec": data}
    strange = {name: value for name, value in given.items() if not _is_like(known.get(name, ...), value)}
    return dump_spec({"version": 1, **spec.model_dump(mode="json", exclude_defaults=True)} | strange)


def _is_like(one: object, other: object) -> bool:
    return one == other and isinstance(one, bool) is isinstance(other, bool)


def dump_spec(data: dict[str, Any]) -> str:
    """Returns a spec as YAML. `data` is the spec's mapping, which may be incomplete or invalid."""
    return yaml_core.write(data)


ACCEPTED = {
    "version": "1",
    "name": "1 to 120 characters on one line",
    "command": f"a shell command or script of 1 to {fixed(20_000)} characters",
    "environment": "the name of an environment or an image",
    "workers": "a whole number from 1 to 4096",
    "max_workers": "a whole number from workers to 4096, or empty if the number of workers is fixed",
    "gpus_per_worker": "a whole number from 1 to 64",
    "generations": "a list of generation names, or empty to accept every generation",
    "variables": "a mapping of variable names to texts",
    "checkpoint_grace_seconds": "a number of seconds from 0 to 3600",
    "priority": "a whole number from -100 to 100",
    "progress_pattern": r"an RE2 regular expression with one group for the number of steps, such as step (\d+)",
    "secrets": "a mapping of variable names to secrets, each written as name or name/key",
    "cpu": (
        "0.1 to 1024 CPUs per worker, or empty for a part of the node's CPUs in proportion to the worker's GPUs"
    ),
    "memory": (
        "an amount per worker, such as 64Gi, or empty for a part of the node's memory in proportion to the"
        " worker's GPUs"
    ),
    "shm": "an amount of shared memory (a part of memory), such as 8Gi, or empty for half of the worker's memory",
    "working_directory": "the absolute path of a folder in the image, or empty for the image's default",
    "user_id": "a whole number of 1 or more, or empty for the default of 1000",
    "group_id": "a whole number of 1 or more, or empty for the default of 1000",
    "image_pull_policy": "Always, IfNotPresent, Never, or empty for the cluster's default",
    "image_pull_secret": "the name of a secret that holds a Docker configuration (JSON with auths)",
    "volumes": "a list of {name: a volume, path: an absolute folder (optional)}",
    "secret_files": "a list of {name: a secret, path: an absolute folder (optional)}",
    "code": "{upload: a digest}, {git: https://…, ref, folder, secret} (all but git optional), or empty for no code",
    "requirements": f"the text of a pip requirements file, of up to {fixed(65_536)} characters",
    "port": "a whole number from 1024 to 65535, or empty if the job answers no requests",
    "readiness_path": "a path such as /health, or empty if an open port is enough",
    "readiness_period_seconds": "a whole number of seconds from 1 to 300",
    "readiness_failures": "a whole number of failed probes from 1 to 100",
    "preemptible": "true or false",
    "expected_hours": "more than 0 and up to 8760 hours, or empty if the duration is unknown",
    "deadline_hours": "more than 0 and up to 8760 hours, or empty for no deadline",
    "time_limit_hours": "more than 0 and up to 8760 hours, or empty for no time limit",
    "labels": "up to 10 keys with values, in the format of Kubernetes labels; values may be empty",
    "retries": "{times: 0 to 100, exit_codes: a list (optional), backoff_seconds: 1 to 3600 (optional)}",
    "checkpoint": "a pattern such as step-*.pt, or ckpt-*/DONE for folders with the file DONE; or empty",
    "roles": (
        "a list of up to 10 roles, each with name, workers, gpus_per_worker (0 for none), command, environment,"
        " variables, cpu, memory and ends_job (all but name optional); or empty if all workers are equal"
    ),
    "launch": "mpi if the command calls mpirun, or empty if every worker runs the command",
}


# By field, or by the path of a value inside a field: what is accepted for the value.
ACCEPTED_INSIDE = {
    "generations": "the name of a generation",
    "variables": "a text",
    "secrets": "a secret, written as name or name/key",
    "volumes": "{name: a volume, path: an absolute folder (optional)}",
    "secret_files": "{name: a secret, path: an absolute folder (optional)}",
    "code": "{upload: a digest}, or {git: https://…, ref, folder, secret}",
    "labels": "a text, which may be empty",
    "retries": "times, exit_codes, backoff_seconds",
    "retries.times": "a whole number from 0 to 100",
    "retries.exit_codes": "a list of up to 50 exit codes from 1 to 255, or empty for every exit code",
    "retries.backoff_seconds": "a whole number of seconds from 1 to 3600",
    "roles": (
        "name, workers (1 to 1024), gpus_per_worker (0 to 64), command, environment, variables, cpu, memory, ends_job"
    ),
    "roles.name": "1 to 20 lower-case letters, digits and hyphens, beginning with a letter",
    "roles.workers": "a whole number from 1 to 1024",
    "roles.gpus_per_worker": "a whole number from 0 to 64, or empty for that of the job",
    "roles.command": f"a shell command or script of up to {fixed(20_000)} characters, or empty for that of the job",
    "roles.environment": "the name of an environment or an image, or empty for that of the job",
    "roles.variables": "a mapping of variable names to texts",
    "roles.cpu": "0.1 to 1024 CPUs per worker",
    "roles.memory": "an amount per worker, such as 64Gi",
    "roles.ends_job": "true or false",
}
NO_GPU = "each job holds a GPU, so do work that needs none in the command of another step, or in a role with 0 GPUs"
# Pydantic's errors about a value's type. Their messages quote the value, because 010, yes and 1:30 are easily misread.
OF_TYPES = {"int_type", "int_from_float", "float_type", "finite_number", "bool_type", "string_type"}


def _plain_problems(error: ValidationError) -> dict[str, str]:
    problems: dict[str, str] = {}
    for item in error.errors(include_url=False):
        field, *inside = path_of(item) or ("",)
        accepted = _accepted_inside(field, inside) if inside else ACCEPTED.get(field)
        if item["type"] == "extra_forbidden":
            problem = (
                f"{inside[-1]} is not accepted here: {pod_fields.why_not(inside[-1]) or f'accepted: {accepted}'}"
                if inside
                else f"is not a field of a job spec; accepted: {', '.join(ACCEPTED)}"
            )
        elif item["type"] in OF_TYPES and accepted is not None:
            problem = f"must be {accepted}, not {shown(item['input'])}"
        else:
            says = str(item["ctx"]["error"]) if item["type"] == "value_error" else item["msg"]
            problem = _plain_problem(item["type"], says, accepted, is_inside=bool(inside))
        if item["type"] == "string_type" and isinstance(item["input"], bool | int | float):
            # because YAML reads 1.10 and 007 as numbers and would show them differently
            problem += "; put what you wrote in quotes"
        if field == "gpus_per_worker" and item["input"] in (0, "0"):
            problem += f"; {NO_GPU}"
        problems.setdefault(".".join((field, *inside)), problem)
    return problems


def _accepted_inside(field: str, inside: Sequence[str]) -> str | None:
    """Returns what is accepted at a place inside a field. Positions in lists do not count."""
    names = [step for step in inside if not step.isdigit()] or [""]
    return ACCEPTED_INSIDE.get(f"{field}.{names[0]}", ACCEPTED_INSIDE.get(field))


def _plain_problem(kind: str, message: str, accepted: str | None, *, is_inside: bool) -> str:
    # A validator's message about a key or value inside a field already says what is accepted.
    if accepted is None or (kind == "value_error" and is_inside):
        return message
    if kind == "value_error":
        return f"{message} (accepted: {accepted})"
    return f"is missing; accepted: {accepted}" if kind == "missing" else f"must be {accepted}"
