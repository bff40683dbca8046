"""Attacks by a member's job on the portal's machine: the job tries to read, change or kill data and processes of
others."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.attack.attacks import NotTried, Person, Target, attack
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
THIEF = ROOT / "tests" / "scheduling" / "thief.py"
ENDED = {"succeeded", "failed", "cancelled"}
MARK = "attack-on-the-environment"
VICTIM = 'echo secret >"$FAIRLOT_CHECKPOINT_DIR/state"; echo secret >note; echo in place; exec sleep 3600'
# Builds a Python package with one module by hand, because the machine may have no network.
PACKAGE = """
python - <<'END'
import zipfile
with zipfile.ZipFile("planted-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("planted.py", "NUMBER = 42\\n")
    wheel.writestr("planted-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: planted\\nVersion: 1.0\\n")
    wheel.writestr("planted-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    wheel.writestr("planted-1.0.dist-info/RECORD", "planted.py,,\\n")
END
pip install --no-index ./planted-1.0-py3-none-any.whl && python -c 'import planted; print("number", planted.NUMBER)'
"""


def members_must_submit(target: Target) -> None:
    """Raises NotTried unless members may submit jobs. On machines without isolation only admins may."""
    body = {"team": "astro", "spec": {"name": "may I", "command": "true"}}
    answer = target.person("bob").post("/api/v1/jobs", json=body)
    if answer.status_code == 409 and "only admins may submit" in answer.text:
        raise NotTried("members may not submit on this machine, as nothing keeps jobs apart")
    assert answer.status_code in {200, 201}, answer.text
    target.person("bob").cancel(answer.json()["id"])


def make_room(target: Target) -> None:
    """Cancels the demo's jobs of bob and charlie, so that the attack's jobs get GPUs soon."""
    for name in ("bob", "charlie"):
        person = target.person(name)
        for job in person.get("/api/v1/jobs?limit=100").json()["items"]:
            if job["owner"] == name and job["state"] not in ENDED:
                person.cancel(job["id"])


def log_of(person: Person, number: int) -> str:
    return str(person.get(f"/api/v1/jobs/{number}/log").json().get("text", ""))


def run(person: Person, name: str, command: str, **spec: Any) -> str:
    """Submits a job, waits until it has ended, and returns its log."""
    number = person.submit(name=name, command=command, environment="python", **spec)
    wait_for(lambda: person.job(number)["state"] in ENDED, what=lambda: f"the end of {person.job(number)}")
    return wait_for(lambda: log_of(person, number), what=f"the log of {person.job(number)}")


@attack("a member's job reads the portal's keys, takes over or kills its processes, or robs another team")
def rob(target: Target) -> None:
    members_must_submit(target)
    make_room(target)
    bob, charlie = target.person("bob"), target.person("charlie")
    victim = charlie.submit(name="victim", command=VICTIM, environment="system", variables={"TOKEN": MARK})
    wait_for(lambda: "in place" in log_of(charlie, victim), what=lambda: str(charlie.job(victim)))
    [folder] = target.var.glob(f"jobs/cluster-*/{victim}")
    pids = {name: target.portal.service_pids(name) for name in ("web", "worker", "background", "watch")}
    secrets = [*(target.var / "secrets").iterdir(), target.var / "secrets"]
    data = [target.var / "postgres" / "data", target.var / "valkey" / "data", target.var / "log"]
    theirs = [
        folder / name for name in ("checkpoint/state", "work/rank-0/note", "logs/rank-0.log", "gang.json")
    ]
    status = folder.parent / ".status"
    code = [ROOT, ROOT / "portal", Path(sys.prefix), ROOT / ".environments" / "python"]
    targets = [
        *(("reads or changes", "read_or_write", str(path)) for path in [*secrets, *data, *theirs, status]),
        *(("changes", "write", str(path)) for path in [*code, *(path / "lib" for path in code[2:])]),
        *(("kills", "signal", pid) for found in pids.values() for pid in found),
        *(("traces", "trace", pid) for found in pids.values() for pid in found),
        ("reads an environment", "read_environment", f"FAIRLOT_VAR={target.var}"),
        ("reads an environment", "read_environment", MARK),
        ("becomes root", "regain", str(target.var / "secrets" / "secret-key")),
    ]
    try:
        said = run(
            bob,
            "thief",
            'exec python -c "$THIEF"',
            variables={"THIEF": THIEF.read_text(), "TARGETS": json.dumps(targets)},
        )
    finally:
        charlie.cancel(victim)
    assert "FOUND " in said, said
    worked = json.loads(said.partition("FOUND ")[2])["worked"]
    assert not worked, f"a member's job could: {worked}"


@attack("a member's job installs a package into the portal's Python, or another job's")
def plant(target: Target) -> None:
    members_must_submit(target)
    make_room(target)
    said = run(target.person("bob"), "pip", PACKAGE)
    assert "number 42" in said, f"pip installed nothing for the job itself either: {said}"
    for folder in (Path(sys.prefix), ROOT / ".environments" / "python"):
        assert not list(folder.glob("lib/*/site-packages/planted*")), f"it is in {folder}"
    said = run(target.person("bob"), "another", "python -c 'import planted' || echo not there")
    assert "not there" in said, "another job has it, too"
