"""Orders to gangs with roles reach all their Jobs, also if a process dies between two of them. A small stand-in of an
API server is enough for that; tests/cluster has a real one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from scheduling.backends.base import Bounds, Gang, GangRole, Worker
from scheduling.backends.kubernetes import objects
from scheduling.backends.kubernetes.api import Api, Invalid, Missing, Taken
from scheduling.backends.kubernetes.backend import KubernetesBackend

TOKENS = [uuid4() for _ in range(4)]


class Server(Api):
    """Keeps objects by their path. `dies_at`: the number of the write that does not come through."""

    def __init__(self) -> None:
        self.there: dict[str, Any] = {}
        self.dies_at = 0
        self.writes = 0

    def _count(self) -> None:
        self.writes += 1
        if self.writes == self.dies_at:
            raise ConnectionAbortedError

    def get(self, path: str, **query: Any) -> Any:
        if path.endswith("/pods"):
            return {"items": []}
        if path.startswith("/apis/scheduling.k8s.io") or path not in self.there:
            raise Missing(404, {"message": path})
        return self.there[path]

    def create(self, path: str, thing: Any) -> Any:
        self._count()
        place = f"{path}/{thing['metadata']['name']}"
        if place in self.there:
            raise Taken(409, {"message": place})
        made = {"status": {}} | thing
        made["metadata"] = {"uid": str(uuid4()), "namespace": "n", "resourceVersion": "1"} | thing["metadata"]
        self.there[place] = made
        return made

    def replace(self, path: str, thing: Any) -> Any:
        self._count()
        self.there[path] = self.there[path] | thing
        return self.there[path]

    def patch(self, path: str, operations: Any) -> Any:
        self._count()
        if path not in self.there:
            raise Missing(404, {"message": path})
        for one in operations:
            *steps, last = (part.replace("~1", "/") for part in one["path"].strip("/").split("/"))
            at = self.there[path]
            for step in steps:
                at = at[step]
            if one["op"] != "test":
                at[last] = one["value"]
            elif at.get(last) != one["value"]:
                raise Invalid(422, {"message": one["path"]})
        return self.there[path]

    def delete(self, path: str, **which: Any) -> None:
        self._count()
        del self.there[path]

    def job(self, part: int) -> Any:
        return self.there.get(f"/apis/batch/v1/namespaces/n/jobs/{objects.job_name(7, part)}")

    def jobs(self) -> list[tuple[int, bool]]:
        """Returns the epoch of each part's Job, and whether it is suspended."""
        found = [job for part in range(3) if (job := self.job(part))]
        return [(objects.epoch_of(job), objects.is_suspended(job)) for job in found]


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def backend(server: Server, tmp_path: Path) -> KubernetesBackend:
    return KubernetesBackend(
        api=lambda: server, owner="ours", namespace_of=lambda job_id: "n", logs=tmp_path, log_limit_bytes=1,
        log_streams=1,
    )  # fmt: skip


def gang(epoch: int) -> Gang:
    roles = [
        GangRole("worker", 2, True, ["go"], "e", {}),
        GangRole("ps", 1, False, ["go"], "e", {}),
        GangRole("launcher", 1, False, ["go"], "e", {}, ends_job=True),
    ]
    workers = [Worker(rank, "n0", (0, 1) if rank < 2 else (), (), None) for rank in range(4)]
    return Gang(
        job_id=7, epoch=epoch, token=TOKENS[epoch], generation="A100", command=["go"], environment_name="e",
        environment={}, progress_pattern="", grace_seconds=1.0, log_limit_bytes=1, workers=workers, roles=roles,
        leader=3, is_mpi=True, mpi_seed=b"x",
    )  # fmt: skip


def stop(backend: KubernetesBackend, epoch: int, token: UUID) -> None:
    backend.stop(job_id=7, epoch=epoch, token=token, grace_seconds=1.0)


def test_a_gang_starts_and_stops_as_one(server: Server, backend: KubernetesBackend) -> None:
    backend.start(gang(1))
    assert server.jobs() == [(1, False)] * 3
    for part in range(3):
        name = objects.job_name(7, part)
        for kind in ("services", "configmaps", "secrets"):
            suffix = "-files-0" if kind == "secrets" else ""
            assert f"/api/v1/namespaces/n/{kind}/{name}{suffix}" in server.there
    stop(backend, 1, TOKENS[1])
    assert server.jobs() == [(1, True)] * 3
    backend.start(gang(1))
    assert server.jobs() == [(1, True)] * 3, "a late order has no effect"
    backend.start(gang(2))
    assert server.jobs() == [(2, False)] * 3


def test_an_order_that_dies_at_any_write_is_completed_by_its_repetition(tmp_path: Path) -> None:
    died = 0
    for number in range(1, 40):
        server = Server()
        backend = KubernetesBackend(
            api=lambda server=server: server, owner="ours", namespace_of=lambda job_id: "n", logs=tmp_path,
            log_limit_bytes=1, log_streams=1,
        )  # fmt: skip
        server.dies_at = number
        for order in (partial(backend.start, gang(1)), partial(stop, backend, 1, TOKENS[1])):
            try:
                order()
            except ConnectionAbortedError:
                died += 1
                order()
            assert len({*server.jobs()}) == 1
        assert server.jobs() == [(1, True)] * 3
    assert died > 10


def test_a_role_that_has_succeeded_starts_again_with_its_gang(
    server: Server, backend: KubernetesBackend
) -> None:
    backend.start(gang(1))
    server.job(1)["status"] = {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}
    first = server.job(1)["metadata"]["uid"]
    stop(backend, 1, TOKENS[1])
    backend.start(gang(2))
    assert server.jobs() == [(2, False)] * 3
    assert server.job(1)["metadata"]["uid"] != first
    assert not server.job(1)["status"]


def test_the_files_of_a_job_are_removed_with_the_jobs_of_all_roles(
    server: Server, backend: KubernetesBackend
) -> None:
    backend.start(gang(1))
    stop(backend, 1, TOKENS[1])
    backend.remove_files(job_id=7)
    assert server.jobs() == []


def elastic_gang(epoch: int, workers: int) -> Gang:
    return Gang(
        job_id=7, epoch=epoch, token=TOKENS[epoch], generation="A100", command=["go"], environment_name="e",
        environment={}, progress_pattern="", grace_seconds=1.0, log_limit_bytes=1, bounds=Bounds(1, 3),
        workers=[Worker(rank, "n0", (2 * rank, 2 * rank + 1), (), None) for rank in range(workers)],
    )  # fmt: skip


def test_an_elastic_gang_starts_again_in_a_job_of_its_new_size(
    server: Server, backend: KubernetesBackend
) -> None:
    seen = []
    for epoch, workers in ((1, 2), (2, 2), (3, 1)):
        backend.start(elastic_gang(epoch, workers))
        job = server.job(0)
        [container] = job["spec"]["template"]["spec"]["containers"]
        env = {one["name"]: one.get("value") for one in container["env"]}
        names = (
            "PET_NNODES",
            "PET_RDZV_ENDPOINT",
            "PET_RDZV_ID",
            "FAIRLOT_MIN_WORKERS",
            "FAIRLOT_MAX_WORKERS",
        )
        seen.append((job["metadata"]["uid"], job["spec"]["completions"], [env[name] for name in names]))
        assert server.jobs() == [(epoch, False)]
        stop(backend, epoch, TOKENS[epoch])
    (first, *same), (second, *again), (third, alone, said) = seen
    host = f"{objects.job_name(7)}-0.{objects.job_name(7)}:29500"
    assert (first, same) == (second, again), "the size is the same, so the Job stays"
    assert same == [2, ["1:2", host, "fairlot-7", "1", "3"]]
    assert (third != first, alone, said[0]) == (True, 1, "1:1")


def test_all_jobs_of_an_elastic_mpi_gang_are_made_again_for_another_size(
    server: Server, backend: KubernetesBackend
) -> None:
    def start(epoch: int, workers: int) -> tuple[list[str], str, dict[str, str]]:
        roles = [
            GangRole("launcher", 1, True, ["go"], "e", {}, ends_job=True),
            GangRole("worker", workers - 1, True, ["go"], "e", {}),
        ]
        made = replace(elastic_gang(epoch, workers), roles=roles, is_mpi=True, mpi_seed=b"x")
        backend.start(made)
        hosts = server.there[f"/api/v1/namespaces/n/configmaps/{objects.job_name(7)}"]["data"]
        [container] = server.job(0)["spec"]["template"]["spec"]["containers"]
        env = {one["name"]: one.get("value", "") for one in container["env"]}
        uids = [server.job(part)["metadata"]["uid"] for part in range(2)]
        stop(backend, epoch, TOKENS[epoch])
        return uids, hosts["hostfile"], env

    (first, two, env), (second, three, _) = start(1, 2), start(2, 3)
    assert not {*first} & {*second}
    assert (len(two.splitlines()), len(three.splitlines())) == (2, 3)
    assert (env["FAIRLOT_HOST_DISCOVERY"], env["FAIRLOT_MAX_WORKERS"]) == ("/job/discover-hosts", "3")
    assert "PET_NNODES" not in env
