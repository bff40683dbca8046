"""Imports Polyaxonfiles 1.1: components and operations that run jobs, services and distributed jobs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from scheduling.importers import elastic, retries, time_limits
from scheduling.importers.arrays import Array, number_or_text
from scheduling.importers.chains import HOW_TO_NEED
from scheduling.importers.commands import put_command, script_of
from scheduling.importers.documents import drop_each, fields_of
from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.kubernetes.objects import Objects
from scheduling.importers.kubernetes.pods import PodTemplate, has_gpus
from scheduling.importers.kubernetes.roles import HELPERS, serves_ssh
from scheduling.importers.polyaxon_matrix import LISTED, array_of, fixed_of, listed
from scheduling.importers.ports import put_port
from scheduling.importers.reading import Source, step, template_in
from scheduling.importers.report import Fate, Report, Work, WorkKind
from scheduling.importers.roles import Group, draft_of, join
from scheduling.importers.services import finish_service, put_replicas
from scheduling.importers.timetables import put_cron, put_repeats, zone_of
from scheduling.spec.members import LONGEST_VALUE, MOST_MEMBERS, why_no_parameter

MOST_RUNS = 64  # of a matrix that is no sweep
EXPRESSION = re.compile(r"\{\{\s*(?:params\.|inputs\.)?(\w+)(?:\.(as_arg|value))?\s*\}\}", re.ASCII)
GLOBALS = re.compile(r"\{\{\s*globals\.(\w+)\s*\}\}", re.ASCII)
REFERENCES = ("hubRef", "pathRef", "urlRef", "dagRef")
ROLES = ("master", "chief", "launcher", "worker", "ps", "evaluator", "scheduler")
FOLDER = "${FAIRLOT_CHECKPOINT_DIR}"
LEFT_OUT = {
    "version": "The version of the format has no effect.",
    "kind": "The part run says what to run.",
    "description": "A description has no effect.",
    "tags": "Tags have no effect. Use labels.",
    "inputs": "Their values are filled in where the text refers to them.",
    "params": "Their values are filled in.",
    "outputs": "Fairlot keeps files in $FAIRLOT_CHECKPOINT_DIR.",
    "queue": "Choose the team when you submit the job.",
    "namespace": "Each team has its own namespace.",
    "presets": "Presets are not a part of the text.",
    "cache": "Fairlot runs each job that is submitted.",
    "plugins": "Fairlot keeps the output of each worker as its log.",
    "hooks": "Fairlot starts nothing after a job. Use a webhook of the team.",
    "events": "Submit the job when it is needed.",
    "termination": "Of these fields, only maxRetries and timeout of a job have an effect.",
    "joins": "Fairlot has no tracking of experiments.",
    "dependencies": f"The job does not wait for other jobs. {HOW_TO_NEED}",
    "trigger": f"The job does not wait for other jobs. {HOW_TO_NEED}",
    "conditions": "The job is submitted in any case.",
    "skipOnUpstreamSkip": f"The job does not wait for other jobs. {HOW_TO_NEED}",
    "contexts": "Fairlot has no contexts.",
    "isApproved": "Approvals are rules of the portal.",
    "cost": "Prices are those of the portal.",
    "build": "Fairlot builds no images. The image that is named must already contain the program.",
    "patchStrategy": "There is nothing to patch.",
    "template": "The text is not a template.",
    "name": "The run has no name.",
}
IN_RUN = {
    "kind": "This says what runs.",
    "connections": "Fairlot has no connections. Ask for a volume or store a secret.",
    "init": "Nothing runs before the program. Fetch data in the command, or put it into the image.",
    "sidecars": "A worker is one container.",
    "cleanPodPolicy": "Fairlot deletes ended pods itself.",
    "schedulingPolicy": "All workers of a job start together.",
    "slotsPerWorker": "Workers see their GPUs.",
    "rewritePath": "Each service has a host name of its own.",
    "isExternal": "The portal is the gateway of all services.",
    "nprocPerNode": "Start the processes in the command, for example with torchrun.",
    "environment": "Fairlot makes its own pods.",
    "volumes": "Only volumes that the container mounts are used.",
}


class Pod(PodTemplate):
    """The container of a run, with the settings of its environment in place of those of a pod."""

    @property
    def spec(self) -> Fields:
        environment = self.template.section("environment")
        data = {name: value for name, value in environment.data.items() if name != "imagePullSecrets"}
        data["volumes"] = self.template.items("volumes")
        return Fields(data, environment.path, environment.document, environment.report)

    def container(self) -> Fields | None:
        return self.template.section("container")


def recognise(source: Source) -> bool:
    top = source.top
    if top.get("kind") not in ("component", "operation") or "apiVersion" in top:
        return False
    return bool({"run", "component", "version", "inputs", *REFERENCES} & top.keys())


def convert(source: Source, report: Report, known: Sequence[str]) -> list[Work]:
    """Returns a job, a service or a schedule; for a grid, a sweep."""
    works: list[Work] = []
    for fields in fields_of(source, report):
        for name in REFERENCES:
            if name in fields:
                report.refused_at(
                    fields.at(name),
                    "The component is not a part of the text. Write it in the field component.",
                )
        component = fields.section("component") if "component" in fields else fields
        if component is not fields:
            drop_each(fields, {"runPatch": "The field run of the component counts. Put the changes there."})
        if "run" not in component:
            report.refused_at(component.at("run"), "There is nothing to run.", "command")
            drop_each(fields, LEFT_OUT)
            continue
        points = _points(fields.section("matrix"), report)
        works += _works(fields, component, points, report, known)
        for one in (fields, component):
            drop_each(one, LEFT_OUT)
    return works


def _values(fields: Fields, component: Fields) -> dict[str, str]:
    """Returns the values of the inputs: their defaults, or those that the operation gives."""
    found = {}
    for one in component.sections("inputs"):
        if "value" in one and not isinstance(one.get("value"), dict | list):
            found[one.text("name")] = one.text("value")
    params = fields.section("params")
    for name in params:
        value = params.get(name)
        if isinstance(value, dict):
            inner = params.section(name)
            if "value" in inner and not isinstance(inner.get("value"), dict | list):
                found[name] = inner.text("value")
        elif not isinstance(value, list):
            found[name] = params.text(name)
    return found


def _points(matrix: Fields, report: Report) -> list[dict[str, str]]:
    """Returns the values of the inputs that a matrix lists for each of its runs; [] without such a matrix."""
    kind, params = matrix.text("kind"), matrix.section("params")
    if kind == "mapping":
        points = [{key: str(value) for key, value in one.data.items()} for one in matrix.sections("values")]
    elif kind == "grid":
        choices = {name: listed(params.section(name)) for name in params}
        if missing := [name for name, found in choices.items() if not found]:
            report.refused_at(
                params.at(missing[0]), f"A grid needs {LISTED}, from 1 to {MOST_MEMBERS} values."
            )
            return []
        wanted = itertools.islice(itertools.product(*choices.values()), MOST_MEMBERS + 1)
        points = [dict(zip(choices, point, strict=True)) for point in wanted]
    else:
        return []
    limit = matrix.whole("numRuns")
    if limit is not None and 0 < limit < len(points):
        report.mapped(matrix.at("numRuns"), "parameters", f"The first {limit} points of the matrix.")
        return points[:limit]
    return points


def _works(
    fields: Fields, component: Fields, points: list[dict[str, str]], report: Report, known: Sequence[str]
) -> list[Work]:
    """Returns a sweep whose members are the points of the matrix. If their values stand outside of the command, returns
    a job for each of the first ones."""
    values, matrix = _values(fields, component), fields.section("matrix")
    if matrix and matrix.text("kind") not in {"grid", "mapping"}:
        return _drawn(fields, component, report, known)
    if len(points) > 1 and _only_in_command(fields, component, points):
        array = Array.listed(
            matrix.path,
            [{name: number_or_text(text) for name, text in point.items()} for point in points],
            at_once=_at_once(matrix, report),
            said="Each input of the matrix is a parameter, which the command reads as a variable.",
        )
        marked = {name: f"${{{name}}}" for name in points[0]}
        return array.sweeps_of(_run(fields, component, values | marked, 0, known), report)
    if len(points) > MOST_RUNS:
        report.approximated(matrix.path, "", f"Only the first {MOST_RUNS} points of the matrix become jobs.")
    elif points and not report.covers(matrix.path):
        report.mapped(matrix.path, "", f"Each of {len(points)} points of the matrix becomes a job.")
    return [
        work
        for at, point in enumerate(points[:MOST_RUNS] or [{}])
        for work in _run(fields, component, values | point, at, known)
    ]


def _drawn(fields: Fields, component: Fields, report: Report, known: Sequence[str]) -> list[Work]:
    """Returns the sweep of a matrix that draws values at random, or that searches for them."""
    matrix = fields.section("matrix")
    array = array_of(matrix, report, at_once=_at_once(matrix, report))
    if array is None:
        return []
    if not _only_in_command(fields, component, [dict.fromkeys(array.names, "")]):
        report.refused_at(
            matrix.path,
            "Members of a sweep differ in variables of the command. Refer to all inputs of the matrix in the command,"
            " outside of single quotes, and nowhere else.",
            "parameters",
        )
        return []
    marked = {name: f"${{{name}}}" for name in array.names}
    values = _values(fields, component) | fixed_of(matrix, report) | marked
    return array.sweeps_of(_run(fields, component, values, 0, known), report)


def _at_once(matrix: Fields, report: Report) -> int | None:
    if "concurrency" in matrix:
        report.mapped(matrix.at("concurrency"), "at_once")
    return matrix.whole("concurrency")


def _only_in_command(fields: Fields, component: Fields, points: list[dict[str, str]]) -> bool:
    """Returns whether the inputs of a matrix can be variables of the command: it refers to them, and nothing else does,
    and no quotes of a script hide them from the shell."""
    names = list(points[0])
    usable = all(
        list(point) == names and all(len(text) <= LONGEST_VALUE for text in point.values())
        for point in points
    ) and all(why_no_parameter(name) == "" for name in names)
    run = component.section("run")
    if not usable or "schedule" in fields or not run.text("kind").endswith("job"):
        return False
    marked = {name: f"${{{name}}}" for name in names}
    commands, rest = _apart(run.data)
    hidden = any("'" in text and _filled(text, marked) != text for text in commands)
    return not hidden and _filled(rest, marked) == rest


def _apart(value: Any) -> tuple[list[str], Any]:
    """Returns the texts of all commands and arguments in a value, and the value without them."""
    if isinstance(value, list):
        parts = [_apart(one) for one in value]
        return [text for texts, _ in parts for text in texts], [rest for _, rest in parts]
    if not isinstance(value, dict):
        return [], value
    commands: list[str] = []
    rest: dict[str, Any] = {}
    for name, one in value.items():
        if name in {"command", "args"}:
            commands += [str(word) for word in (one if isinstance(one, list) else [one])]
        else:
            texts, rest[name] = _apart(one)
            commands += texts
    return commands, rest


def _filled(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(one, values) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, values) for one in value]
    if not isinstance(value, str):
        return value

    def said(found: re.Match[str]) -> str:
        if found[1] not in values:
            return found[0]
        return f"--{found[1]}={values[found[1]]}" if found[2] == "as_arg" else values[found[1]]

    return EXPRESSION.sub(said, value)


def _run(
    fields: Fields, component: Fields, values: dict[str, str], at: int, known: Sequence[str]
) -> list[Work]:
    report, source = fields.report, component.section("run")
    run = Fields(_filled(source.data, values), source.path, source.document, report)
    draft = JobDraft(report, known_generations=known)
    named = next((one for one in (fields, component) if one.text("name")), None)
    if named:
        draft.name(named.text("name") + (f"-{at + 1}" if at else ""), named.at("name"))
    draft.default("name", f"polyaxon-run-{at + 1}" if at else "polyaxon-run", "The file has no name.")
    kind = run.text("kind")
    is_distributed = kind.endswith("job") and kind != "job"
    if kind not in {"job", "service"} and not is_distributed:
        report.refused_at(run.at("kind"), "Only jobs, services and distributed jobs can be imported.")
        return []
    if not (_distributed if is_distributed else _put)(run, draft):
        return []
    if policy := run.section("elasticPolicy"):
        if sum(name in run for name in ROLES) == 1:
            elastic.put_torch(policy, draft)
        else:
            elastic.approximate(policy, draft)
    drop_each(run, IN_RUN)
    if kind == "service":
        options: dict[str, Any] = {}
        for place, one in enumerate(run.items("ports")):
            if isinstance(one, int) and not isinstance(one, bool):
                put_port(draft, one, step(run.at("ports"), place))
        if (number := run.whole("replicas")) is not None:
            put_replicas(draft, number, run.at("replicas"), options)
        return finish_service(draft, options, run.at("ports"), name_at=named.at("name") if named else "")
    for one in (fields, component):
        retries.put_whole(one.section("termination"), "maxRetries", draft)
        _time_limit(one.section("termination"), draft)
    if schedule := fields.section("schedule"):
        return _schedule(schedule, draft)
    return draft.finish()


def _time_limit(termination: Fields, draft: JobDraft) -> None:
    if "timeout" in termination and "time_limit_hours" in draft:
        draft.report.mapped(termination.at("timeout"), "", "The timeout of the operation counts.")
    else:
        time_limits.put_deadline(termination, draft, "timeout")
    drop_each(
        termination,
        {
            "ttl": "The job stays in the list after its end.",
            "culling": "The idle timeout of the team stops idle jobs.",
            "probe": "The idle timeout of the team stops idle jobs.",
        },
    )


def _put(template: Fields, draft: JobDraft, *, waits: bool = False) -> bool:
    """Sets the fields of a job from a container. Returns whether it has a command; one that `waits` needs none."""
    pods = Pod(template, Objects({}, draft.known), draft)
    container = pods.container()
    if not container:
        draft.report.refused_at(template.at("container"), "The run has no container.", "environment")
        return False
    folder = container.text("workingDir")
    if "{{" in folder:
        draft.report.dropped(
            container.at("workingDir"),
            "This folder of Polyaxon does not exist. Change to one in the command.",
        )
        container.data.pop("workingDir")
    for name in ("command", "args"):
        value = container.get(name)
        if isinstance(value, list):
            words = [GLOBALS.sub(FOLDER, one) if isinstance(one, str) else one for one in value]
            if words != value:
                draft.report.remark(
                    Fate.APPROXIMATED, container.at(name), "command",
                    "The folders of Polyaxon become the folder that $FAIRLOT_CHECKPOINT_DIR names.",
                )  # fmt: skip
            container.data[name] = words
    words = [*container.texts("command"), *container.texts("args")]
    pods.put(command=False)
    if waits:
        for name in ("command", "args"):
            if name in container:
                draft.report.mapped(container.at(name), "launch", "The worker waits for mpirun.")
        return True
    if not words or words[0].startswith("-"):
        draft.report.refused_at(
            container.at("command"),
            "The text does not say which program the image starts. Add the command.",
            "command",
        )
        return False
    if unfilled := template_in(" ".join(words)):
        draft.report.refused_at(
            container.at("args" if container.texts("args") else "command"),
            f"Polyaxon fills in {unfilled[:60]}, and the text does not say with what. Give the input a value, or write"
            " the value in its place.",
            "command",
        )
        return False
    put_command(draft, script_of(words, expand=True), container.at("command"))
    if container.items("args"):
        draft.report.mapped(container.at("args"), "command", "The arguments follow the command.")
    return True


def _distributed(run: Fields, draft: JobDraft) -> bool:
    """Sets the workers of a distributed job and everything else. If its replicas differ, they are roles. Returns
    whether the job has a command."""
    parts = [run.section(name) for name in ROLES if name in run]
    if not parts:
        draft.report.refused_at(run.path, "This job has no replicas that Fairlot knows.", "command")
        return False
    counts = [one.whole("replicas", 1) for one in parts]
    mpi = run.text("kind") == "mpijob" and "launcher" in run and "worker" in run
    described = [{name: one.get(name) for name in ("container", "environment", "volumes")} for one in parts]
    if mpi or any(one != described[0] for one in described):
        return _roles(run, parts, counts, draft, mpi=mpi)
    for one in parts:
        draft.report.mapped(one.at("replicas"), "workers", "The replicas of all roles become workers.")
    draft.spec["workers"] = sum(count or 1 for count in counts)
    for one in parts[1:]:
        draft.report.mapped(one.at("container"), "", "The container is that of the first role.")
        draft.report.mapped(one.at("environment"), "", "The same as that of the first role.")
        drop_each(one, IN_RUN)
    found = _put(parts[0], draft)
    drop_each(parts[0], IN_RUN)
    return found


def _roles(
    run: Fields, parts: Sequence[Fields], counts: Sequence[int | None], draft: JobDraft, *, mpi: bool
) -> bool:
    """Sets the fields of a job with a role for each kind of replica."""
    report, groups = draft.report, list[Group]()
    names = [one.path.rpartition(".")[2] for one in parts]
    ends = next((name for name in ("launcher", "master", "chief", "worker") if name in names), "")
    asking = {name for name, one in zip(names, parts, strict=True) if has_gpus(one.section("container"))}
    holding = asking or {name for name in names if name not in HELPERS} or set(names)
    for name, one, count in zip(names, parts, counts, strict=True):
        if count == 0:
            report.dropped(one.path, "There are no replicas of this role.")
            continue
        own = draft_of(draft, len(groups))
        if name not in holding:
            own.spec["gpus_per_worker"] = 0
        waits = mpi and name != "launcher" and serves_ssh(one.section("container"))
        if not _put(one, own, waits=waits):
            return False
        report.mapped(one.at("replicas"), f"roles[{len(groups)}].workers", "The replicas of this role.")
        drop_each(one, IN_RUN)
        groups.append(Group(name, count or 1, one.path, own.spec, name == ends, waits))
    if not any(group.holds_gpus for group in groups):
        report.refused_at(run.path, "There are no replicas that hold GPUs.", "roles")
        return False
    if mpi:
        said = "The launcher calls mpirun, which logs in to the workers. The image needs an ssh server."
        draft.put("launch", "mpi", run.at("kind"), said, Fate.APPROXIMATED)
    elif run.text("kind") == "pytorchjob" and (idle := [one for one in groups if not one.holds_gpus]):
        report.refused_at(
            idle[0].source,
            "These replicas request no GPUs. They would have no RANK, which only workers with GPUs have.", "roles",
        )  # fmt: skip
    launcher = next((one for one in groups if one.ends_job), None) if mpi else None
    join(groups, draft, "The replicas differ, so each kind of them is a role.", command_of=launcher)
    return True


def _schedule(schedule: Fields, draft: JobDraft) -> list[Work]:
    options: dict[str, Any] = {}
    zone = zone_of("UTC")
    kind, start = schedule.text("kind"), _moment(schedule.text("startAt"))
    runs = schedule.whole("maxRuns")
    if kind == "cron":
        put_cron(draft, schedule.text("cron"), schedule.at("cron"), options, "UTC")
        for name, target in (("startAt", "begins"), ("endAt", "ends")):
            if schedule.text(name):
                options[target] = _moment(schedule.text(name))
                draft.report.mapped(schedule.at(name), target)
    elif zone and kind in {"interval", "datetime"}:
        seconds = schedule.whole("frequency") if isinstance(schedule.get("frequency"), int) else None
        if kind == "interval" and not seconds:
            draft.report.refused_at(
                schedule.at("frequency"), "Here a number of seconds is expected.", "expression"
            )
            return []
        said = (
            f"R{runs or ''}/{start or '2000-01-01T00:00:00Z'}/PT{seconds}S" if seconds else f"R1/{start}/P1D"
        )
        put_repeats(draft, said, schedule.path, options, zone)
        options["time_zone"] = "UTC"
    else:
        draft.report.refused_at(
            schedule.at("kind"), "Only cron, interval and datetime are accepted.", "expression"
        )
    drop_each(schedule, {
        "kind": "This says how the schedule is written.", "maxRuns": "Delete the schedule after this number of runs.",
        "dependsOnPast": "A run that is due while another runs is left out.",
    })  # fmt: skip
    return draft.finish(WorkKind.SCHEDULE, options)


def _moment(text: str) -> str:
    """Returns a date and time with a time zone, which is UTC if the text has none."""
    plain = text.strip().replace(" ", "T")
    return plain if not plain or re.search(r"(?:Z|[+-]\d\d:?\d\d)$", plain, flags=re.ASCII) else f"{plain}Z"
