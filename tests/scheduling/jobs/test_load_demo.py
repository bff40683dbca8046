"""The demo has users, nodes, long jobs that compete for GPUs for an hour, and jobs that end soon."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import call_command

from scheduling.management.commands import load_demo
from scheduling.models import Job, Node, TemplateVersion
from scheduling.spec.templates import read_values
from scheduling.templates.actions import filled, parameters_of

FASTEST = max(speed for *_, speed in load_demo.HARDWARE)
SECONDS_PER_STEP = 0.2

pytestmark = pytest.mark.django_db


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setattr(load_demo, "declare_local_gpus", lambda **_: [])  # acts like a machine without GPUs
    call_command("load_demo", "--passwords-file", str(tmp_path / "passwords"))
    return tmp_path


def seconds(steps: int, gain: str) -> float:
    """Returns the shortest possible duration of a demo job, in seconds: on GPUs of the fastest type.

    `gain`: how much the job profits from fast GPUs. A GPU of speed s runs it s**gain times as fast.
    """
    return steps * SECONDS_PER_STEP / FASTEST ** float(gain)


def test_the_demo_contends_for_an_hour_and_some_jobs_end_soon(loaded: Path) -> None:
    at_least = {name: seconds(steps, gain) for _, _, name, steps, gain, _ in load_demo.JOBS}
    long = [job for job in Job.objects.all() if at_least[job.name] >= 3600]
    soon = [name for name, least in at_least.items() if least <= 120]
    assert sum(job.workers * job.gpus_per_worker for job in long) > sum(
        node.gpus for node in Node.objects.all()
    )
    assert len(soon) >= 2
    assert len(long) + len(soon) == len(at_least)


def test_loading_it_again_adds_nothing(loaded: Path) -> None:
    before = Job.objects.count(), Node.objects.count()
    call_command("load_demo", "--passwords-file", str(loaded / "passwords"))
    assert (Job.objects.count(), Node.objects.count()) == before


def test_the_templates_of_the_demo_run(loaded: Path) -> None:
    assert TemplateVersion.objects.count() == len(load_demo.TEMPLATES)
    examples = {"FAIRLOT_EXAMPLES": str(settings.FAIRLOT_EXAMPLES_DIR), "FAIRLOT_GPU_SPEED": "1000000"}
    path = {"PATH": f"{Path(sys.executable).parent}:{os.defpath}"}
    for version in TemplateVersion.objects.order_by("pk"):
        spec = filled(version, read_values(parameters_of(version), {}))
        files = loaded / str(version.pk)
        files.mkdir()
        where = {"FAIRLOT_CHECKPOINT_DIR": str(files)}
        ran = subprocess.run(
            spec.argv, env=examples | path | where, cwd=files, capture_output=True, check=False, text=True
        )
        assert (ran.returncode, "final accuracy" in ran.stdout) == (0, True), ran
