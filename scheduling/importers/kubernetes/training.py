"""Jobs of Kubeflow: PyTorchJob, TFJob, MPIJob and TrainJob."""

from __future__ import annotations

from dataclasses import replace

from scheduling.importers import elastic, time_limits
from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.kubernetes import commands, retries, variables
from scheduling.importers.kubernetes.batch import OF_JOBS, drop_known
from scheduling.importers.kubernetes.metadata import QUEUE, drop_template_metadata
from scheduling.importers.kubernetes.objects import Objects
from scheduling.importers.kubernetes.pods import PodTemplate, put_resources
from scheduling.importers.kubernetes.roles import Role, put_as_roles, put_roles
from scheduling.importers.report import Fate, Work

OF_RUNS = {
    "cleanPodPolicy": "Fairlot removes the pods when the job ends.",
    "schedulingPolicy": f"All workers start together. {QUEUE}",
    **OF_JOBS,
}


def pytorch_job(root: Fields, objects: Objects, draft: JobDraft) -> list[Work]:
    """Returns one job: the master has rank 0, the workers follow."""
    spec, report = root.section("spec"), draft.report
    replicas = spec.section("pytorchReplicaSpecs")
    roles = _replicas(replicas, ("Master", "Worker"), draft)
    if not roles:
        report.refused_at(spec.at("pytorchReplicaSpecs"), "There is neither a Master nor a Worker.")
        return []
    put_roles(
        [replace(role, ends_job=role.name == "Master") for role in roles], objects, draft, all_train=True
    )
    processes = spec.text("nprocPerNode")
    if processes.isdigit():
        draft.variable(
            "PET_NPROC_PER_NODE", processes, spec.at("nprocPerNode"), "The variable that torchrun reads."
        )
    elif processes:
        report.mapped(spec.at("nprocPerNode"), "", "torchrun starts one process for each GPU.")
    if "elasticPolicy" in spec:
        policy = spec.section("elasticPolicy")
        if len(roles) > 1 or "roles" in draft:
            elastic.approximate(policy, draft)
        else:
            elastic.put_torch(policy, draft)
    _run_policy(spec, draft)
    return draft.finish()


def _replicas(replicas: Fields, names: tuple[str, ...], draft: JobDraft) -> list[Role]:
    roles = []
    for name in names:
        if name not in replicas:
            continue
        one = replicas.section(name)
        template = one.section("template")
        drop_template_metadata(template, draft)
        count = one.whole("replicas", 1)
        source = one.at("replicas") if "replicas" in one else one.path
        roles.append(Role(name, 1 if count is None else count, template, source))
    for other in replicas:
        if other not in names:
            draft.report.refused_at(replicas.at(other), f"Fairlot does not know the role {other[:40]}.")
    return roles


def _run_policy(spec: Fields, draft: JobDraft) -> None:
    for fields in (spec.section("runPolicy"), spec):
        time_limits.put_deadline(fields, draft)
        drop_known(fields, OF_RUNS, draft)


def mpi_job(root: Fields, objects: Objects, draft: JobDraft) -> list[Work]:
    """Returns a job with a launcher and workers. With one worker, this worker runs the launcher's command."""
    spec, report = root.section("spec"), draft.report
    replicas = spec.section("mpiReplicaSpecs")
    launcher, worker = replicas.section("Launcher"), replicas.section("Worker")
    if not launcher:
        report.refused_at(
            spec.at("mpiReplicaSpecs"), "The job has no Launcher. Older forms of MPIJob are not imported."
        )
        return []
    count = worker.whole("replicas", 1) if worker else 1
    if worker and count is not None and count > 1:
        return _mpi_roles(spec, launcher, worker, objects=objects, draft=draft)
    source = worker or launcher
    for one in (launcher, worker):
        drop_template_metadata(one.section("template"), draft)
        if "replicas" in one:
            report.mapped(one.at("replicas"), "workers")
    pods = PodTemplate(source.section("template"), objects, draft)
    if pods.put(command=False) is None:
        return []
    first = launcher.section("template", "spec").sections("containers")
    found = commands.of_container(first[0], draft) if first else None
    if found is None:
        return []
    if worker:
        pods.at_start |= variables.put(first[0], objects, draft)
        report.approximated(
            launcher.section("template").path, "command",
            "The worker runs the launcher's command. The image and resources are those of the worker.",
        )  # fmt: skip
    pods.command(*found)
    drop_known(spec, {
        "slotsPerWorker": "The command says how many processes mpirun starts.",
        "sshAuthMountPath": "One worker needs no keys.",
        "mpiImplementation": "The image brings its MPI.",
        "launcherCreationPolicy": "There is one worker.",
        "runLauncherAsWorker": "There is one worker.",
        "mainContainer": "There is one container.",
    }, draft)  # fmt: skip
    _run_policy(spec, draft)
    return draft.finish()


def _mpi_roles(
    spec: Fields, launcher: Fields, worker: Fields, *, objects: Objects, draft: JobDraft
) -> list[Work]:
    """Returns a job in which mpirun logs in from the launcher to several workers."""
    roles = []
    for name, one in (("launcher", launcher), ("worker", worker)):
        template = one.section("template")
        drop_template_metadata(template, draft)
        source = one.at("replicas") if "replicas" in one else one.path
        roles.append(Role(name, one.whole("replicas", 1) or 1, template, source, ends_job=name == "launcher"))
    put_as_roles(roles, objects, draft, mpi=True)
    draft.put(
        "launch",
        "mpi",
        spec.at("mpiReplicaSpecs"),
        "The launcher calls mpirun, which logs in to the workers.",
    )
    _slots(spec, draft)
    drop_known(spec, {
        "sshAuthMountPath": "Fairlot brings the keys, at another path. The image needs an ssh server.",
        "mpiImplementation": "The image brings its MPI.",
        "launcherCreationPolicy": "All workers start together.",
        "mainContainer": "There is one container.",
    }, draft)  # fmt: skip
    if spec.flag("runLauncherAsWorker"):
        draft.report.refused_at(
            spec.at("runLauncherAsWorker"), "A launcher with the work of a worker is not imported. Set launch: mpi and"
            " workers instead.", "launch",
        )  # fmt: skip
    _run_policy(spec, draft)
    return draft.finish()


def _slots(spec: Fields, draft: JobDraft) -> None:
    slots, gpus, source = (
        spec.whole("slotsPerWorker"),
        draft.spec.get("gpus_per_worker", 1),
        spec.at("slotsPerWorker"),
    )
    if slots == gpus:
        draft.report.mapped(source, "gpus_per_worker", "Each worker has a slot for each of its GPUs.")
    elif slots is not None:
        draft.report.approximated(
            source, "gpus_per_worker",
            f"Each worker has a slot for each of its GPUs: {gpus}, not {slots}. A command that names no number of"
            f" processes starts {gpus} in each worker.",
        )  # fmt: skip


def tf_job(root: Fields, objects: Objects, draft: JobDraft) -> list[Work]:
    """Returns one job with a role for each kind of replica. The chief ends the job, or else the workers."""
    spec = root.section("spec")
    roles = _replicas(spec.section("tfReplicaSpecs"), ("Chief", "Master", "Worker", "PS", "Evaluator"), draft)
    if not roles:
        draft.report.refused_at(spec.at("tfReplicaSpecs"), "There are no replicas.")
        return []
    names = [role.name for role in roles]
    ends = next((name for name in ("Chief", "Master", "Worker") if name in names), "")
    roles = [replace(role, ends_job=role.name == ends) for role in roles]
    put_as_roles([role for role in roles if role.count], objects, draft)
    if spec.text("successPolicy") not in {"", "AllWorkers"}:
        draft.report.refused_at(spec.at("successPolicy"), "Fairlot does not know this policy.")
    elif "successPolicy" in spec:
        draft.report.mapped(spec.at("successPolicy"), "roles", f"The job ends when {ends} has.")
    drop_known(spec, {"enableDynamicWorker": "Jobs with roles keep their number of workers."}, draft)
    _run_policy(spec, draft)
    return draft.finish()


def train_job(root: Fields, objects: Objects, draft: JobDraft) -> list[Work]:
    """Returns one job. Its image and command may come from a runtime in the same file."""
    spec, report = root.section("spec"), draft.report
    trainer, reference = spec.section("trainer"), spec.section("runtimeRef")
    bounds = trainer.section("elasticPolicy")
    runtime = objects.runtime(reference.text("name"))
    nodes, at_nodes = trainer.whole("numNodes"), trainer.at("numNodes")
    if runtime is not None:
        policy = runtime.section("spec", "mlPolicy")
        if nodes is None and "numNodes" in policy:
            nodes, at_nodes = policy.whole("numNodes"), policy.at("numNodes")
        bounds = policy.section("torch", "elasticPolicy")
        report.mapped(reference.path, "", "The runtime is in the file.")
        retries.put("TrainJob", runtime, draft)
        _put_runtime(runtime, trainer, objects, draft)
    else:
        report.approximated(
            reference.path, "environment",
            f"The runtime {reference.text('name')[:60]} is not in the file. What it sets is missing here, such"
            " as its image.",
        )  # fmt: skip
    if nodes is not None:
        draft.put("workers", nodes, at_nodes)
    elastic.put_bounds(bounds, "minNodes", "maxNodes", draft)
    _put_trainer(trainer, objects, draft)
    for name in ("initializer", "datasetConfig", "modelConfig"):
        if name in spec:
            report.refused_at(
                spec.at(name),
                "Nothing loads data or models before the workers start. Do it at the beginning"
                " of the command.",
            )
    for name in ("podTemplateOverrides", "podSpecOverrides", "runtimePatches", "templateOverrides"):
        if name in spec:
            report.refused_at(
                spec.at(name), "Changes of the runtime's pods are not imported. Write them into the runtime."
            )
    _run_policy(spec, draft)
    return draft.finish()


def _put_trainer(trainer: Fields, objects: Objects, draft: JobDraft) -> None:
    report = draft.report
    if image := trainer.text("image"):
        draft.put("environment", image, trainer.at("image"))
    elif "environment" not in draft:
        report.defaulted(
            "environment", "The job names no image. Choose an image or environment of the cluster."
        )
    at_start = variables.put(trainer, objects, draft)
    if trainer.texts("command") or "command" not in draft:
        found = commands.of_container(trainer, draft)
        if found is not None:
            exports = "".join(f"export {name}={value}\n" for name, value in at_start.items())
            draft.command(exports + found[0], found[1], found[2])
    processes = trainer.text("numProcPerNode")
    if processes.isdigit():
        draft.variable(
            "PET_NPROC_PER_NODE", processes, trainer.at("numProcPerNode"), "The variable that torchrun reads."
        )
    elif processes:
        report.mapped(trainer.at("numProcPerNode"), "", "torchrun starts one process for each GPU.")
    if "resourcesPerNode" in trainer or "gpus_per_worker" not in draft:
        put_resources(trainer.section("resourcesPerNode"), draft)


def _put_runtime(runtime: Fields, trainer: Fields, objects: Objects, draft: JobDraft) -> None:
    """Sets what the runtime says and the job does not."""
    for one in runtime.section("spec", "template", "spec").sections("replicatedJobs"):
        pod = one.section("template", "spec", "template")
        labels = one.section("template", "metadata", "labels")
        if labels.text("trainer.kubeflow.org/trainjob-ancestor-step") not in {"", "trainer"}:
            draft.report.refused_at(one.path, "Nothing loads data or models before the workers start.")
            continue
        containers = pod.section("spec").sections("containers")
        own = bool(trainer.texts("command"))
        if containers and not own and not containers[0].texts("command"):
            draft.report.approximated(
                pod.path, "environment", "The image is used, and the trainer says what it runs."
            )
            draft.put("environment", containers[0].text("image"), containers[0].at("image"), "", Fate.MAPPED)
        else:
            PodTemplate(pod, objects, draft).put(command=not own, resources="resourcesPerNode" not in trainer)
