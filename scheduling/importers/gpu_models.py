"""What a foreign text may say instead of the number and type of GPUs: their memory, or a machine of a cloud."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from scheduling.importers.gpus import model_of

# Accelerators that are no GPUs. Fairlot does not schedule them.
NO_GPU = re.compile(
    r"(?:google[:/-]?)?(?:tpu|v\d[ep]?(?:lite)?(?:pod)?-\d)|inferentia|trainium|neuron|tenstorrent|n150|n300|ascend",
    re.IGNORECASE | re.ASCII,
)
# Memory in GB of the models that exist with it, by the model as `model_of` gives it.
MEMORY: dict[str, tuple[int, ...]] = {
    "k80": (12,), "m60": (8,), "p4": (8,), "p40": (24,), "p100": (16,), "v100": (16, 32), "t4": (16,), "t4g": (16,),
    "a2": (16,), "a10": (24,), "a10g": (24,), "a16": (16,), "a30": (24,), "a40": (48,), "a100": (40, 80), "a800": (80,),
    "l4": (24,), "l40": (48,), "l40s": (48,), "h20": (96,), "h100": (80,), "h200": (141,), "h800": (80,),
    "gh200": (96,), "b200": (180,), "b300": (288,), "gb200": (186,), "1080ti": (11,), "2080ti": (11,), "3080": (10,),
    "3090": (24,),
    "4080": (16,), "4090": (24,), "5090": (32,), "a4000": (16,), "a5000": (24,), "a6000": (48,), "6000ada": (48,),
    "mi210": (64,), "mi250": (128,), "mi300x": (192,), "mi325x": (256,), "mi350x": (288,), "mi355x": (288,),
}  # fmt: skip
# Machines of clouds: the GPUs in them. A number that the pattern captures is the number of GPUs.
MACHINES: tuple[tuple[str, str, int], ...] = (
    (r"p2\.xlarge", "K80", 1), (r"p2\.8xlarge", "K80", 8), (r"p2\.16xlarge", "K80", 16),
    (r"p3\.2xlarge", "V100-16GB", 1), (r"p3\.8xlarge", "V100-16GB", 4), (r"p3\.16xlarge", "V100-16GB", 8),
    (r"p3dn\.24xlarge", "V100-32GB", 8), (r"p4d\.24xlarge", "A100-40GB", 8), (r"p4de\.24xlarge", "A100-80GB", 8),
    (r"p5\.4xlarge", "H100", 1), (r"p5\.48xlarge", "H100", 8), (r"p5en?\.48xlarge", "H200", 8),
    (r"g4dn\.12xlarge", "T4", 4), (r"g4dn\.metal", "T4", 8), (r"g4dn\.\w+", "T4", 1),
    (r"g5\.(?:12|24)xlarge", "A10G", 4), (r"g5\.48xlarge", "A10G", 8), (r"g5\.\w+", "A10G", 1),
    (r"g6\.(?:12|24)xlarge", "L4", 4), (r"g6\.48xlarge", "L4", 8), (r"g6\.\w+", "L4", 1),
    (r"g6e\.(?:12|24)xlarge", "L40S", 4), (r"g6e\.48xlarge", "L40S", 8), (r"g6e\.\w+", "L40S", 1),
    (r"a2-(?:highgpu|megagpu)-(\d+)g", "A100-40GB", 0), (r"a2-ultragpu-(\d+)g", "A100-80GB", 0),
    (r"a3-(?:highgpu|megagpu|edgegpu)-(\d+)g", "H100", 0), (r"a3-ultragpu-(\d+)g", "H200", 0),
    (r"g2-standard-(?:4|8|12|16|32)", "L4", 1), (r"g2-standard-24", "L4", 2), (r"g2-standard-48", "L4", 4),
    (r"g2-standard-96", "L4", 8),
    (r"standard_nc6s_v3", "V100-16GB", 1), (r"standard_nc12s_v3", "V100-16GB", 2),
    (r"standard_nc24r?s_v3", "V100-16GB", 4), (r"standard_nc24ads_a100_v4", "A100-80GB", 1),
    (r"standard_nc48ads_a100_v4", "A100-80GB", 2), (r"standard_nc96ads_a100_v4", "A100-80GB", 4),
    (r"standard_nd96asr_v4", "A100-40GB", 8), (r"standard_nd96amsr_a100_v4", "A100-80GB", 8),
    (r"standard_nd96isr_h100_v5", "H100", 8), (r"standard_nc40ads_h100_v5", "H100", 1),
)  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """The GPUs in a machine of a cloud."""

    model: str
    gpus: int


def machine(name: str) -> Machine | None:
    """Returns the GPUs of a machine type such as p4d.24xlarge or a2-highgpu-8g; None if it is not known."""
    for pattern, model, gpus in MACHINES:
        if found := re.fullmatch(pattern, name.strip().lower()):
            return Machine(model, gpus or int(found[1]))
    return None


def is_no_gpu(name: str) -> bool:
    """Returns whether the name means an accelerator that is no GPU, such as a TPU."""
    return bool(NO_GPU.match(name.strip()))


def with_memory(least: float, most: float, known: Sequence[str]) -> list[str]:
    """Returns the GPU types of the cluster with `least` to `most` GB of memory, as far as their memory is known."""
    return [name for name in known if any(least <= size <= most for size in _memory_of(name))]


def _memory_of(name: str) -> tuple[int, ...]:
    model, memory = model_of(name)
    return (memory,) if memory else MEMORY.get(model.replace("rtx", ""), ())[:1]
