"""Tests that the test cluster's programs come from the environment, from the cache or from a build."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import binaries, toolchain
from tests.cluster.binaries import MODULES, Module, built, program, provided
from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
HELLO = 'package main\n\nfunc main() { println("hello 1.2.3") }\n'
MODULE = """module hello.test/hello

go 1.26.0

require hello.test/greeting v1.2.3

replace hello.test/greeting => ./greeting
"""


@pytest.fixture
def hello(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Module:
    """Sets up an empty cache and returns a Go module with a small program that can be built without a network."""
    source = tmp_path / "go" / "hello"
    source.mkdir(parents=True)
    (source / "main.go").write_text(HELLO)
    (source / "go.mod").write_text(MODULE)
    (source / "go.sum").touch()
    (source / "greeting").mkdir()
    (source / "greeting" / "go.mod").write_text("module hello.test/greeting\n\ngo 1.26.0\n")
    monkeypatch.setattr(binaries, "SOURCES", source.parent)
    # Go keeps its own build cache, so that it need not compile its standard library again.
    told = subprocess.run([toolchain.go(), "env", "GOCACHE"], capture_output=True, text=True, check=True)
    monkeypatch.setenv("GOCACHE", told.stdout.strip())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Module("hello", ("hello", "bonjour"), "hello.test/greeting")


def script(path: Path, says: str) -> Path:
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


def test_the_releases_are_those_that_the_module_files_pin() -> None:
    assert {module.name: module.release for module in MODULES} == {
        "etcd": "3.6",
        "controlplane": "1.36",
        "kwok": "0.8",
        "kubelet": "1.36",
    }


def test_programs_of_kubebuilder_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brought = script(tmp_path / "etcd", "etcd Version: 3.5.0")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    assert program("etcd") == brought


def test_a_program_on_the_path_is_used_when_it_has_the_right_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    etcd = next(module for module in MODULES if module.name == "etcd")
    found = script(tmp_path / "etcd", "etcd Version: 3.6.1")
    assert provided("etcd", etcd) == found
    script(found, "etcd Version: 3.4.9")
    assert provided("etcd", etcd) is None


@pytest.mark.slow
def test_a_program_is_built_once_and_answers_to_all_of_its_names(
    hello: Module, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = built(hello)
    assert sorted(path.name for path in folder.iterdir()) == ["bonjour", "hello"]
    done = subprocess.run([folder / "bonjour"], capture_output=True, text=True, check=True)
    assert done.stderr == "hello 1.2.3\n"
    assert "building hello" in capfd.readouterr().err
    assert built(hello) == folder
    assert "building" not in capfd.readouterr().err


@pytest.mark.slow
def test_another_source_is_another_program(hello: Module) -> None:
    first = built(hello)
    (hello.source / "main.go").write_text(HELLO.replace("hello", "bye"))
    assert built(hello) != first


@pytest.mark.slow
def test_a_build_that_fails_says_so_and_leaves_nothing_behind(hello: Module) -> None:
    (hello.source / "main.go").write_text("package main\n")
    with pytest.raises(RuntimeError, match="hello could not be built"):
        built(hello)
    assert [path.name for path in binaries.cache().iterdir()] == ["hello.lock"]


@pytest.mark.slow
def test_two_processes_build_once(hello: Module) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.cluster import binaries\n"
        "binaries.SOURCES = Path(sys.argv[1])\n"
        "print(binaries.built(binaries.Module('hello', ('hello',), 'hello.test/greeting')))"
    )
    argv = [sys.executable, "-c", code, str(hello.source.parent)]
    both = [
        subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=PATIENCE) for process in both]
    assert len({out for out, _ in answers}) == 1
    assert sum("building hello" in err for _, err in answers) == 1, answers


def test_a_go_that_is_too_old_is_not_used(tmp_path: Path) -> None:
    assert toolchain.version(script(tmp_path / "go", "go1.19.4")) < toolchain.OLDEST
    assert toolchain.version(script(tmp_path / "go", "go1.26.8")) >= toolchain.OLDEST
