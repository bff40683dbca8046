"""The options of a batch script that are not about resources: name, time, folders, image, mail."""

from __future__ import annotations

import re

from scheduling.importers import time_limits
from scheduling.importers.chains import HOW_TO_NEED
from scheduling.importers.draft import JobDraft
from scheduling.importers.report import Fate
from scheduling.importers.slurm.directives import BatchScript
from scheduling.importers.slurm.resources import models_in

MOST_GRACE = 3600
DAYS = re.compile(r"(?:(\d{1,6})-)?(\d{1,8})(?::(\d{1,6}))?(?::(\d{1,6}))?", re.ASCII)
SIGNAL = re.compile(r"(?:[RB]{1,2}:)?([A-Za-z0-9]+)(?:@(\d{1,6}))?", re.ASCII)
NO_FOLDERS = (
    "Folders of the node cannot be mounted. Ask an operator for a volume, and list it in the field volumes."
)
NO_SHELL = "Fairlot runs the job where the portal says; nothing of your shell reaches it."
NOTIFY = (
    "Press Notify me on the job's page, or run fairlot notify follow with its number. The settings of notifications say"
    " whether mail is sent, to the address of your account."
)
# By option, the consequence of leaving it out.
WITHOUT = {
    "account": "Choose the team when you submit the job: it pays for the job.",
    "qos": "Fairlot has no quality of service. Limits belong to teams; priority orders your own jobs.",
    "partition": "Fairlot has no partitions. It chooses the nodes; the field generations limits the GPU types.",
    "nodelist": "Fairlot chooses the nodes. A job cannot name them.",
    "nodefile": "Fairlot chooses the nodes. A job cannot name them.",
    "exclude": "Fairlot chooses the nodes. Ask an operator to drain a node that is broken.",
    "reservation": "Fairlot has no reservations.",
    "output": "Fairlot keeps the output of each worker as its log, on the job's page.",
    "error": "Fairlot keeps the output of each worker, errors included, as its log on the job's page.",
    "open-mode": "The log of a job that starts again continues.",
    "mail-type": NOTIFY,
    "mail-user": NOTIFY,
    "exclusive": "Other jobs may run on the same node. Each has GPUs, CPUs and memory of its own.",
    "oversubscribe": "GPUs are never shared by two jobs.",
    "no-requeue": "Fairlot starts a suspended job again. The program must be able to start twice.",
    "dependency": f"The job does not wait for other jobs. {HOW_TO_NEED}",
    "begin": "The job starts as soon as it gets GPUs. To start it at a set time, create a schedule.",
    "hold": "The job is not held: it starts as soon as it gets GPUs.",
    "licenses": "Fairlot does not count licences. Too many jobs may run at once.",
    "comment": "A comment has no effect. Use labels to find jobs.",
    "nice": "Use the field priority to order your own jobs.",
    "priority": "Use the field priority to order your own jobs.",
    "export-file": NO_SHELL,
    "get-user-env": NO_SHELL,
    "propagate": NO_SHELL,
    "clusters": "Choose the cluster when you submit the job.",
    "input": "Jobs have no standard input. Let the script read the file.",
    "tmp": "Fairlot does not reserve space on the local disk.",
    "wait": "The API answers at once. Ask GET /api/v1/jobs/{id} for the state.",
    "distribution": "Fairlot gives tasks to workers in order of their rank.",
    "contiguous": "Fairlot places the workers of a job close together where it can.",
    "switches": "Fairlot places the workers of a job close together where it can.",
    "wckey": "Use labels to group jobs in reports.",
}


def put_settings(script: BatchScript, draft: JobDraft) -> None:
    """Sets the fields for options that are not about resources, and reports the consequence of the others."""
    if "job-name" in script:
        draft.name(script.value("job-name"), script.source("job-name"))
    _time(script, draft)
    _signal(script, draft)
    _folder(script, draft)
    _constraint(script, draft)
    _variables(script, draft)
    _container(script, draft)
    if "requeue" in script:
        draft.report.mapped(script.source("requeue"), "", "Fairlot always starts a suspended job again.")
    for name, consequence in WITHOUT.items():
        if name in script and not draft.report.covers(script.source(name)):
            draft.report.dropped(script.source(name), consequence)


def minutes_of(text: str) -> float | None:
    """Returns a time limit of Slurm in minutes: 30, 30:00, 1:30:00, 1-12, 1-12:30 or 1-12:30:00. Returns None for
    any other text."""
    found = DAYS.fullmatch(text.strip())
    if not found:
        return None
    days, first, second, third = found.groups()
    if days is not None:
        return int(days) * 1440 + int(first) * 60 + int(second or 0) + int(third or 0) / 60
    if third is not None:
        return int(first) * 60 + int(second) + int(third) / 60
    return int(first) + int(second or 0) / 60


def _time(script: BatchScript, draft: JobDraft) -> None:
    if "time" in script:
        source = script.source("time")
        minutes = minutes_of(script.value("time"))
        if script.value("time").lower() in {"0", "unlimited", "infinite", "-1"}:
            draft.report.mapped(source, "", "The job has no time limit of its own.")
        elif minutes is None:
            draft.report.refused_at(
                source, "This is not a time limit of Slurm, such as 30, 1:30:00 or 1-12:00."
            )
        else:
            time_limits.put_seconds(draft, minutes * 60, source, time_limits.OF_ATTEMPTS)
    if "time-min" in script and "time_limit_hours" in draft:
        draft.report.approximated(
            script.source("time-min"), "time_limit_hours",
            "Fairlot does not shorten a time limit to start a job earlier. That of --time holds.",
        )  # fmt: skip
    elif "time-min" in script:
        draft.report.dropped(script.source("time-min"), "Without --time, there is no time limit to shorten.")
    if "deadline" in script:
        draft.report.dropped(
            script.source("deadline"), "Set the field deadline_hours, in hours from the submission."
        )


def _signal(script: BatchScript, draft: JobDraft) -> None:
    if "signal" not in script:
        return
    source, found = script.source("signal"), SIGNAL.fullmatch(script.value("signal"))
    if not found:
        draft.report.refused_at(source, "This is not a signal with a time, such as B:USR1@120.")
        return
    grace = min(float(found[2] or 60), MOST_GRACE)
    draft.put(
        "checkpoint_grace_seconds", grace, source,
        f"Fairlot sends SIGTERM, not {found[1][:20]}, and gives the job {grace:g} seconds to save before it stops.",
        Fate.APPROXIMATED,
    )  # fmt: skip


def _folder(script: BatchScript, draft: JobDraft) -> None:
    for name in ("container-workdir", "chdir"):
        if name not in script:
            continue
        source, folder = script.source(name), script.value(name)
        if not folder.startswith("/"):
            draft.report.dropped(
                source, "A relative folder has no meaning here. The script begins in the image's folder."
            )
        elif "working_directory" in draft:
            draft.report.dropped(source, "Another option already sets the folder.")
        else:
            draft.put("working_directory", folder, source, "The image or a volume must have this folder.",
                      Fate.APPROXIMATED)  # fmt: skip


def _constraint(script: BatchScript, draft: JobDraft) -> None:
    for name in ("constraint", "prefer"):
        if name not in script:
            continue
        source, value = script.source(name), script.value(name)
        models = models_in(value)
        if name == "constraint" and models and "generations" not in draft:
            draft.generations(models, source)
        if name == "prefer" or not models:
            draft.report.dropped(source, "Nodes have no features in Fairlot. Only GPU types can be chosen.")
        elif not draft.report.covers(source):
            draft.report.dropped(source, "Another option already names the GPU type.")


def _variables(script: BatchScript, draft: JobDraft) -> None:
    if "export" not in script:
        return
    source = script.source("export")
    for part in re.split(r",(?=[A-Za-z_]\w*(?:=|,|$))", script.value("export"), flags=re.ASCII):
        name, equals, value = part.partition("=")
        if equals:
            draft.variable(name.strip(), value.strip("'\""), source)
        elif name.strip().upper() not in {"NONE", "NIL"}:
            draft.report.dropped(
                source, f"{NO_SHELL} Write variables that the job needs into the field variables."
            )
        else:
            draft.report.mapped(source, "", "Nothing of your shell reaches the job anyway.")


def _container(script: BatchScript, draft: JobDraft) -> None:
    if "container-image" in script:
        put_image(script.value("container-image"), script.source("container-image"), draft)
    for name in ("container-mounts", "container"):
        if name in script:
            draft.report.refused_at(script.source(name), NO_FOLDERS, "volumes")


def put_image(image: str, source: str, draft: JobDraft) -> None:
    """Sets the image of a container option, as Pyxis and Enroot write it: nvcr.io#nvidia/pytorch:24.05-py3."""
    plain = re.sub(r"^(?:docker|dockerd|podman|oras)://", "", image.strip("'\""))
    if plain.endswith((".sqsh", ".sif", ".squashfs")) or plain.startswith(("/", ".", "~")):
        draft.report.refused_at(
            source,
            "This image is a file of the cluster. Push it to a registry, and name it there.",
            "environment",
        )
    else:
        draft.put("environment", re.sub(r"^(?:[^@/]*@)?([^#/]+)#", r"\1/", plain), source)
