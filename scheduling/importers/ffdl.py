"""Imports manifests of FfDL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

from scheduling.importers.commands import put_command
from scheduling.importers.documents import drop_each, fields_of, shown
from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.images import default_image, put_image
from scheduling.importers.mounts import refuse_host_path
from scheduling.importers.reading import Source
from scheduling.importers.report import Fate, Report, Work
from scheduling.importers.resources import no_gpus, put_cpus, put_gpus, put_memory

GIVEN = {
    "LEARNER_ID": '"$((RANK + 1))"', "NUM_LEARNERS": '"$WORLD_SIZE"', "RESULT_DIR": '"$FAIRLOT_CHECKPOINT_DIR"',
    "JOB_STATE_DIR": '"$FAIRLOT_CHECKPOINT_DIR"', "MODEL_DIR": '"$PWD"', "TRAINING_ID": '"$FAIRLOT_JOB_ID"',
}  # fmt: skip
NO_STORE = (
    "Fairlot mounts no object stores. Copy the data in the command, or ask an operator for a volume. Store the keys as"
    " secrets."
)
BY_MPI = {"horovod", "pytorchmpi"}  # frameworks whose command FfDL starts with mpirun on all learners
LEFT_OUT = {
    "description": "A description has no effect.", "version": "The version of the manifest has no effect.",
    "evaluation_metrics": "Fairlot reads progress from the log. Set progress_pattern.",
    "size": "The numbers of GPUs, CPUs and the amount of memory count.",
}  # fmt: skip


def recognise(source: Source) -> bool:
    top = source.top
    framework = top.get("framework")
    return (
        isinstance(framework, dict)
        and "command" in framework
        and bool({"learners", "gpus", "data_stores", "memory"} & top.keys())
    )


def convert(source: Source, report: Report, known: Sequence[str]) -> list[Work]:
    """Returns a job."""
    works: list[Work] = []
    for fields in fields_of(source, report):
        works += _job(fields, report, known)
    return works


def _job(fields: Fields, report: Report, known: Sequence[str]) -> list[Work]:
    draft = JobDraft(report, known_generations=known)
    if fields.text("name"):
        draft.name(fields.text("name"), fields.at("name"))
    draft.default("name", "ffdl-job", "The manifest has no name.")
    if (learners := fields.whole("learners")) is not None:
        draft.put("workers", learners, fields.at("learners"), "Each learner becomes a worker.")
    if (gpus := fields.whole("gpus")) is not None:
        put_gpus(draft, gpus, fields.at("gpus"))
    else:
        no_gpus(draft)
    if fields.text("gpu_type"):
        draft.generations([re.sub(r"(?i)tesla[-_ ]?", "", fields.text("gpu_type"))], fields.at("gpu_type"))
    if "cpus" in fields:
        try:
            put_cpus(draft, Decimal(fields.text("cpus").strip()), fields.at("cpus"))
        except ArithmeticError:
            report.refused_at(fields.at("cpus"), "Here a number is expected.", "cpu")
    if fields.text("memory"):
        put_memory(draft, "memory", fields.text("memory"), fields.at("memory"), bare="MB")
    _stores(fields, report)
    _framework(fields.section("framework"), draft)
    drop_each(fields, LEFT_OUT)
    return draft.finish()


def _stores(fields: Fields, report: Report) -> None:
    for store in fields.sections("data_stores"):
        if store.section("connection").text("type") == "host_mount" or store.text("type") in {
            "host_mount",
            "mount_volume",
        }:
            refuse_host_path(report, store.path)
        else:
            report.dropped(store.path, NO_STORE)


def _framework(framework: Fields, draft: JobDraft) -> None:
    name, version = framework.text("name").lower(), framework.text("version")
    if name in BY_MPI and draft.spec.get("workers", 1) > 1:
        draft.report.refused_at(
            framework.at("name"),
            "FfDL starts the command with mpirun on all learners. Write a job with launch: mpi, whose command calls"
            " mpirun, or start the program with torchrun.",
            "command",
        )
    if name == "custom" and version:
        put_image(draft, version, framework.at("version"))
        draft.report.mapped(framework.at("name"), "environment", "The version is the image.")
    elif name in {"tensorflow", "pytorch"} and version:
        draft.put(
            "environment", f"{name}/{name}:{shown(version)}", framework.at("version"),
            "The public image of this version. Check that it exists and supports GPUs.", Fate.APPROXIMATED,
        )  # fmt: skip
        draft.report.mapped(framework.at("name"), "environment")
    default_image(draft)
    drop_each(framework, dict.fromkeys(("name", "version", "image_tag", "image_location"),
                                       "Choose an environment with this framework."))  # fmt: skip
    put_command(draft, framework.text("command").strip(), framework.at("command"), given=GIVEN)
    if "DATA_DIR" in framework.text("command"):
        draft.report.remark(
            Fate.DROPPED, f"{framework.at('command')}: $DATA_DIR", "command",
            "This variable is not set. Set it to the folder of the volume with the data.",
        )  # fmt: skip
