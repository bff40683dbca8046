"""Tests that bin/bootstrap installs the versions that uv.lock lists, and creates the Python environment of local
jobs."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from importlib.machinery import SourceFileLoader

import pytest
from django.conf import settings

from tests.attack.local_jobs import PACKAGE
from tests.ground.settings_read import ROOT

JOB_PYTHON = ROOT / ".environments" / "python" / "bin" / "python"


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
    files = (
        "uv.lock",
        "pyproject.toml",
        "requirements-bootstrap.txt",
        "bin/bootstrap",
        "bin/browser-packages",
        "bin/job-environment",
    )
    together = b"".join((checkout / name).read_bytes() for name in files)
    contents = subprocess.run(["cksum"], input=together, capture_output=True, check=True).stdout.decode()
    (checkout / ".venv/.made-from").write_text(f"{checkout}\n{contents.strip()}\n")
    done = run(checkout / "bin/bootstrap")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_jobs_have_an_environment_of_their_own_that_others_cannot_write():
    assert ROOT / ".environments" / "python" == settings.FAIRLOT_JOB_PYTHON
    assert ".venv" not in json.dumps(settings.FAIRLOT_ENVIRONMENTS)
    done = run(JOB_PYTHON, "-c", "import sklearn, sys; print(sys.prefix)", cwd="/")
    assert (done.returncode, done.stdout.strip()) == (0, str(settings.FAIRLOT_JOB_PYTHON)), done.stderr
    for path in (settings.FAIRLOT_JOB_PYTHON, *settings.FAIRLOT_JOB_PYTHON.rglob("*")):
        assert path.is_symlink() or not path.stat().st_mode & 0o022, path


def test_pip_in_a_job_installs_into_its_home(tmp_path):
    """Proves that pip in a job does not change the shared environment of jobs, even if the job may write to it."""
    before = sorted(settings.FAIRLOT_JOB_PYTHON.glob("lib/*/site-packages/*"))
    environment = {"HOME": str(tmp_path), "PATH": f"{JOB_PYTHON.parent}:/usr/bin:/bin"}
    done = run("sh", "-c", PACKAGE, cwd=tmp_path, env=environment)
    assert "number 42" in done.stdout, done.stderr
    assert (tmp_path / ".local" / "job-packages" / "planted.py").exists()
    assert sorted(settings.FAIRLOT_JOB_PYTHON.glob("lib/*/site-packages/*")) == before


@pytest.mark.parametrize(
    ("argv", "is_pip"),
    [
        (["pip.py"], False),
        (["pipeline.py"], False),
        (["-u", "folder/pip-of-mine.py"], False),
        (["-m", "pip", "--version"], True),
        ([str(JOB_PYTHON.parent / "pip3"), "--version"], True),
    ],
)
def test_only_pip_itself_is_told_where_to_install(tmp_path, argv, is_pip):
    """Proves that only pip gets the variable PIP_TARGET, and not another program whose name begins with "pip"."""
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    done = run(ROOT / "bin" / "job-environment", tmp_path)
    assert done.returncode == 0, done.stderr
    look = f"import os, sys; sys.orig_argv = ['python', *{argv!r}]; sys.path.insert(0, {str(site)!r}); "
    look += "import job_packages; print('PIP_TARGET' in os.environ)"
    done = run(sys.executable, "-I", "-c", look, env={"HOME": str(tmp_path)})
    assert (done.stdout, done.stderr) == (f"{is_pip}\n", "")


def test_the_environment_of_jobs_is_made_new_when_what_it_was_made_from_changes(checkout):
    """Proves that the environment of jobs is created again when one of its inputs changes.

    Fake programs take the place of uv and Python. The fake Python creates an environment with a single program.
    """
    environment, old = checkout / ".environments/python", checkout / ".environments/python/lib/removed"
    python = checkout / "python"
    python.write_text(
        '#!/bin/sh\n[ "$1" != -c ] || echo version\n[ "$1 $2" = "-m venv" ] || exit 0\n'
        'mkdir -p "$3/bin" "$3/lib/python3.11/site-packages"\ncp "$0" "$3/bin/python"\n'
    )
    (checkout / ".venv/bin").mkdir(parents=True)
    uv = checkout / ".venv/bin/uv"
    uv.write_text(
        "#!/bin/sh\n"
        "for last; do :; done\n"
        "case $1 in\n"
        'export) { cat wanted; echo "$*" | grep -o "only-group [a-z]*"; } >"$last" ;;\n'
        'pip) [ ! -e cut-off ] && { [ ! -e offline ] || ! grep -q notebooks "$last"; } && cp "$last" installed ;;\n'
        "esac\n"
    )
    shutil.copy(python, checkout / ".venv/bin/python")
    for path in (python, uv, checkout / ".venv/bin/python"):
        path.chmod(0o755)

    def made(wanted, *, fails=False):
        (checkout / "wanted").write_text(f"{wanted}\n")
        (checkout / ".venv/.made-from").unlink(missing_ok=True)
        done = run(checkout / "bin/bootstrap", env={"PATH": os.environ["PATH"], "PYTHON": str(python)})
        assert done.returncode == fails, done.stderr
        return "creating .environments/python" in done.stderr

    assert made("numpy==1")
    assert "notebooks" in (checkout / "installed").read_text()
    old.touch()
    assert not made("numpy==1")
    assert old.exists()
    assert made("numpy==2")
    assert (environment / ".made-from").exists()
    assert not old.exists()
    # If only JupyterLab cannot be installed, jobs have all other packages, and each later start tries to add
    # JupyterLab.
    (checkout / "offline").touch()
    assert made("numpy==3")
    assert (environment / ".made-from").exists()
    assert not (checkout / ".venv/.made-from").exists()
    old.touch()
    assert not made("numpy==3")
    assert not (checkout / ".venv/.made-from").exists()
    # If no package can be installed, the existing environment is kept.
    (checkout / "cut-off").touch()
    assert made("numpy==4", fails=True)
    assert old.exists()
    (checkout / "offline").unlink()
    assert not made("numpy==3")
    (checkout / "cut-off").unlink()
    assert not made("numpy==3")
    assert old.exists()
    assert "notebooks" in (checkout / "installed").read_text()
    assert (checkout / ".venv/.made-from").exists()


@pytest.fixture
def checkout(tmp_path):
    """Creates a folder with copies of all files that bin/bootstrap reads, and returns its path."""
    folder = tmp_path / "checkout"
    (folder / "bin").mkdir(parents=True)
    for name in (
        "bin/bootstrap",
        "bin/browser-packages",
        "bin/job-environment",
        "requirements-bootstrap.txt",
        "uv.lock",
        "pyproject.toml",
    ):
        shutil.copy(ROOT / name, folder / name)
    return folder


def run(*argv, **options):
    return subprocess.run(argv, capture_output=True, text=True, check=False, **options)
