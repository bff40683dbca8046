"""Reads a pod template into a job specification."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal

from scheduling.importers import time_limits
from scheduling.importers.amounts import NoAmount, quantity
from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.kubernetes import commands, placing, security, variables, volumes
from scheduling.importers.kubernetes.objects import Objects
from scheduling.importers.report import Fate
from scheduling.spec.attachments import NAME, read_bytes

GPUS = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe", "aliyun.com/gpu", "gpu")
VENDORS = {"amd.com/": "amd", "gpu.intel.com/": "intel"}  # of resources, by their beginning
PARTS = ("nvidia.com/mig-", "nvidia.com/gpu.shared", "nvidia.com/gpumem", "nvidia.com/gpucores", "aliyun.com/gpu-mem",
         "tencent.com/vcuda", "volcano.sh/vgpu", "nvidia.com/gpualloc")  # fmt: skip
OTHER_CHIPS = (
    "google.com/tpu",
    "habana.ai/gaudi",
    "aws.amazon.com/neuron",
    "huawei.com/",
    "cloud-tpus.google.com/",
)
LONGEST_GRACE = 3600
# Fields of pods and containers that Fairlot decides itself, with the consequence.
DECIDED = {
    "restartPolicy": "Fairlot starts a job again after a suspension or a lost node. Set the field retries to start"
    " a program that failed again as well.",
    "priorityClassName": "Use the field priority to order your own jobs.",
    "priority": "Use the field priority to order your own jobs.",
    "preemptionPolicy": "Use the field priority to order your own jobs.",
    "schedulerName": "Fairlot schedules the job.",
    "schedulingGates": "Fairlot schedules the job.",
    "topologySpreadConstraints": "Fairlot chooses the nodes.",
    "tolerations": "Fairlot chooses the nodes.",
    "nodeName": "Fairlot chooses the nodes.",
    "runtimeClassName": "The cluster decides how containers with GPUs run.",
    "serviceAccountName": "The job has no rights in the cluster. A program that uses the API of Kubernetes fails.",
    "serviceAccount": "The job has no rights in the cluster. A program that uses the API of Kubernetes fails.",
    "automountServiceAccountToken": "The job has no rights in the cluster.",
    "dnsPolicy": "The cluster decides how pods look up host names.",
    "dnsConfig": "The cluster decides how pods look up host names.",
    "hostname": "Fairlot sets host names. Workers reach the first one at MASTER_ADDR.",
    "subdomain": "Fairlot sets host names. Workers reach the first one at MASTER_ADDR.",
    "setHostnameAsFQDN": "Fairlot sets host names.",
    "enableServiceLinks": "Fairlot sets no variables about Services.",
    "activeDeadlineSeconds": "A service has no time limit.",
    "lifecycle": "Nothing runs before the program stops. It gets SIGTERM and its grace to save.",
    "livenessProbe": "Fairlot does not restart a program that hangs. Cancel the job.",
    "readinessProbe": "Only services are asked whether they are ready.",
    "startupProbe": "Only services are asked whether they are ready.",
    "ports": "Workers of a job reach each other at every port.",
    "stdin": "Jobs have no terminal.",
    "stdinOnce": "Jobs have no terminal.",
    "tty": "Jobs have no terminal.",
    "terminationMessagePath": "The end of the log is shown on the job's page.",
    "terminationMessagePolicy": "The end of the log is shown on the job's page.",
    "resizePolicy": "Resources of a running job do not change.",
    "overhead": "The cluster adds what its runtime needs.",
    "shareProcessNamespace": "A worker has one container.",
}


@dataclass
class PodTemplate:
    """A pod template: its specification and the container that runs the program."""

    template: Fields
    objects: Objects
    draft: JobDraft
    at_start: dict[str, str] = field(
        default_factory=dict
    )  # variables that the command sets, with their shell text
    index: str = variables.OF_WORKER  # the pod's number among those of the Job, in a shell script
    is_of_job: bool = True  # not of a service, which has no time limit

    @property
    def spec(self) -> Fields:
        return self.template.section("spec")

    def container(self) -> Fields | None:
        """Returns the container of the program. Refuses pods with several containers."""
        containers = self.spec.sections("containers")
        report = self.draft.report
        if not containers:
            report.refused_at(self.spec.at("containers"), "The pod has no containers.")
            return None
        main = next((one for one in containers if has_gpus(one)), containers[0])
        for other in containers:
            if other is not main:
                report.refused_at(
                    other.path,
                    "A worker is one container. Put the program of this container into the image or the command of the"
                    " other one.",
                )
        for first in self.spec.sections("initContainers"):
            if commands.only_waits([*first.texts("command"), *first.texts("args")]):
                report.approximated(
                    first.path, "",
                    "This container only waits for other pods. All workers start together, so it is left out. The"
                    " program must wait for what is not part of the job.",
                )  # fmt: skip
                continue
            report.refused_at(
                first.path,
                "Nothing runs before the container of a worker starts. Put these steps at the beginning of its"
                " command.",
            )
        return main

    def put(self, *, command: bool = True, resources: bool = True) -> Fields | None:
        """Sets the fields of the specification. Returns the container, or None if there is none.

        Without `command` or `resources`, the caller sets these.
        """
        container = self.container()
        if container is None:
            return None
        report = self.draft.report
        security.check(self.spec, container, self.draft)
        self.image(container)
        self.at_start |= variables.put(container, self.objects, self.draft, index=self.index)
        if command:
            text = commands.of_container(container, self.draft)
            if text is not None:
                self.command(text[0], text[1], text[2])
        if resources:
            put_resources(container.section("resources"), self.draft)
        volumes.put(self.spec, container, self.objects, self.draft)
        self.shared_memory(container)
        placing.put(self.spec, self.draft)
        if self.draft.of_vendor:
            self.draft.vendor(*self.draft.of_vendor)
        self.grace()
        if self.is_of_job:
            time_limits.put_deadline(self.spec, self.draft)
        for fields in (self.spec, container):
            for name, consequence in DECIDED.items():
                if name in fields and not report.covers(fields.at(name)):
                    report.dropped(fields.at(name), consequence)
        if "name" in container:
            report.dropped(container.at("name"), "Containers have no names here.")
        return container

    def command(self, text: str, source: str, said: str, fate: Fate = Fate.MAPPED) -> None:
        """Sets the command, after the variables that only a worker knows."""
        exports = "".join(f"export {name}={value}\n" for name, value in self.at_start.items())
        self.draft.command(exports + text, source, said, fate)

    def image(self, container: Fields) -> None:
        if image := container.text("image"):
            self.draft.put("environment", image, container.at("image"))
        else:
            self.draft.report.refused_at(container.at("image"), "The container has no image.", "environment")
        policy = container.text("imagePullPolicy")
        if policy in {"Always", "IfNotPresent", "Never"}:
            self.draft.put("image_pull_policy", policy, container.at("imagePullPolicy"))
        for at, secret in enumerate(self.spec.sections("imagePullSecrets")):
            name = secret.text("name")
            if at or not NAME.fullmatch(name):
                self.draft.report.dropped(secret.path, "One secret pulls the image. This one is not used.")
            else:
                self.draft.put("image_pull_secret", name, secret.path,
                               "Store the Docker configuration as a secret with this name in Fairlot.",
                               Fate.APPROXIMATED)  # fmt: skip
        folder = container.text("workingDir")
        if folder:
            self.draft.put("working_directory", folder, container.at("workingDir"))

    def shared_memory(self, container: Fields) -> None:
        """Adds the shared memory to the memory if the pod has no limit: then it does not count as requested memory."""
        resources, spec = container.section("resources"), self.draft.spec
        if "memory" in resources.section("limits") or not {"memory", "shm"} <= spec.keys():
            return
        memory, shm = read_bytes(spec["memory"]), read_bytes(spec["shm"])
        if memory < shm:
            self.draft.amount(
                "memory", memory + shm, resources.section("requests").at("memory"),
                "The pod has no limit, so its shared memory is added to what it requests.", Fate.APPROXIMATED,
            )  # fmt: skip

    def grace(self) -> None:
        seconds = self.spec.whole("terminationGracePeriodSeconds")
        source = self.spec.at("terminationGracePeriodSeconds")
        if seconds is None:
            return
        if 0 <= seconds <= LONGEST_GRACE:
            self.draft.put("checkpoint_grace_seconds", seconds, source)
        else:
            self.draft.put("checkpoint_grace_seconds", LONGEST_GRACE, source, "The longest grace is one hour.",
                           Fate.APPROXIMATED)  # fmt: skip


def has_gpus(container: Fields) -> bool:
    """Returns whether a container requests GPUs."""
    resources = container.section("resources")
    parts = [resources.section(part) for part in ("limits", "requests")]
    return any(name in part and str(part.get(name)) != "0" for part in parts for name in GPUS)


def put_resources(resources: Fields, draft: JobDraft) -> None:
    """Sets GPUs, CPUs and memory from the limits of a container, or from its requests where it has no limits."""
    report = draft.report
    if resources.items("claims"):
        report.refused_at(resources.at("claims"), "Devices can only be requested as a number of whole GPUs.")
    limits, requests = resources.section("limits"), resources.section("requests")
    for fields, other in ((limits, requests), (requests, limits)):
        for name in fields:
            if name in other and fields is requests:
                same = fields.text(name) == other.text(name)
                add = report.mapped if same else report.approximated
                add(fields.at(name), "", "Requests and limits of a job are the same."
                    + ("" if same else " The limit counts."))  # fmt: skip
            else:
                _put_resource(name, fields, draft)
    draft.default(
        "gpus_per_worker", 1, "The container requests no GPUs. Each worker of a job has at least one."
    )


def _put_resource(name: str, fields: Fields, draft: JobDraft) -> None:
    source, report = fields.at(name), draft.report
    if name.startswith(PARTS):
        report.refused_at(
            source, "A part of a GPU is requested. Fairlot gives whole GPUs only.", "gpus_per_worker"
        )
        return
    if name.startswith(OTHER_CHIPS):
        report.refused_at(source, "Fairlot gives GPUs only, no other accelerators.", "gpus_per_worker")
        return
    try:
        amount = quantity(fields.text(name))
    except NoAmount as error:
        report.refused_at(source, str(error))
        return
    if name in GPUS:
        _put_gpus(amount, source, draft)
        for beginning, vendor in VENDORS.items():
            if amount and name.startswith(beginning):
                draft.of_vendor = (vendor, source)
    elif name == "cpu":
        _put_cpu(amount, source, draft)
    elif name == "memory":
        draft.amount("memory", int(amount), source)
    elif name == "ephemeral-storage":
        report.dropped(source, "Space on the local disk is not reserved.")
    elif "rdma" in name or "efa" in name or "hca" in name or "infiniband" in name:
        report.dropped(
            source, "RDMA devices cannot be requested. NCCL uses what the cluster gives every job."
        )
    else:
        report.dropped(source, "Fairlot has no such resource.")


def _put_gpus(amount: Decimal, source: str, draft: JobDraft) -> None:
    if amount == 0 and draft.spec.get("gpus_per_worker") == 0:
        draft.report.mapped(source, "gpus_per_worker")
    elif amount == 0:
        draft.put(
            "gpus_per_worker", 1, source, "Each worker of a job has at least one GPU.", Fate.APPROXIMATED
        )
    elif amount != int(amount):
        draft.report.refused_at(source, "A number of whole GPUs is expected.", "gpus_per_worker")
    else:
        draft.put("gpus_per_worker", int(amount), source)


def _put_cpu(amount: Decimal, source: str, draft: JobDraft) -> None:
    if amount < Decimal("0.1"):
        draft.put("cpu", 0.1, source, "0.1 CPUs is the least.", Fate.APPROXIMATED)
    else:
        draft.put("cpu", int(amount) if amount == int(amount) else float(amount), source)
