"""The names of the metrics that Fairlot measures, with their labels and units.

The metric of one GPU is named METRIC@NODE/INDEX. Programs choose the names of all other metrics.
"""

from __future__ import annotations

from dataclasses import dataclass

GPU_METRICS = ("gpu_utilisation", "gpu_sm", "gpu_memory", "gpu_power")
PROCESS_METRICS = ("cpus", "memory", "steps_per_second")
MOST_GPUS = 32  # GPUs of a job whose metrics are stored one by one
OTHERS = "others"  # stands for the other GPUs of a job with more than MOST_GPUS


@dataclass(frozen=True)
class Kind:
    """What a metric measures. `unit` is %, bytes, W or a word after the number."""

    label: str
    unit: str


KINDS = {
    "gpu_utilisation": Kind("GPU utilisation", "%"),
    "gpu_sm": Kind("GPU multiprocessor activity", "%"),
    "gpu_memory": Kind("GPU memory", "bytes"),
    "gpu_power": Kind("GPU power", "W"),
    "cpus": Kind("Processors in use", "CPUs"),
    "memory": Kind("Memory of the workers", "bytes"),
    "steps_per_second": Kind("Steps per second", "steps/s"),
}


def parts_of(name: str) -> tuple[str, str]:
    """Returns the metric and the GPU (NODE/INDEX) of a name. The GPU is "" if the metric belongs to the whole job."""
    metric, at, gpu = name.partition("@")
    return (metric, gpu) if at and metric in GPU_METRICS else (name, "")
