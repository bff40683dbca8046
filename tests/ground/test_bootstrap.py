"""What bin/bootstrap installs first is what uv.lock pins."""

import importlib.util
import os
import shutil
import subprocess
import sys
from importlib.machinery import SourceFileLoader

import pytest

from tests.ground.settings_read import ROOT


def test_pip_installs_the_uv_that_the_lock_pins():
    loader = SourceFileLoader("pin_uv", str(ROOT / "bin" / "pin-uv"))
    spec = importlib.util.spec_from_loader("pin_uv", loader)
    pin_uv = importlib.util.module_from_spec(spec)
    loader.exec_module(pin_uv)
    written = (ROOT / "requirements-bootstrap.txt").read_text()
    assert written.partition("\n")[2] == pin_uv.pinned(), "run `make lock`"


def test_the_lock_fits_pyproject():
    done = run(ROOT / ".venv/bin/uv", "lock", "--check", "--offline", cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_an_old_python_is_refused_in_one_line(checkout, tmp_path):
    old = tmp_path / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = run(checkout / "bin/bootstrap", env={**os.environ, "PYTHON": str(old)})
    assert done.returncode == 1
    assert done.stderr.startswith("error: Python 3.11 or newer is needed")
    assert done.stderr.count("\n") == 1
    assert not (checkout / ".venv").exists()


def test_nothing_is_done_when_nothing_changed(checkout):
    (checkout / ".venv/bin").mkdir(parents=True)
    (checkout / ".environments/python/bin").mkdir(parents=True)
    for environment in (".venv", ".environments/python"):
        (checkout / environment / "bin/python").symlink_to(sys.executable)
    files = ("uv.lock", "pyproject.toml", "requirements-bootstrap.txt", "bin/bootstrap")
    together = b"".join((checkout / name).read_bytes() for name in files)
    contents = subprocess.run(["cksum"], input=together, capture_output=True, check=True).stdout.decode()
    (checkout / ".venv/.made-from").write_text(f"{checkout}\n{contents.strip()}\n")
    done = run(checkout / "bin/bootstrap")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.fixture
def checkout(tmp_path):
    """What bin/bootstrap reads, in a folder of its own."""
    folder = tmp_path / "checkout"
    (folder / "bin").mkdir(parents=True)
    for name in ("bin/bootstrap", "requirements-bootstrap.txt", "uv.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def run(*argv, **options):
    return subprocess.run(argv, capture_output=True, text=True, check=False, **options)
