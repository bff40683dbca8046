"""Fairlot checks that the program of a session is available before the session waits for GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.conf import LazySettings

from scheduling.jobs.programs import has_program, programs_of
from scheduling.models import Cluster, Session
from scheduling.sessions.actions import start_session
from scheduling.spec.job_spec import JobSpec, SpecError
from tests.scheduling.world import World, world


@pytest.mark.parametrize(
    ("command", "programs"),
    [
        ("jupyter lab", ["jupyter"]),
        ("exec jupyter lab --port=$PORT \\\n  --x", ["jupyter"]),
        ("A=1 B='2 3' exec /opt/tool --flag # why", ["/opt/tool"]),
        ("# a remark\n\nexec serve\n", ["serve"]),
        ("cd x && serve", []),
        ("pip install jupyterlab\nexec jupyter lab", []),
        ("$HOME/serve", []),
        ("./serve", []),
        ("PATH=/opt serve", []),
        ("'unfinished", []),
        ("if true; then serve; fi", []),
        ("serve | tee log", []),
        ("jupyter-lab || python -m http.server $PORT", []),
        ("nosuch; python app.py", []),
        ("a&b", []),
        ("serve >log 2>&1", ["serve"]),
        ("serve 'a; b' && c", ["serve"]),
        ("source venv/bin/activate && serve", []),
        ("(serve)", []),
        ("", []),
    ],
)
def test_a_script_names_the_programs_it_needs(command: str, programs: list[str]) -> None:
    assert list(programs_of(command)) == programs


@pytest.fixture
def lab(db: None, settings: LazySettings, tmp_path: Path) -> World:
    (tmp_path / "serve").write_text("#!/bin/sh\n")
    (tmp_path / "serve").chmod(0o755)
    (tmp_path / "data").write_text("no program")
    settings.FAIRLOT_ENVIRONMENTS = {"python": str(tmp_path), "system": "/nowhere"}
    return world(v100=1)


def begin(lab: World, **fields: object) -> Session:
    people = lab.people
    spec = JobSpec.parse({"name": "x", "port": 8000} | fields)
    return start_session(
        actor=people.bob, tenant=people.astro, cluster=lab.cluster, spec=spec, even_if_never=False
    )


def test_a_session_without_its_program_is_refused_at_its_command(lab: World) -> None:
    for where, fields in (
        ("default environment", {"command": "exec jupyter lab"}),
        ("default environment", {"command": "data"}),
        ("environment system", {"command": "serve", "environment": "system"}),
    ):
        with pytest.raises(SpecError) as refused:
            begin(lab, **fields)
        assert list(refused.value.problems) == ["command"]
        assert f"is not installed in the {where}" in refused.value.problems["command"]
    assert not Session.objects.exists()
    assert begin(lab, command="serve2", variables={"PATH": "/opt/mine"})
    assert begin(lab, command="exec serve").job.spec["command"] == "exec serve"


def test_programs_in_a_container_image_are_not_checked(lab: World) -> None:
    pods = Cluster(name="pods", backend=Cluster.Backend.KUBERNETES)
    assert has_program(pods, "jupyter")
    assert not has_program(lab.cluster, "jupyter")
