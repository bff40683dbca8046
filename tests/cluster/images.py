"""Builds container images for the real node from files of this machine, because there is no registry.

An image is a tar file in OCI layout with one layer. `shell()` builds an image that contains only busybox and waits; it
also serves as the sandbox (pause) image of pods. `python()` builds an image with this Python, NumPy, the digits data
set and the NVML bindings.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.binaries import cache, locked

SHELL, PYTHON = "fairlot.test/shell:1", "fairlot.test/python:1"
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = "opt/packages"
EXAMPLES = "opt/examples"
APPLETS = ("cat", "chmod", "cp", "date", "echo", "env", "false", "id", "kill", "ls", "mkdir", "sh",
           "sleep", "tail", "true", "wget")  # fmt: skip
KEPT = 3
WAIT = "trap 'exit 0' TERM INT; while :; do sleep 2147483 & wait $!; done"
# Parts of the standard library and of packages that a training program does not need.
LEFT_OUT = {"test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "distutils", "pydoc_data",
            "site-packages", "dist-packages"}  # fmt: skip
UNUSED = re.compile(r"^_(tkinter|test|ctypes_test|curses)|^nis\.|\.opt-\d\.pyc$|\.a$|\.pyi$")


@dataclass
class Image:
    """A container image. `files` maps paths inside the image (without the first slash) to files of this machine."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)

    def copy(self, source: Path, inside: str) -> None:
        """Adds a file, or a folder with all its files except those in LEFT_OUT, under the path `inside`."""
        if source.is_file():
            self.files[inside] = source
            return
        for folder, below, names in os.walk(source):
            below[:] = [name for name in below if name not in LEFT_OUT and not name.startswith("config-")]
            here = Path(inside, Path(folder).relative_to(source))
            self.files |= {str(here / name): Path(folder, name) for name in names if not UNUSED.search(name)}

    def copy_libraries(self) -> None:
        """Adds the shared libraries that programs in the image need, as far as this machine has them."""
        linked = [path for path in self.files.values() if ".so" in path.name or os.access(path, os.X_OK)]
        told = subprocess.run(["ldd", *linked], capture_output=True, text=True, check=False).stdout
        for found in set(re.findall(r"(?:=> |^\s+)(/\S+) \(0x", told, re.MULTILINE)):
            if Path(found) not in self.files.values() and "/site-packages/" not in found:
                self.files[found.lstrip("/")] = Path(found)

    def stored(self) -> Path:
        """Returns the path of the image's tar file. Builds the file only if no earlier one has the same content.

        Deletes all but the last few older files of this image.
        """
        kind = self.name.rpartition("/")[2].partition(":")[0]
        path = cache() / f"image-{kind}-{self._key()}.tar"
        cache().mkdir(parents=True, exist_ok=True)
        with locked(cache() / "image.lock"):
            if not path.exists():
                with tempfile.TemporaryDirectory(dir=cache()) as scratch:
                    unfinished = Path(scratch, "image.tar")
                    self._write(unfinished)
                    unfinished.rename(path)
            made = sorted(cache().glob(f"image-{kind}-*.tar"), key=lambda image: image.stat().st_mtime)
            for old in made[:-KEPT]:
                old.unlink()
            path.touch()
        return path

    def _key(self) -> str:
        digest = hashlib.sha256(Path(__file__).read_bytes())
        digest.update(repr((self.name, self.command, self.environment, sorted(self.links.items()))).encode())
        for inside, path in sorted(self.files.items()):
            # Compiled files depend only on their sources and on the time of installation.
            if path.suffix != ".pyc":
                digest.update(inside.encode() + hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()[:16]

    def _write(self, path: Path) -> None:
        layer = path.with_suffix(".layer")
        with tarfile.open(layer, "w") as tar:
            self._add_layer(tar)
        with layer.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        config = {
            "architecture": architecture(),
            "os": "linux",
            "config": {"Cmd": list(self.command), "Env": variables, "WorkingDir": "/tmp"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
        with tarfile.open(path, "w") as tar:
            add_text(tar, "oci-layout", {"imageLayoutVersion": "1.0.0"})
            tar.add(layer, f"blobs/sha256/{digest}")
            described = {
                "mediaType": "application/vnd.oci.image.layer.v1.tar",
                "digest": f"sha256:{digest}",
                "size": layer.stat().st_size,
            }
            manifest: dict[str, Any] = {
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": add_blob(tar, config, "application/vnd.oci.image.config.v1+json"),
                "layers": [described],
            }
            top = add_blob(tar, manifest, manifest["mediaType"])
            top["annotations"] = {"io.containerd.image.name": self.name}
            add_text(tar, "index.json", {"schemaVersion": 2, "manifests": [top]})
        layer.unlink()

    def _add_layer(self, tar: tarfile.TarFile) -> None:
        inside = [*self.files, *self.links]
        folders = {str(parent) for name in inside for parent in Path(name).parents} - {"."} | {"tmp"}
        for name in sorted(folders):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(entry)
        for name, target in sorted(self.links.items()):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
        for name, path in sorted(self.files.items()):
            entry = tar.gettarinfo(path.resolve(), name)
            entry.type, entry.linkname = tarfile.REGTYPE, ""
            entry.size = path.stat().st_size
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mode = 0o755 if entry.mode & 0o100 else 0o644
            with path.open("rb") as opened:
                tar.addfile(entry, opened)


def shell() -> Image:
    """Returns an image with busybox, whose command waits until the container is stopped."""
    image = Image(SHELL, ["/bin/sh", "-c", WAIT], {"PATH": "/bin"})
    add_busybox(image)
    return image


def python() -> Image:
    """Returns an image with this Python at its usual paths, the packages that examples/ import, and busybox."""
    variables = {
        "PATH": "/bin",
        "PYTHONPATH": f"/{PACKAGES}",
        "PYTHONUNBUFFERED": "1",
        "FAIRLOT_EXAMPLES": f"/{EXAMPLES}",
        "LD_LIBRARY_PATH": "/usr/lib/x86_64-linux-gnu",  # the device plugin puts the driver's libraries there
    }
    image = Image(PYTHON, ["python3"], variables)
    add_busybox(image)
    interpreter = Path(sys.executable).resolve()
    image.files[str(interpreter).lstrip("/")] = interpreter
    library = Path(sysconfig.get_path("stdlib"))
    image.copy(library, str(library).lstrip("/"))
    for name in ("numpy", "pynvml"):
        image.copy(*package(name))
    numpy, inside = package("numpy")
    image.copy(numpy.with_name("numpy.libs"), f"{inside}.libs")
    # Only a part of the package is copied. The example finds its data beside the package's first file.
    sklearn, inside = package("sklearn")
    for part in ("__init__.py", "datasets/data/digits.csv.gz"):
        image.files[f"{inside}/{part}"] = sklearn / part
    image.copy_libraries()
    image.copy(ROOT / "examples", EXAMPLES)
    image.links["bin/python3"] = image.links["bin/python"] = str(interpreter)
    return image


def add_busybox(image: Image) -> None:
    busybox = shutil.which("busybox")
    assert busybox, "busybox is missing"
    image.files["bin/busybox"] = Path(busybox)
    image.links |= {f"bin/{name}": "busybox" for name in APPLETS}


def package(name: str) -> tuple[Path, str]:
    """Returns the path of a Python package or single-file module on this machine, and its path inside the image."""
    spec = importlib.util.find_spec(name)
    assert spec, f"{name} is missing"
    assert spec.origin, f"{name} has no file"
    path = Path(spec.origin)
    path = path.parent if path.name == "__init__.py" else path
    return path, f"{PACKAGES}/{path.name}"


def architecture() -> str:
    """Returns the name of this machine's CPU architecture in OCI images."""
    return {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]


def add_blob(tar: tarfile.TarFile, content: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Adds the content to the tar file under its digest. Returns the OCI descriptor."""
    text = json.dumps(content).encode()
    digest = hashlib.sha256(text).hexdigest()
    add_text(tar, f"blobs/sha256/{digest}", content)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(text)}


def add_text(tar: tarfile.TarFile, name: str, content: Mapping[str, Any]) -> None:
    text = json.dumps(content).encode()
    entry = tarfile.TarInfo(name)
    entry.size = len(text)
    tar.addfile(entry, io.BytesIO(text))
