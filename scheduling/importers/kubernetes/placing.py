"""Finds the GPU types in node selectors and affinities."""

from __future__ import annotations

from collections.abc import Iterator

from scheduling.importers.draft import JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.gpus import model_of

# Labels of nodes whose value names the GPU.
PRODUCTS = (
    "nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "gpu.nvidia.com/class", "gpu.nvidia.com/model",
    "k8s.amazonaws.com/accelerator", "karpenter.k8s.aws/instance-gpu-name", "accelerator", "gpu-type", "gpu_type",
    "gputype", "gpu", "gpu-model", "amd.com/gpu.product-name", "aliyun.accelerator/nvidia_name",
    "skypilot.co/accelerator", "gpu.product", "gpu-product", "hardware-type", "nvidia.com/gpu.family",
)  # fmt: skip
INSTANCES = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
# By the beginning of a cloud's instance type, its GPU.
INSTANCE_GPUS = {
    "p3": "V100", "p4d": "A100-40GB", "p4de": "A100-80GB", "p5": "H100", "p5e": "H200", "p5en": "H200",
    "p6-b200": "B200", "g4dn": "T4", "g5": "A10G", "g6": "L4", "g6e": "L40S", "a2-highgpu": "A100-40GB",
    "a2-ultragpu": "A100-80GB", "a3-highgpu": "H100", "a3-megagpu": "H100", "a3-ultragpu": "H200", "g2-standard": "L4",
}  # fmt: skip
ANYWHERE = "Fairlot chooses the nodes. Only GPU types can be chosen."


def put(spec: Fields, draft: JobDraft) -> None:
    """Accepts the GPU types that the pod's node selector and required node affinity name."""
    report = draft.report
    selector = spec.section("nodeSelector")
    for key in selector:
        if names := _named(key, [selector.text(key)]):
            draft.generations(names, selector.at(key))
        elif key.startswith("cloud.google.com/gke-tpu"):
            report.refused_at(selector.at(key), "Fairlot gives GPUs only, no TPUs.")
        else:
            report.dropped(selector.at(key), ANYWHERE)
    for expression in _required(spec):
        names = _named(expression.text("key"), expression.texts("values"))
        if names and expression.text("operator") == "In":
            draft.generations(names, expression.path)
        else:
            report.dropped(expression.path, ANYWHERE)
    affinity = spec.section("affinity")
    for name in ("podAffinity", "podAntiAffinity"):
        if name in affinity:
            report.dropped(
                affinity.at(name), "Fairlot places the workers of a job close together where it can."
            )


def _required(spec: Fields) -> Iterator[Fields]:
    node = spec.section("affinity", "nodeAffinity")
    required = node.section("requiredDuringSchedulingIgnoredDuringExecution")
    for term in required.sections("nodeSelectorTerms"):
        yield from term.sections("matchExpressions")


def _named(key: str, values: list[str]) -> list[str]:
    """Returns the names of GPUs that a label of a node selects."""
    if key in INSTANCES:
        found = [INSTANCE_GPUS.get(value.split(".")[0]) or INSTANCE_GPUS.get("-".join(value.split("-")[:2]))
                 for value in values]  # fmt: skip
        return [name for name in found if name]
    last = key.rpartition("/")[2].lower()
    if key.lower() in PRODUCTS or "gpu" in last or "accelerator" in last:
        return [value for value in values if model_of(value)[0]]
    return []
