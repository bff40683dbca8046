"""Imports configurations of Determined: experiments, and commands, notebooks and shells.

The trials of a search become the members of a sweep (`determined_searches`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from scheduling.importers import retries
from scheduling.importers.commands import put_command, script_of
from scheduling.importers.determined_searches import of_experiment
from scheduling.importers.documents import drop_each, fields_of
from scheduling.importers.draft import JobDraft
from scheduling.importers.environment import pairs_of, put_variable, put_variables
from scheduling.importers.fields import Fields
from scheduling.importers.images import default_image, put_image
from scheduling.importers.mounts import refuse_host_path
from scheduling.importers.reading import Source, step
from scheduling.importers.report import Fate, Report, Work
from scheduling.importers.resources import no_gpus, put_gpus, put_memory

IN_EXPERIMENT = {
    "searcher",
    "hyperparameters",
    "max_restarts",
    "records_per_epoch",
    "min_validation_period",
    "profiling",
}
TRIAL = re.compile(r"[\w.]+:[A-Za-z_]\w*", re.ASCII)
ON_ONE_NODE = 8  # GPUs; Determined spreads larger trials over machines
TRAINING = "Only Determined's own library reads this. Let the program itself do it."
GIVEN = {
    "DET_SLOT_IDS": '"$CUDA_VISIBLE_DEVICES"',
    "DET_TRIAL_ID": '"$FAIRLOT_JOB_ID"',
    "DET_EXPERIMENT_ID": '"$FAIRLOT_JOB_ID"',
}
LEFT_OUT = {
    **dict.fromkeys(
        ("records_per_epoch", "scheduling_unit", "min_validation_period", "min_checkpoint_period", "optimizations",
         "perform_initial_validation", "checkpoint_policy", "reproducibility", "profiling", "data_layer",
         "integrations", "batches_per_step"), TRAINING),
    "checkpoint_storage": "Fairlot keeps files in $FAIRLOT_CHECKPOINT_DIR. Let the program write its checkpoints"
        " there.",
    "tensorboard_storage": "Fairlot keeps files in $FAIRLOT_CHECKPOINT_DIR.",
    "description": "A description has no effect.",
    "workspace": "Choose the team when you submit the job.",
    "project": "Use labels to group jobs.",
    "debug": "This sets the log level of Determined itself.",
    "log_policies": "Fairlot does not act on lines of the log.",
    "log_retention_days": "The portal's settings say how long logs are kept.",
    "retention_policy": "The portal's settings say how long files are kept.",
    "notebook_idle_type": "The idle timeout of the team stops idle jobs.",
    "idle_timeout": "The idle timeout of the team stops idle jobs.",
    "template": "The template is not a part of the text. Import the configuration that Determined shows for the"
        " experiment.",
    "data": "Determined's library gives these values to the program. Let the program read them from its own files.",
    "internal": "These are settings of Determined itself.",
    "unmanaged": "These are settings of Determined itself.",
}  # fmt: skip
IN_RESOURCES = {
    "max_slots": "There is one trial, which always runs with all its GPUs.",
    "weight": "The team's share decides.",
    "resource_pool": "Fairlot has no pools. Choose the cluster, and the GPU types in the field generations.",
    "agent_label": "Fairlot chooses the nodes.",
    "native_parallel": TRAINING,
    "is_single_node": "A worker is always on one node.",
    "cpu": "Use the field cpu.",
}
IN_ENVIRONMENT = {
    "force_pull_image": "The cluster decides when images are pulled.",
    "pod_spec": "Fairlot makes its own pods.",
    "add_capabilities": "Programs run without capabilities.",
    "drop_capabilities": "Programs run without capabilities.",
    "ports": "Use the field port.",
    "proxy_ports": "Use the field port.",
    "slurm": "There is no Slurm here.",
    "pbs": "There is no PBS here.",
    "force_run": "These are settings of Determined itself.",
}


def recognise(source: Source) -> bool:
    top = source.top
    if {"apiVersion", "kind", "type", "services", "run", "taskRoles", "version"} & top.keys():
        return False
    resources = top.get("resources")
    slots = isinstance(resources, dict) and bool(
        {"slots_per_trial", "slots", "resource_pool"} & resources.keys()
    )
    if isinstance(top.get("searcher"), dict) or (
        slots and bool({"entrypoint", "environment", "description"} & top.keys())
    ):
        return True
    return "entrypoint" in top and len(IN_EXPERIMENT & top.keys()) > 0


def convert(source: Source, report: Report, known: Sequence[str]) -> list[Work]:
    """Returns a job; for a search, a sweep."""
    works: list[Work] = []
    for fields in fields_of(source, report):
        works += _job(fields, report, known)
    return works


def _job(fields: Fields, report: Report, known: Sequence[str]) -> list[Work]:
    draft = JobDraft(report, known_generations=known)
    name = "name" if "name" in fields else "description"
    if fields.text(name):
        draft.name(fields.text(name), fields.at(name))
    draft.default("name", "determined-job", "The configuration has no name.")
    _resources(fields.section("resources"), draft)
    _environment(fields.section("environment"), draft)
    default_image(draft)
    for mount in fields.sections("bind_mounts"):
        refuse_host_path(report, mount.path)
    _folder(fields, draft)
    search = of_experiment(fields, draft)
    _labels(fields, draft)
    _command(fields, draft)
    if "command" in draft:
        draft.spec["command"] = search.begin + draft.spec["command"]
    retries.put_whole(fields, "max_restarts", draft)
    works = draft.finish()
    if search.array and works:
        works = search.array.sweeps_of(works, report)
    drop_each(fields.section("resources"), IN_RESOURCES)
    drop_each(fields, LEFT_OUT)
    return works


def _resources(fields: Fields, draft: JobDraft) -> None:
    name = "slots_per_trial" if "slots_per_trial" in fields else "slots"
    slots = fields.whole(name)
    if slots is None:
        no_gpus(draft) if "searcher" not in fields else None
    elif slots <= ON_ONE_NODE:
        put_gpus(draft, slots, fields.at(name), "One worker with all slots of the trial.")
    elif slots % ON_ONE_NODE == 0:
        put_gpus(draft, ON_ONE_NODE, fields.at(name))
        draft.put(
            "workers", slots // ON_ONE_NODE, fields.at(name),
            f"{slots} slots become {slots // ON_ONE_NODE} workers with {ON_ONE_NODE} GPUs each. Change this if"
            f" your nodes"
            " have another number of GPUs.", Fate.APPROXIMATED,
        )  # fmt: skip
    else:
        put_gpus(draft, slots, fields.at(name), "One worker with all slots of the trial.")
    if (priority := fields.whole("priority")) is not None:
        draft.put(
            "priority", max(-100, min(100, 50 - priority)), fields.at("priority"),
            "It orders your own jobs only, and higher numbers come first.", Fate.APPROXIMATED,
        )  # fmt: skip
    if "shm_size" in fields:
        put_memory(draft, "shm", fields.text("shm_size"), fields.at("shm_size"), bare="B")
    for at, _ in enumerate(fields.items("devices")):
        draft.report.refused_at(
            step(fields.at("devices"), at), "Fairlot gives no devices of the node other than GPUs."
        )


def _environment(fields: Fields, draft: JobDraft) -> None:
    if isinstance(fields.get("image"), dict):
        images = fields.section("image")
        chosen = next((one for one in ("cuda", "gpu", "rocm", "cpu") if images.text(one)), "")
        for kind in images:
            if kind == chosen:
                put_image(draft, images.text(kind), images.at(kind))
            else:
                draft.report.dropped(
                    images.at(kind), f"The job has one image, which is the one for {chosen or 'GPUs'}."
                )
    elif "image" in fields:
        put_image(draft, fields.text("image"), fields.at("image"))
    variables = fields.get("environment_variables")
    if isinstance(variables, dict) and {"cpu", "cuda", "gpu", "rocm"} & variables.keys():
        inner = fields.section("environment_variables")
        for kind in inner:
            if kind == "cpu" and len(inner.data) > 1:
                draft.report.dropped(inner.at(kind), "The job runs on GPUs, so their variables count.")
            else:
                put_variables(draft, inner, kind)
    else:
        for key, value, path in pairs_of(fields, "environment_variables"):
            put_variable(draft, key, value is not None, value or "", path)
    if "registry_auth" in fields:
        draft.put(
            "image_pull_secret", "registry", fields.at("registry_auth"),
            "Store the user name and the password as the secret registry, which holds a Docker configuration.",
            Fate.APPROXIMATED,
        )  # fmt: skip
    drop_each(fields, IN_ENVIRONMENT)


def _folder(fields: Fields, draft: JobDraft) -> None:
    folder = fields.text("work_dir")
    if folder.startswith("/"):
        draft.put("working_directory", folder, fields.at("work_dir"))
    elif folder:
        draft.report.dropped(fields.at("work_dir"), "A relative folder has no meaning here.")


def _labels(fields: Fields, draft: JobDraft) -> None:
    for at, label in enumerate(fields.texts("labels")):
        path = (
            step(fields.at("labels"), at) if isinstance(fields.get("labels"), list) else fields.at("labels")
        )
        draft.labels({label: ""}, {label: path})


def _command(fields: Fields, draft: JobDraft) -> None:
    source, value = fields.at("entrypoint"), fields.get("entrypoint")
    words = fields.texts("entrypoint")
    script = script_of(words) if isinstance(value, list) else fields.text("entrypoint").strip()
    if isinstance(value, str) and TRIAL.fullmatch(script):
        put_command(
            draft, f"python3 -m determined.launch.torch_distributed --trial {script}", source,
            text="The entrypoint is a trial class, which Determined's library runs. Without Determined's master"
                " it fails:"
            " write a command that trains by itself.", fate=Fate.APPROXIMATED,
        )  # fmt: skip
    elif script:
        put_command(draft, script, source, given=GIVEN)
        if "determined" in script:
            draft.report.remark(
                Fate.APPROXIMATED, source, "command",
                "The command uses Determined's library, which asks Determined's master. There is none here; use"
                " torchrun or"
                " the program itself.",
            )  # fmt: skip
    elif {"hyperparameters", "searcher"} & fields.data.keys():
        draft.report.refused_at(source, "The experiment has no entrypoint.", "command")
    else:
        put_command(
            draft, "sleep infinity", source, text="The text has no entrypoint, as for a notebook or a shell. The"
                " job waits"
            " until it is cancelled; to work in a notebook, start a session.", fate=Fate.APPROXIMATED,
        )  # fmt: skip
