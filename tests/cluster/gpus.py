"""The simulated GPUs of a real node: tests write files, and a library reports their content as NVML would (nvml.c)."""

from __future__ import annotations

import hashlib
import subprocess
import uuid
from pathlib import Path

from tests.cluster.binaries import cache, locked
from tests.cluster.machine import found

SOURCE = Path(__file__).resolve().parent / "nvml.c"


class Gpus:
    """The simulated GPUs of a node. `uuids` lists them in the order in which NVML does."""

    def __init__(self, folder: Path, count: int, product: str, memory_bytes: int) -> None:
        self.folder, self.product, self.memory_bytes = folder, product, memory_bytes
        self.uuids = [f"GPU-{uuid.uuid4()}" for _ in range(count)]
        for index, name in enumerate(self.uuids):
            told = {"index": index, "product": product, "memory": memory_bytes, "used": 0, "busy": 0}
            for what, value in told.items():
                self.tell(name, what, value)
            self.heal(name)

    def tell(self, name: str, what: str, value: object) -> None:
        """Sets a value that the driver reports about a GPU, such as `busy` (percent) or `used` (bytes)."""
        place = self.folder / name
        place.mkdir(parents=True, exist_ok=True)
        place.chmod(0o755)
        fresh = self.folder.with_name(f"{name}.new")
        fresh.write_text(f"{value}\n")
        fresh.replace(place / what)

    def fail(self, name: str) -> None:
        """Makes the GPU fail: NVML reports the GPU as lost, and the device plugin reports it as unhealthy."""
        self.tell(name, "health", "fallen off the bus")

    def heal(self, name: str) -> None:
        self.tell(name, "health", "ok")


def library() -> Path:
    """Compiles the simulated NVML library if needed, and returns its path."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    path = cache() / f"nvml-{digest}" / "libnvidia-ml.so.1"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(cache() / "nvml.lock"):
        compiler, unfinished = found("cc"), path.with_suffix(".new")
        assert compiler, "there is no C compiler (cc)"
        argv: list[str | Path] = [compiler, "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]
        subprocess.run([*argv, "-o", unfinished, SOURCE], check=True)
        unfinished.rename(path)
    return path
