"""The texts in the fields of the submit form, and their conversion to and from a JobSpec.

The values are not validated here. `JobSpec.parse` checks them, and the form shows its problems beside the fields. A
typed text is never changed, whether or not it is valid.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, fields
from typing import Any, Self

from django.http import QueryDict

from accounting.core.numbers import read_decimal, read_whole
from portal.submit.data import posted_lines
from portal.submit.lines import LINES, read_all
from scheduling.spec.code import Code
from scheduling.spec.job_spec import JobSpec, SpecError, dump_spec

NUMBERS = {
    "workers": int,
    "max_workers": int,
    "gpus_per_worker": int,
    "priority": int,
    "checkpoint_grace_seconds": float,
    "cpu": float,
    "user_id": int,
    "group_id": int,
    "port": int,
    "readiness_period_seconds": int,
    "readiness_failures": int,
    "expected_hours": float,
    "deadline_hours": float,
    "time_limit_hours": float,
}
OF_CONTAINERS = ("memory", "shm", "working_directory", "image_pull_policy", "image_pull_secret")
# The parts of the field `retries`.
RETRIES = ("retry_times", "retry_exit_codes", "retry_backoff_seconds")
# Fields of numbers that may stay empty.
OPTIONAL = (
    "max_workers", "port", "cpu", "user_id", "group_id", "expected_hours", "deadline_hours", "time_limit_hours",
)  # fmt: skip
# The parts of the field `code`, and the beginning of their names in the form.
CODE_FIELDS, CODE = ("upload", "git", "ref", "folder", "secret"), "code_"
DEFAULTS = JobSpec(name="x", command="x")


@dataclass(frozen=True)
class Fields:
    """The text of each field of the submit form. `generations` has the names of the GPU types that the user ticked."""

    name: str = ""
    command: str = ""
    environment: str = DEFAULTS.environment
    workers: str = str(DEFAULTS.workers)
    max_workers: str = ""
    gpus_per_worker: str = str(DEFAULTS.gpus_per_worker)
    generations: list[str] = field(default_factory=list)
    variables: str = ""
    checkpoint_grace_seconds: str = f"{DEFAULTS.checkpoint_grace_seconds:g}"
    priority: str = str(DEFAULTS.priority)
    progress_pattern: str = DEFAULTS.progress_pattern
    secrets: str = ""
    secret_files: str = ""
    volumes: str = ""
    cpu: str = ""
    memory: str = ""
    shm: str = ""
    working_directory: str = ""
    user_id: str = ""
    group_id: str = ""
    image_pull_policy: str = ""
    image_pull_secret: str = ""
    port: str = ""
    readiness_path: str = DEFAULTS.readiness_path
    readiness_period_seconds: str = str(DEFAULTS.readiness_period_seconds)
    readiness_failures: str = str(DEFAULTS.readiness_failures)
    labels: str = ""
    preemptible: str = ""  # "true" if checked
    expected_hours: str = ""
    deadline_hours: str = ""
    time_limit_hours: str = ""
    code_upload: str = ""
    code_git: str = ""
    code_ref: str = ""
    code_folder: str = ""
    code_secret: str = ""
    requirements: str = ""
    retry_times: str = str(DEFAULTS.retries.times)
    retry_exit_codes: str = ""
    retry_backoff_seconds: str = str(DEFAULTS.retries.backoff_seconds)
    checkpoint: str = ""
    roles: str = ""  # as YAML
    launch: str = ""

    @classmethod
    def from_post(cls, post: QueryDict) -> Self:
        r"""Returns the posted texts, with "\n" as line ends. A field that is missing in the request has its default."""
        usual = cls()
        texts = {
            f.name: _unix(post.get(f.name, getattr(usual, f.name)))
            for f in fields(cls)
            if f.name != "generations"
        }
        return cls(**texts | posted_lines(post), generations=post.getlist("generations"))

    @classmethod
    def from_spec(cls, spec: JobSpec) -> Self:
        return cls(
            name=spec.name,
            command=spec.command,
            environment=spec.environment,
            workers=str(spec.workers),
            gpus_per_worker=str(spec.gpus_per_worker),
            generations=list(spec.generations),
            checkpoint_grace_seconds=_write_number(spec.checkpoint_grace_seconds),
            priority=str(spec.priority),
            progress_pattern=spec.progress_pattern,
            **{name: lines.write(getattr(spec, name)) for name, lines in LINES.items()},
            **{name: _write_number(getattr(spec, name)) for name in OPTIONAL},
            **{name: getattr(spec, name) for name in OF_CONTAINERS},
            readiness_path=spec.readiness_path,
            readiness_period_seconds=str(spec.readiness_period_seconds),
            readiness_failures=str(spec.readiness_failures),
            preemptible="true" if spec.preemptible else "",
            requirements=spec.requirements,
            retry_times=str(spec.retries.times),
            retry_exit_codes=", ".join(map(str, spec.retries.exit_codes)),
            retry_backoff_seconds=str(spec.retries.backoff_seconds),
            checkpoint=spec.checkpoint,
            launch=spec.launch,
            **_write_code(spec.code),
        )

    def to_spec(self) -> JobSpec:
        """Converts the fields to a job specification. Raises SpecError with the problems of all fields if any is
        invalid."""
        read, problems = read_all(self._lines())
        try:
            spec = JobSpec.parse(_without_totals(self._plain() | read))
        except SpecError as error:
            raise SpecError(problems | error.problems) from None
        if problems:
            raise SpecError(problems)
        return spec

    def to_yaml(self) -> str:
        """Returns the job specification as YAML, even if the fields are incomplete or invalid."""
        try:
            return self.to_spec().to_yaml()
        except SpecError:
            return dump_spec(self._draft())

    def _plain(self) -> dict[str, Any]:
        skipped = {*LINES, *RETRIES}
        texts: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in skipped}
        texts["retries"] = self._retries()
        numbers = {name: read_number(texts[name], kind) for name, kind in NUMBERS.items()}
        code = {name: texts.pop(f"{CODE}{name}").strip() for name in CODE_FIELDS}
        if code["git"]:  # it replaces files that were uploaded before
            code["upload"] = ""
        texts["code"] = {name: text for name, text in code.items() if text} or None
        texts["preemptible"] = {"": False, "true": True}.get(texts["preemptible"], texts["preemptible"])
        return texts | numbers | ({name: None for name in OPTIONAL if not getattr(self, name).strip()})

    def _retries(self) -> dict[str, Any]:
        codes = re.findall(r"[^\s,]+", self.retry_exit_codes, flags=re.ASCII)
        return {
            "times": read_number(self.retry_times.strip()),
            "exit_codes": [read_number(code) for code in codes],
            "backoff_seconds": read_number(self.retry_backoff_seconds.strip()),
        }

    def _lines(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in LINES}

    def _draft(self) -> dict[str, Any]:
        """Returns the fields as a job specification that may be incomplete or invalid.

        Values that equal their default are left out, except name and command. A multi-line field that cannot be parsed
        is included as text.
        """
        data = _without_totals(self._plain() | self._lines() | read_all(self._lines())[0])
        usual = DEFAULTS.to_dict()
        return {"version": 1} | {
            name: data[name]
            for name in usual
            if name in data and (name in {"name", "command"} or data[name] != usual[name])
        }


def _without_totals(data: dict[str, Any]) -> dict[str, Any]:
    """Returns a spec's mapping without the number of workers if it has roles, which say how many there are."""
    return {name: value for name, value in data.items() if name != "workers" or not data.get("roles")}


def read_yaml(text: str) -> JobSpec:
    return JobSpec.from_yaml(_unix(text))


def digest(yaml_text: str) -> str:
    """Returns a hash of a YAML text. A different hash shows that the text was edited.

    Line ends and white space at the beginning and the end do not change the hash.
    """
    return hashlib.sha256(_unix(yaml_text).strip().encode("utf-8", "surrogatepass")).hexdigest()[:32]


def read_number(text: str, kind: type[int] | type[float] = int) -> int | float | str:
    """Converts the text to a number. Returns a text that is not a number unchanged, so that later validation refuses
    it."""
    number = read_whole(text) if kind is int else read_decimal(text)
    return text if number is None else kind(number)


def _write_code(code: Code | None) -> dict[str, str]:
    """Returns the form's fields for the code. For a repository that was fetched, the form names the commit, so that it
    stands for the same files; a user can write a branch in its place."""
    if code is None:
        return {}
    texts = {f"{CODE}{name}": getattr(code, name) for name in CODE_FIELDS}
    return texts | ({f"{CODE}ref": code.commit or code.ref, f"{CODE}upload": ""} if code.git else {})


def _write_number(value: float | None) -> str:
    if value is None:
        return ""
    return repr(int(value) if value == int(value) else value)


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n")
