"""How a gang with roles ends follows from its parts, whatever the order in which they end. These tests need no
cluster."""

from __future__ import annotations

import shutil
import subprocess
from itertools import permutations
from pathlib import Path
from typing import cast
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.backends.base import End, Gang, GangRole, Phase, Worker
from scheduling.backends.kubernetes import mpi, objects, parts, roles
from scheduling.backends.kubernetes.api import Api
from scheduling.backends.kubernetes.cluster_cache import ClusterCache
from scheduling.backends.kubernetes.gang_status import GangStatus
from scheduling.backends.kubernetes.gang_ungater import GangUngater
from scheduling.backends.kubernetes.orders import Commands

TOKEN = uuid4()
needs_ssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH is not installed")
ends = st.sampled_from([None, End.SUCCEEDED, End.FAILED, End.LOST, End.STOPPED])


def part(number: int, end: End | None, *, ends_job: bool = False, epoch: int = 1) -> parts.PartState:
    phase = Phase.RUNNING if end is None else Phase.ENDED
    code = {End.SUCCEEDED: 0, End.FAILED: 3}.get(end) if end else None
    status = GangStatus(7, epoch, TOKEN, phase, end=end, exit_code=code, message=f"{number} {end}")
    return parts.PartState(number, f"role{number}", ends_job, status)


@pytest.mark.parametrize(
    ("found", "end", "code"),
    [
        ([part(0, None), part(1, None)], None, None),
        ([part(0, End.SUCCEEDED), part(1, None)], None, None),
        ([part(0, End.SUCCEEDED), part(1, End.SUCCEEDED)], End.SUCCEEDED, 0),
        ([part(0, End.SUCCEEDED, ends_job=True), part(1, None)], End.SUCCEEDED, 0),
        ([part(0, None), part(1, End.SUCCEEDED, ends_job=True)], End.SUCCEEDED, 0),
        ([part(0, End.SUCCEEDED), part(1, None, ends_job=True)], None, None),
        ([part(0, None), part(1, End.FAILED)], End.FAILED, 3),
        ([part(0, End.SUCCEEDED), part(1, End.FAILED)], End.FAILED, 3),
        # Roles that are stopped because the job has ended do not change how it ended.
        ([part(0, End.SUCCEEDED, ends_job=True), part(1, End.STOPPED)], End.SUCCEEDED, 0),
        # A role fails because Fairlot has stopped the others.
        ([part(0, End.STOPPED), part(1, End.FAILED)], End.STOPPED, None),
        ([part(0, End.LOST), part(1, End.FAILED)], End.LOST, None),
        ([part(0, End.SUCCEEDED), part(1, End.STOPPED)], End.STOPPED, None),
    ],
)
def test_how_a_gang_ends(found: list[parts.PartState], end: End | None, code: int | None) -> None:
    verdict = parts.verdict(found, 2)
    assert (verdict and verdict.end, verdict and verdict.exit_code) == (end, code)


@given(st.lists(st.tuples(ends, st.booleans(), st.integers(1, 2)), min_size=1, max_size=4), st.integers(0, 2))
def test_the_status_does_not_depend_on_the_order_of_parts_and_holds_gpus_until_the_last_has_ended(
    given_parts: list[tuple[End | None, bool, int]], missing: int
) -> None:
    found = [
        part(number, end, ends_job=ends_job, epoch=epoch)
        for number, (end, ends_job, epoch) in enumerate(given_parts)
    ]
    of = len(found) + missing
    statuses = {parts.combined(order, of, 0) for order in permutations(found)}
    assert len(statuses) == 1
    [whole] = statuses
    assert (whole.phase is Phase.ENDED) == all(one.has_ended for one in found)
    assert whole.epoch == max(one.status.epoch for one in found)
    if whole.phase is Phase.ENDED:
        assert whole.end is not None
        if whole.end is End.SUCCEEDED:
            assert any(one.status.end is End.SUCCEEDED for one in found)
    else:
        assert whole.end is None


def gang(*its_roles: GangRole, **changes: object) -> Gang:
    workers = [
        Worker(rank, f"n{rank}", (0, 1), (), None) for rank in range(sum(one.workers for one in its_roles))
    ]
    given: dict[str, object] = {
        "job_id": 7, "epoch": 1, "token": TOKEN, "generation": "A100", "command": ["go"], "environment_name": "e",
        "environment": {}, "progress_pattern": "", "grace_seconds": 1.0, "log_limit_bytes": 1, "workers": workers,
        "roles": its_roles,
    }  # fmt: skip
    return Gang(**given | changes)  # type: ignore[arg-type]


def test_ranks_count_on_over_the_parts() -> None:
    def role(name: str, workers: int, *, gpus: bool = True) -> GangRole:
        return GangRole(name, workers, gpus, ["go"], "e", {})

    pod = objects.Pod(image="", command=["go"], environment={}, gpus=2)
    attempt = objects.Attempt(1, str(TOKEN), "A100", [f"n{rank}" for rank in range(6)])
    made = roles.split(gang(role("chief", 1), role("worker", 3), role("ps", 2, gpus=False)), pod, attempt)
    assert [its.nodes for _, its in made] == [["n0"], ["n1", "n2", "n3"], ["n4", "n5"]]
    assert [its.gpus for its, _ in made] == [2, 2, 0]
    ranks = []
    for number, (its_pod, its_attempt) in enumerate(made):
        job = objects.new_job(7, its_pod, workers=len(its_attempt.nodes), owner="ours", begin=its_attempt)
        assert job["metadata"]["name"] == objects.job_name(7, number)
        assert (objects.part_of(job), objects.parts_of(job)) == (number, 3)
        template = job["spec"]["template"]
        assert template["spec"]["schedulingGates"], "also of a role with one worker"
        for index in range(len(its_attempt.nodes)):
            marks = template["metadata"]["annotations"] | {objects.INDEX: str(index)}
            ranks.append(objects.rank_of({"metadata": {"annotations": marks}}))
        if number:
            script = [*template["spec"]["containers"][0]["command"][:4], "printenv", "FAIRLOT_RANK", "RANK"]
            names = {one["name"]: one.get("value", "2") for one in template["spec"]["containers"][0]["env"]}
            script[2] = script[2].replace("$$", "$")
            said = subprocess.run(
                script, env={"PATH": "/usr/bin:/bin", **names}, capture_output=True, check=False
            )
            assert said.stdout.split() == {1: [b"3", b"3"], 2: [b"6"]}[number]
    assert ranks == list(range(6))


def test_a_gang_without_roles_is_one_part() -> None:
    pod = objects.Pod(image="", command=["go"], environment={}, gpus=2)
    attempt = objects.Attempt(1, str(TOKEN), "A100", ["n0"])
    assert roles.split(gang(), pod, attempt) == [(pod, attempt)]
    assert objects.part_of(objects.new_job(7, pod, workers=1, owner="ours")) == 0


@needs_ssh
def test_the_keys_of_an_attempt_are_always_the_same_and_belong_together(tmp_path: Path) -> None:
    seed = b"x" * 32
    made, again, other = mpi.files(seed), mpi.files(seed), mpi.files(b"y" * 32)
    assert made["key.pub"] == again["key.pub"] != other["key.pub"]
    assert made["known-hosts"] == again["known-hosts"] != other["known-hosts"]
    for private, public in (
        ("key", made["key.pub"]),
        ("host-key", made["known-hosts"].removeprefix("fairlot ")),
    ):
        path = tmp_path / private
        path.touch(0o600)
        path.write_text(made[private])
        read = subprocess.run(["ssh-keygen", "-y", "-f", path], capture_output=True, text=True, check=True)
        assert read.stdout.split()[:2] == public.split()[:2]


@needs_ssh
def test_ssh_understands_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "ssh-config").write_text(mpi.files(b"x")["ssh-config"])
    command = ["ssh", "-F", tmp_path / "ssh-config", "-G", "worker"]
    read = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {f"port {mpi.PORT}", f"identityfile {mpi.PLACE}/key", "hostkeyalias fairlot"} <= {*read}
    assert "stricthostkeychecking true" in read


def test_only_mpi_gangs_get_keys() -> None:
    role = GangRole("launcher", 1, True, ["go"], "e", {}, ends_job=True)
    assert mpi.with_keys(gang(role)).secrets.folders == ()
    [folder] = mpi.with_keys(gang(role, is_mpi=True, mpi_seed=b"x")).secrets.folders
    assert folder.path == mpi.PLACE


class Recorder:
    """Records the patches that a watcher sends, instead of a cluster. Also stands for the orders to a gang's parts."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.stopped: list[tuple[int, str]] = []
        self._part = 0

    def patch(self, path: str, operations: object) -> None:
        self.opened.append(path.rpartition("/")[2])

    def of_part(self, number: int) -> Recorder:
        self._part = number
        return self

    def stop(self, job_id: int, *, epoch: int, token: str, because: str = "") -> None:
        self.stopped.append((self._part, because))


class Watched:
    """A gang of a worker and a launcher, which ends the job, as a watcher of the cluster sees it."""

    def __init__(self) -> None:
        its_roles = [
            GangRole("worker", 1, True, ["go"], "e", {}),
            GangRole("launcher", 1, False, ["go"], "e", {}, ends_job=True),
        ]
        pod = objects.Pod(image="", command=["go"], environment={}, gpus=2)
        attempt = objects.Attempt(1, str(TOKEN), "A100", ["n0", "n0"])
        self.jobs, self.pods = [], []
        for number, (its, begin) in enumerate(roles.split(gang(*its_roles, leader=1), pod, attempt)):
            job = objects.new_job(7, its, workers=1, owner="ours", begin=begin)
            job["metadata"] |= {"uid": f"job-{number}", "namespace": "n"}
            template = job["spec"]["template"]
            about = {
                "name": f"pod-{number}",
                "namespace": "n",
                "uid": f"pod-{number}",
                "labels": template["metadata"]["labels"] | {objects.CONTROLLER: f"job-{number}"},
                "annotations": template["metadata"]["annotations"] | {objects.INDEX: "0"},
            }
            self.jobs.append(job | {"status": {"active": 1}})
            self.pods.append(
                {"metadata": about, "spec": dict(template["spec"]), "status": {"phase": "Pending"}}
            )
        self.cache, self.recorder, self.ungater = ClusterCache(), Recorder(), GangUngater()
        self.cache.jobs.replace([])
        self.cache.pods.replace([])

    def run(self, number: int) -> None:
        pod = self.pods[number]
        pod["spec"]["schedulingGates"] = []
        state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        pod["status"] = {"phase": "Running", "containerStatuses": [{"state": state}]}
        self.cache.pods.put(pod)

    def end(self, number: int, code: int) -> None:
        at = "2026-01-01T00:00:00Z"
        state = {"terminated": {"startedAt": at, "finishedAt": at, "exitCode": code}}
        kind = "Failed" if code else "Complete"
        self.pods[number]["status"] = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [{"state": state}],
        }
        self.cache.pods.put(self.pods[number])
        conditions = [{"type": kind, "status": "True", "lastTransitionTime": at}]
        self.jobs[number]["status"] = {"conditions": conditions}
        self.cache.jobs.put(self.jobs[number])

    def stop(self, number: int, because: str = "") -> None:
        self.jobs[number]["spec"] = self.jobs[number]["spec"] | {"suspend": True}
        self.jobs[number]["metadata"]["annotations"][objects.BECAUSE] = because
        self.jobs[number]["status"] = {"conditions": [{"type": "Suspended", "status": "True"}]}
        self.cache.pods.remove(self.pods[number])
        self.cache.jobs.put(self.jobs[number])

    def advance(self) -> None:
        self.ungater.advance(
            cast(Api, self.recorder), self.cache, lambda job_id: cast(Commands, self.recorder)
        )

    def seen(self) -> tuple[Phase, End | None, int | None]:
        [one] = self.cache.everything()
        return one.phase, one.end, one.exit_code


def test_gates_open_when_the_pods_of_all_roles_exist() -> None:
    watched = Watched()
    watched.cache.jobs.put(watched.jobs[0])
    watched.cache.pods.put(watched.pods[0])
    watched.advance()
    assert (watched.recorder.opened, watched.seen()[0]) == ([], Phase.STARTING)
    watched.cache.pods.put(watched.pods[1])
    watched.cache.jobs.put(watched.jobs[1])
    watched.advance()
    assert sorted(watched.recorder.opened) == ["pod-0", "pod-1"]
    watched.run(0)
    assert watched.seen()[0] is Phase.STARTING
    watched.run(1)
    assert watched.seen() == (Phase.RUNNING, None, None)


def test_the_role_that_ends_the_job_stops_the_others_and_the_lead_keeps_why() -> None:
    watched = Watched()
    for job, pod in zip(watched.jobs, watched.pods, strict=True):
        watched.cache.jobs.put(job)
        watched.cache.pods.put(pod)
    watched.run(0)
    watched.run(1)
    watched.advance()
    assert watched.recorder.stopped == []
    watched.end(1, 0)
    assert watched.seen()[0] is Phase.RUNNING, "the worker still holds its GPUs"
    watched.advance()
    [(part, because)] = watched.recorder.stopped
    assert (part, because) == (0, "succeeded: every worker of launcher exited with code 0")
    watched.stop(0, because)
    assert watched.seen() == (Phase.ENDED, End.SUCCEEDED, 0)


def test_a_role_that_fails_because_its_gang_is_stopped_is_no_failure() -> None:
    watched = Watched()
    for job, pod in zip(watched.jobs, watched.pods, strict=True):
        watched.cache.jobs.put(job)
        watched.cache.pods.put(pod)
    watched.run(0)
    watched.run(1)
    watched.stop(0)  # by a process that dies before it stops the launcher
    watched.advance()
    assert watched.recorder.stopped == [(1, "")]
    watched.end(1, 9)
    assert watched.seen() == (Phase.ENDED, End.STOPPED, None)


def test_a_failure_is_reported_with_its_exit_code() -> None:
    watched = Watched()
    for job, pod in zip(watched.jobs, watched.pods, strict=True):
        watched.cache.jobs.put(job)
        watched.cache.pods.put(pod)
    watched.run(0)
    watched.run(1)
    watched.end(1, 7)
    watched.advance()
    [(part, because)] = watched.recorder.stopped
    assert (part, because) == (0, "failed: worker 1 (launcher 0) exited with code 7")
    watched.stop(0, because)
    assert watched.seen() == (Phase.ENDED, End.FAILED, 7)
