"""Jobs, CronJobs, JobSets and Pods."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any
from zoneinfo import ZoneInfo

from scheduling.importers import time_limits
from scheduling.importers.arrays import SHELL_INDEX, Array
from scheduling.importers.chains import Link, pipeline_of
from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.kubernetes.jobset_names import Names
from scheduling.importers.kubernetes.metadata import drop_template_metadata, put_labels
from scheduling.importers.kubernetes.objects import Objects
from scheduling.importers.kubernetes.pods import PodTemplate
from scheduling.importers.kubernetes.roles import Role, holds_gpus, put_as_roles, put_roles
from scheduling.importers.report import Fate, Work, WorkKind
from scheduling.importers.timetables import put_paused
from scheduling.timetable.cron import Cron

INDEX = "JOB_COMPLETION_INDEX"
# In the template of pods that start or work together, as those of a training do.
TOGETHER = re.compile(
    r"torchrun|torch\.distributed|accelerate\W+launch|deepspeed|mpirun|mpiexec|horovod|ray\W+start|--nnodes|"
    r"MASTER_ADDR|MASTER_PORT|WORLD_SIZE|TF_CONFIG|NCCL_|(?i:\bcoordinator|\bgang\b|pod-?group)|'subdomain'|'containerPort'",
    re.ASCII,
)
MACROS = {"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
          "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *"}  # fmt: skip
# Fields of jobs that Fairlot decides itself, with the consequence.
OF_JOBS = {
    "maxFailedIndexes": "A sweep goes on when members fail. A job fails when one of its workers fails.",
    "successPolicy": "A job succeeds when all its workers succeed.",
    "ttlSecondsAfterFinished": "The job stays in the list after its end.",
    "suspend": "The job is not held: it starts as soon as it gets GPUs.",
    "manualSelector": "Fairlot selects its pods itself.",
    "selector": "Fairlot selects its pods itself.",
    "podReplacementPolicy": "Fairlot starts lost workers again itself.",
    "managedBy": "Fairlot runs the job.",
    "network": "Workers reach the first one at MASTER_ADDR.",
    "startupPolicy": "All workers of a job start together.",
    "coordinator": "Workers reach the first one at MASTER_ADDR.",
}


def drop_known(fields: Fields, consequences: dict[str, str], draft: JobDraft) -> None:
    for name, text in consequences.items():
        if name in fields and not draft.report.covers(fields.at(name)):
            draft.report.dropped(fields.at(name), text)


def pod(root: Fields, objects: Objects, draft: JobDraft) -> list[Work]:
    if PodTemplate(root, objects, draft).put() is None:
        return []
    return draft.finish()


def job(root: Fields, objects: Objects, draft: JobDraft) -> list[Work]:
    """Returns the job, or a sweep whose members are the completions, if these do not work together."""
    array = put_job(root.section("spec"), objects, draft)
    works = draft.finish()
    return works if array is None else array.sweeps_of(works, draft.report)


def put_job(spec: Fields, objects: Objects, draft: JobDraft) -> Array | None:
    """Sets the fields of a Job's specification. Returns its completions if each runs by itself."""
    template = spec.section("template")
    drop_template_metadata(template, draft)
    pods = PodTemplate(template, objects, draft)
    array = _completions(spec, pods)
    pods.put()
    time_limits.put_deadline(spec, draft, of_members=array is not None)
    drop_known(spec, OF_JOBS, draft)
    return array


def _completions(spec: Fields, pods: PodTemplate) -> Array | None:
    """Sets the workers from parallelism and completions. Returns the completions if each runs by itself: if not all
    run at once, or if they have an index and nothing says that they reach each other."""
    draft, report = pods.draft, pods.draft.report
    at_once, all_of_them = spec.whole("parallelism"), spec.whole("completions")
    indexed = spec.text("completionMode") == "Indexed"
    number = all_of_them if all_of_them is not None else 1 if at_once is None else at_once
    for name in ("parallelism", "completions"):
        if name in spec:
            report.mapped(spec.at(name), "workers")
    if at_once == 0:
        report.dropped(spec.at("parallelism"), "The job is not held: it starts as soon as it gets GPUs.")
        at_once = 1
    workers = at_once or 1
    if number > workers or (indexed and number > 1 and not _work_together(pods)):
        return _array(spec, pods, number, workers)
    if "completionMode" in spec:
        report.mapped(
            spec.at("completionMode"), "workers", "Each worker knows its number from RANK." if indexed else ""
        )
    if workers > number:
        report.approximated(spec.at("parallelism"), "workers", f"{number} completions need {number} workers.")
        workers = max(1, number)
    if "parallelism" in spec:
        fate = Fate.MAPPED if workers == 1 or indexed else Fate.APPROXIMATED
        text = "All workers start together. When one fails, the job fails." if workers > 1 else ""
        draft.put("workers", workers, spec.at("parallelism"), text, fate)
    if indexed:
        pods.at_start[INDEX] = '"$RANK"'
    return None


def _array(spec: Fields, pods: PodTemplate, number: int, at_once: int) -> Array:
    """Returns the completions as an array, and lets pods with an index have that of the member."""
    report, said, fate = pods.draft.report, "", Fate.MAPPED
    for name, text in (("parallelism", "at_once"), ("completionMode", "parameters")):
        if name in spec:
            report.mapped(spec.at(name), text)
    if "backoffLimit" in spec and "backoffLimitPerIndex" not in spec:
        report.remark(
            Fate.APPROXIMATED, spec.at("backoffLimit"), "retries",
            "Kubernetes counts the failures of all pods together. Here each member starts again this often.",
        )  # fmt: skip
    if spec.text("completionMode") == "Indexed":
        pods.index = pods.at_start[INDEX] = SHELL_INDEX
        said = f"{INDEX} is the member's index."
        if number <= at_once:
            fate = Fate.APPROXIMATED
            said += " Each starts as soon as it gets GPUs: nothing in the pod says that the pods reach each other."
    return Array.counted(spec.at("completions"), number, at_once=at_once, said=said, fate=fate)


def _work_together(pods: PodTemplate) -> bool:
    """Returns whether something in the template says that the pods of the Job reach each other, or start together."""
    return bool(TOGETHER.search(str(pods.template.data)))


def cron_job(root: Fields, objects: Objects, draft: JobDraft) -> list[Work]:
    """Returns a schedule."""
    spec, report = root.section("spec"), draft.report
    options = timetable(spec, draft)
    template = spec.section("jobTemplate")
    put_labels(template.section("metadata"), draft)
    if put_job(template.section("spec"), objects, draft) is not None:
        report.refused_at(
            template.section("spec").at("completions"),
            "A schedule submits one job at each due time.",
            "workers",
        )
        return []
    return draft.finish(WorkKind.SCHEDULE, options) if options else []


def timetable(spec: Fields, draft: JobDraft) -> dict[str, Any] | None:
    """Returns the options of the schedule; None if its expression is refused."""
    paused: dict[str, Any] = {}
    put_paused(spec, "suspend", paused)
    drop_known(
        spec,
        dict.fromkeys(("successfulJobsHistoryLimit", "failedJobsHistoryLimit"), "All runs stay in the list."),
        draft,
    )
    report, source = draft.report, spec.at("schedule")
    expression, zone = spec.text("schedule").strip(), spec.text("timeZone")
    for prefix in ("CRON_TZ=", "TZ="):
        if expression.startswith(prefix):
            zone, _, expression = expression.removeprefix(prefix).partition(" ")
    expression = MACROS.get(expression, " ".join(expression.split()).replace("?", "*"))
    try:
        Cron(expression, ZoneInfo(zone or "UTC"))
    except (ValueError, KeyError, OSError) as error:
        report.refused_at(source, f"The timetable is not accepted: {str(error)[:200]}.", "expression")
        return None
    report.mapped(source, "expression", f"{expression} in the time zone {zone or 'UTC'}.")
    if "timeZone" in spec:
        report.mapped(spec.at("timeZone"), "time_zone")
    else:
        report.defaulted(
            "time_zone", "Kubernetes uses the time zone of its controller, which is usually UTC."
        )
    policy = spec.text("concurrencyPolicy") or "Allow"
    overlap = {"Allow": "allow", "Forbid": "forbid", "Replace": "replace"}.get(policy)
    if overlap is None:
        report.refused_at(spec.at("concurrencyPolicy"), "This is not Allow, Forbid or Replace.", "overlap")
        return None
    if "concurrencyPolicy" in spec:
        report.mapped(spec.at("concurrencyPolicy"), "overlap")
    else:
        report.defaulted("overlap", "Without a concurrencyPolicy, runs may overlap.")
    options: dict[str, Any] = paused | {
        "expression": expression, "time_zone": zone or "UTC", "overlap": overlap, "missed": "once",
    }  # fmt: skip
    deadline = spec.whole("startingDeadlineSeconds")
    if deadline is not None and deadline >= 0:
        options["catch_up_seconds"] = deadline
        report.mapped(spec.at("startingDeadlineSeconds"), "catch_up_seconds")
    return options


def job_set(root: Fields, objects: Objects, draft: JobDraft) -> list[Work]:
    """Returns one job whose workers are the pods of all replicated jobs, or a pipeline if some of these wait for the
    end of others."""
    spec, report = root.section("spec"), draft.report
    jobs = spec.sections("replicatedJobs")
    if not jobs:
        report.refused_at(spec.at("replicatedJobs"), "The JobSet has no replicated jobs.")
        return []
    ending, needs = _ending(spec, draft), [_waits_for(one, draft) for one in jobs]
    roles = [_replicated(one, draft, ends_job=one.text("name") in ending) for one in jobs]
    if any(needs):
        works = _steps(root, roles, needs, objects=objects, draft=draft)
    else:
        _put_members(root, roles, objects, draft, as_roles=bool(ending))
        works = draft.finish()
    drop_known(spec, OF_JOBS, draft)
    policy = spec.section("failurePolicy")
    drop_known(policy, dict.fromkeys(policy, "Of this policy only maxRestarts has an effect."), draft)
    return works


def _waits_for(one: Fields, draft: JobDraft) -> frozenset[str]:
    """Returns the names of the replicated jobs whose end this one waits for."""
    found = set()
    for needed in one.sections("dependsOn"):
        if needed.text("status") == "Complete":
            found.add(needed.text("name"))
            draft.report.mapped(needed.path, "needs")
        else:
            draft.report.approximated(
                needed.path,
                "",
                "All workers of a job start together, so the program must wait for what it needs.",
            )
    return frozenset(found)


def _put_members(
    root: Fields, roles: Sequence[Role], objects: Objects, draft: JobDraft, *, as_roles: bool
) -> None:
    """Sets the fields of a job whose workers are the pods of these replicated jobs."""
    jobs = root.section("spec").sections("replicatedJobs")
    pods = {
        one.text("name") or "workers": one.section("template", "spec").whole("parallelism", 1) or 1
        for one in jobs
    }
    used = [role for role in roles if role.count > 0]
    names = Names(root.section("metadata").text("name"), used, pods, draft)
    names.check_variables()
    if as_roles:
        put_as_roles(used, objects, draft, begun=names.begun)
    else:
        put_roles(roles, objects, draft, begun=names.begun)


def _steps(
    root: Fields,
    roles: Sequence[Role],
    needs: Sequence[frozenset[str]],
    *,
    objects: Objects,
    draft: JobDraft,
) -> list[Work]:
    """Returns a pipeline. Replicated jobs that wait for the same ones, and hold GPUs or work with others that do, are
    roles of one step."""
    groups: dict[tuple[frozenset[str], str], list[Role]] = {}
    holding = {wanted for role, wanted in zip(roles, needs, strict=True) if holds_gpus(role)}
    for role, wanted in zip(roles, needs, strict=True):
        groups.setdefault((wanted, "" if wanted in holding else role.name), []).append(role)
    step_of = {role.name: members[0].name for members in groups.values() for role in members}
    links = []
    for (wanted, _), members in groups.items():
        own = JobDraft(draft.report, known_generations=draft.known)
        own.spec = copy.deepcopy(draft.spec) | {
            "name": f"{draft.spec.get('name', 'jobset')}-{members[0].name}"[:120]
        }
        ends = {role.ends_job for role in members}
        _put_members(root, members, objects, own, as_roles=len(ends) > 1)
        works = own.finish()
        if works:
            links.append(Link(members[0].name, works[0], {step_of.get(name, name) for name in wanted}))
    if draft.report.refused:
        return []
    return pipeline_of(
        str(draft.spec.get("name", "jobset")), links, root.section("spec").at("replicatedJobs"), draft.report
    )


def _replicated(one: Fields, draft: JobDraft, *, ends_job: bool) -> Role:
    """Returns the pods of a replicated job."""
    report = draft.report
    inner = one.section("template", "spec")
    replicas, at_once = one.whole("replicas", 1) or 1, inner.whole("parallelism", 1) or 1
    drop_template_metadata(one.section("template"), draft)
    drop_template_metadata(inner.section("template"), draft)
    for name in ("parallelism", "completions"):
        if name in inner:
            report.mapped(inner.at(name), "workers")
    completions = inner.whole("completions")
    if completions and completions > at_once:
        report.refused_at(inner.at("completions"), "Not all pods run at once. Submit them as separate jobs.")
    source = one.at("replicas") if "replicas" in one else one.at("name")
    for field in ("name", "groupName", "completionMode"):
        for fields in (one, inner):
            if field in fields:
                report.mapped(fields.at(field), "workers")
    time_limits.put_deadline(inner, draft)
    drop_known(inner, OF_JOBS, draft)
    return Role(
        one.text("name") or "workers",
        replicas * at_once,
        inner.section("template"),
        source,
        ends_job=ends_job,
    )


def _ending(spec: Fields, draft: JobDraft) -> set[str]:
    """Returns the names of the replicated jobs whose end ends the JobSet; none if all of them have to end."""
    policy, report = spec.section("successPolicy"), draft.report
    if not policy:
        return set()
    names = [one.text("name") for one in spec.sections("replicatedJobs")]
    targets = policy.texts("targetReplicatedJobs") or names
    if unknown := [name for name in targets if name not in names]:
        report.refused_at(
            policy.at("targetReplicatedJobs"), f"No replicated job is called {unknown[0][:40]}.", "roles"
        )
    if policy.text("operator") == "Any" and len(targets) > 1:
        report.approximated(
            policy.path, "ends_job", "The job ends when all of these have ended, not the first one."
        )
    else:
        report.mapped(policy.path, "ends_job", "The job ends when these workers have succeeded.")
    return set() if set(targets) == set(names) else set(targets)
