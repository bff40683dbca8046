"""The definition of a pipeline: its steps, their job specifications, and what each of them needs. Reads and writes
YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from accounting.core.wording import fixed
from scheduling.models import StepNeed
from scheduling.spec import yaml_core
from scheduling.spec.job_spec import LONGEST_YAML, JobSpec, SpecError, dump_spec

MOST_STEPS = 100
MOST_NEEDS = 50  # of one step
LARGEST_ID = 2**63 - 1
LONGEST_NAME = 120  # of a job
FOR_ALL = ""  # stands for all steps where code is chosen by step
ONLY_STEP = "job"  # name of the step of a job that is submitted alone with needs
STEP_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,38}[a-z0-9])?")
OF_JOBS = re.compile(r"job-[0-9]+")  # no name of a step, because its variable would be that of a job
WHEN: tuple[str, ...] = tuple(StepNeed.When.values)
ACCEPTED_NEED = (
    "a step, the number of a job, or {step or job, when: success, failure or always, files: true or false}"
)
FIELDS = ("version", "name", "defaults", "steps")


@dataclass(frozen=True, slots=True)
class Need:
    """What a step needs: the end of another step, or of a job of the same team.

    - `step`, `job`: the name of the step, or else the id of the job.
    - `when`: which end is needed, a value of StepNeed.When.
    - `files`: whether the step may read the files of the needed one.
    """

    step: str = ""
    job: int | None = None
    when: str = StepNeed.When.SUCCESS.value
    files: bool = True

    @property
    def label(self) -> str:
        return self.step or f"job {self.job}"

    def to_data(self) -> Any:
        """Returns the need as in YAML, without what has its default value."""
        what: dict[str, Any] = {"step": self.step} if self.step else {"job": self.job}
        if self.when != StepNeed.When.SUCCESS:
            what["when"] = self.when
        if not self.files:
            what["files"] = False
        return next(iter(what.values())) if len(what) == 1 else what


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    spec: JobSpec
    needs: Sequence[Need] = ()


@dataclass(frozen=True, slots=True)
class Definition:
    """A pipeline as its owner wrote it. `parse` returns only definitions without cycles and unknown steps."""

    name: str
    steps: Sequence[Step]

    @classmethod
    def from_yaml(cls, text: str, uploads: Mapping[str, str] | None = None) -> Self:
        """Reads a definition from one YAML document. Raises SpecError, with each invalid field.

        `uploads` are digests of code that a form has beside the text: by step, and for FOR_ALL that of the steps that
        name no code. Raises SpecError, for the field `code`, if one of these steps does not exist.
        """
        if len(text) > LONGEST_YAML:
            raise SpecError({"yaml": f"must have at most {fixed(LONGEST_YAML)} characters"})
        try:
            found = cls.parse(with_uploads(yaml_core.read(text), uploads or {}))
        except yaml_core.NotYaml as error:
            raise SpecError({"yaml": str(error)}) from None
        known = {step.name for step in found.steps}
        if gone := [name for name in uploads or {} if name != FOR_ALL and name not in known]:
            raise SpecError({"code": f"the pipeline has no step {gone[0]}; remove its code, or add the step"})
        return found

    @classmethod
    def parse(cls, data: Any) -> Self:
        """Validates `data` and returns the definition. Raises SpecError, with each invalid field by its path, such as
        `steps.train.workers`."""
        if not isinstance(data, dict):
            raise SpecError({"": "a pipeline is a mapping with a name and steps"})
        problems = {
            str(key): f"is not a field of a pipeline; accepted: {', '.join(FIELDS)}"
            for key in data
            if key not in FIELDS
        }
        if data.get("version", 1) != 1 or isinstance(data.get("version"), bool):
            problems["version"] = "must be 1"
        name, defaults, written = data.get("name"), data.get("defaults"), data.get("steps")
        problems |= _problems_of_name(name)
        if defaults is not None and not isinstance(defaults, dict):
            problems["defaults"] = "must be a mapping of fields that all steps have"
        elif defaults and (wrong := [key for key in ("needs", "name") if key in defaults]):
            problems["defaults"] = f"must not contain {wrong[0]}, which each step has for itself"
        if not isinstance(written, dict) or not 1 <= len(written) <= MOST_STEPS:
            problems["steps"] = f"must be a mapping of 1 to {MOST_STEPS} names of steps to their fields"
        if problems or not isinstance(written, dict):
            raise SpecError(problems)
        steps = [_step(key, fields, defaults or {}, str(name), problems) for key, fields in written.items()]
        problems |= _problems_of_needs(steps)
        if problems:
            raise SpecError(problems)
        return cls(str(name), tuple(steps))

    @classmethod
    def of_job(cls, spec: JobSpec, needs: Any) -> Self:
        """Returns the pipeline of one step for a job that needs other jobs. Raises SpecError, for the field `needs`."""
        problems: dict[str, str] = {}
        found = _needs(needs, "needs", problems)
        if named := [need for need in found if need.step]:
            problems["needs"] = f"must be numbers of jobs; {named[0].step} is none"
        if problems:
            raise SpecError(problems)
        return cls(spec.name, (Step(ONLY_STEP, spec, found),))

    def to_yaml(self) -> str:
        """Returns the definition as YAML, without fields that have their default value. `from_yaml` restores an equal
        definition."""
        steps = {}
        for step in self.steps:
            fields = step.spec.model_dump(mode="json", exclude_defaults=True)
            if step.spec.name == job_name(self.name, step.name):
                del fields["name"]
            needs = {"needs": [need.to_data() for need in step.needs]} if step.needs else {}
            steps[step.name] = needs | fields
        return dump_spec({"version": 1, "name": self.name, "steps": steps})


def with_uploads(data: Any, uploads: Mapping[str, str]) -> Any:
    """Returns the data of a definition in which steps have these uploads as their code, as `from_yaml` says.

    Returns other data unchanged.
    """
    if not isinstance(data, dict) or not isinstance(data.get("steps"), dict):
        return data
    code = {name: {"code": {"upload": digest}} for name, digest in uploads.items()}
    steps = {
        name: fields | code.get(name, {}) if isinstance(fields, dict) else fields
        for name, fields in data["steps"].items()
    }
    defaults = data.get("defaults") or {}
    if FOR_ALL in code and isinstance(defaults, dict):
        data = data | {"defaults": defaults | code[FOR_ALL]}
    return data | {"steps": steps}


def sketch(text: str) -> list[Step]:
    """Returns the steps of a text as far as they can be read, for a drawing while the user types.

    Leaves out what is no step, needs of unknown steps, and needs in a circle. A step whose specification is wrong has
    another one. Raises NotYaml if the text is no YAML.
    """
    data = yaml_core.read(text) if len(text) <= LONGEST_YAML else None
    top = data if isinstance(data, dict) else {}
    written, defaults = top.get("steps"), top.get("defaults")
    if not isinstance(written, dict):
        return []
    usual = defaults if isinstance(defaults, dict) else {}
    found = [
        _step(key, fields, usual, "x", {})
        for key, fields in list(written.items())[:MOST_STEPS]
        if _is_name(key)
    ]
    known = {step.name for step in found}
    steps = [
        replace(step, needs=[need for need in step.needs if need.job or need.step in known]) for step in found
    ]
    while circle := cycle_in({step.name: [need.step for need in step.needs if need.step] for step in steps}):
        steps = [replace(step, needs=()) if step.name in circle else step for step in steps]
    return steps


def job_name(pipeline: str, step: str) -> str:
    """Returns the name of a step's job, if its specification names none."""
    suffix = f"-{step}"
    return pipeline[: LONGEST_NAME - len(suffix)].rstrip() + suffix


def cycle_in(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the names of steps that need each other in a circle, the first one also at the end; [] if there are none.

    `needs` maps each step to the steps that it needs; steps that are no key count as without needs.
    """
    done: set[str] = set()
    for first in needs:
        path: list[str] = []
        left = [iter([first])]
        while left:
            name = next(left[-1], None)
            if name is None:
                left.pop()
                if path:
                    done.add(path.pop())
            elif name in path:
                return [*path[path.index(name) :], name]
            elif name not in done:
                path.append(name)
                left.append(iter(needs.get(name, ())))
    return []


def _problems_of_name(name: Any) -> dict[str, str]:
    try:
        JobSpec.parse({"name": name, "command": "true"})
    except SpecError as error:
        return error.problems
    return {}


def _is_name(key: Any) -> bool:
    return isinstance(key, str) and bool(STEP_NAME.fullmatch(key)) and not OF_JOBS.fullmatch(key)


def _step(
    key: Any, fields: Any, defaults: Mapping[str, Any], pipeline: str, problems: dict[str, str]
) -> Step:
    """Returns a step; one with an unusable specification if `problems` got an entry for it."""
    path = f"steps.{key}"
    unusable = Step(str(key), JobSpec(name="x", command="x"))
    if not _is_name(key):
        problems[path] = (
            "is no name of a step: use up to 40 lower-case letters, digits and -, begin with a letter, and do not end"
            " with -. Names such as job-12 stand for jobs"
        )
        return unusable
    if not isinstance(fields, dict):
        problems[path] = "must be a mapping of fields, such as command and needs"
        return unusable
    needs = _needs(fields.get("needs"), f"{path}.needs", problems)
    rest = {name: value for name, value in fields.items() if name != "needs"}
    try:
        return Step(key, JobSpec.parse({"name": job_name(pipeline, key)} | dict(defaults) | rest), needs)
    except SpecError as error:
        problems |= {f"{path}.{field}" if field else path: text for field, text in error.problems.items()}
        return Step(key, unusable.spec, needs)


def _needs(written: Any, path: str, problems: dict[str, str]) -> tuple[Need, ...]:
    if written is None:
        return ()
    if not isinstance(written, list) or len(written) > MOST_NEEDS:
        problems[path] = f"must be a list of up to {MOST_NEEDS} items, each {ACCEPTED_NEED}"
        return ()
    found = []
    for place, one in enumerate(written):
        need = _need(one)
        if need is None:
            problems[f"{path}.{place}"] = f"must be {ACCEPTED_NEED}"
        else:
            found.append(need)
    labels = [need.label for need in found]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        problems[path] = f"names {twice} twice"
    return tuple(found)


def _need(written: Any) -> Need | None:
    if isinstance(written, str):
        return Need(step=written) if written else None
    if isinstance(written, int) and not isinstance(written, bool):
        return Need(job=written) if 1 <= written <= LARGEST_ID else None
    if not isinstance(written, dict) or set(written) - {"step", "job", "when", "files"}:
        return None
    inner = written.get("step", written.get("job"))
    base = None if isinstance(inner, dict) else _need(inner)
    when, files = written.get("when", StepNeed.When.SUCCESS.value), written.get("files", True)
    if base is None or ("step" in written) == ("job" in written) or ("step" in written) != bool(base.step):
        return None
    if when not in WHEN or not isinstance(files, bool):
        return None
    return Need(base.step, base.job, when, files)


def _problems_of_needs(steps: Sequence[Step]) -> dict[str, str]:
    known, problems = {step.name for step in steps}, {}
    for step in steps:
        if unknown := [need.step for need in step.needs if need.step and need.step not in known]:
            problems[f"steps.{step.name}.needs"] = (
                f"{unknown[0]} is no step of this pipeline; its steps: {', '.join(sorted(known))}"
            )
    circle = cycle_in({step.name: [need.step for need in step.needs if need.step] for step in steps})
    if circle and not problems:
        problems[f"steps.{circle[0]}.needs"] = f"these steps need each other: {' → '.join(circle)}"
    return problems
