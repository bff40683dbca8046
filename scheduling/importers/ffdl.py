"""Imports manifests of FfDL."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from decimal import Decimal

from scheduling.importers.commands import put_command, used_in
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
# The images of frameworks, whose tag is the version.
IMAGES = {
    "caffe": "bvlc/caffe", "tensorflow": "tensorflow/tensorflow", "caffe2": "caffe2ai/caffe2",
    "pytorch": "pytorch/pytorch", "h2o3": "opsh2oai/h2o3-ffdl", "horovod": "uber/horovod",
    "pytorchmpi": "tomcli/pytorch",
}  # fmt: skip
# Processes that mpirun starts have no RANK. Open MPI, MPICH and Intel MPI tell them their number.
OF_PROCESS = "${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${PMI_RANK:-0}}}"
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
    if name == "custom" and version:
        put_image(draft, version, framework.at("version"))
        draft.report.mapped(framework.at("name"), "environment", "The version is the image.")
    elif name in IMAGES and version:
        draft.put(
            "environment", f"{IMAGES[name]}:{shown(version)}", framework.at("version"),
            "The image that FfDL uses for this version. Check that it still exists and supports GPUs.",
            Fate.APPROXIMATED,
        )  # fmt: skip
        draft.report.mapped(framework.at("name"), "environment")
    default_image(draft)
    drop_each(framework, dict.fromkeys(("name", "version", "image_tag", "image_location"),
                                       "Choose an environment with this framework."))  # fmt: skip
    learners = draft.spec.get("workers", 1)
    if learners > 1 and (name in BY_MPI or (name in IMAGES and "horovod" in version)):
        _by_mpi(framework, draft, learners)
    else:
        put_command(draft, framework.text("command").strip(), framework.at("command"), given=GIVEN)
    if "DATA_DIR" in framework.text("command"):
        draft.report.remark(
            Fate.DROPPED, f"{framework.at('command')}: $DATA_DIR", "command",
            "This variable is not set. Set it to the folder of the volume with the data.",
        )  # fmt: skip


def _by_mpi(framework: Fields, draft: JobDraft, learners: int) -> None:
    """Lets mpirun start the command once for each GPU of all learners, as FfDL does with these frameworks."""
    command, source, report = framework.text("command").strip(), framework.at("command"), draft.report
    gpus = draft.spec.get("gpus_per_worker", 1)
    given = GIVEN | {
        "LEARNER_ID": f'"$(({OF_PROCESS} / {gpus} + 1))"', "NUM_LEARNERS": str(learners),
    }  # fmt: skip
    exports = {name: given[name] for name in used_in(command, given)}
    for name, value in exports.items():
        said = f"The command sets this variable to {shown(value)}."
        report.remark(Fate.APPROXIMATED, f"{source}: ${name}", "command", said)
    script = "\n".join([*(f"export {name}={value}" for name, value in exports.items()), command])
    number = learners * gpus
    put_command(draft, f"mpirun -np {number} sh -c {shlex.quote(script)}" if command else "", source)
    said = (
        f"mpirun starts the command {number} times, once for each GPU of the learners. The image needs sshd."
    )
    draft.put("launch", "mpi", framework.at("name"), said, Fate.APPROXIMATED)
