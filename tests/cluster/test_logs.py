"""Tests that Fairlot follows, stores and continues the logs of workers on a real node, and reports their progress."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from scheduling.backends.base import End, Gang
from scheduling.backends.kubernetes import objects
from tests.cluster.api import Api
from tests.cluster.backend_rig import Rig
from tests.cluster.images import SHELL
from tests.cluster.realnode import RealNode
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

COUNT = "n=0; while [ $n -lt {} ]; do n=$((n+1)); echo line $n of $FAIRLOT_RANK; done"
UNTIL_TOLD = "trap 'echo told to stop; exit 0' TERM; while true; do sleep 0.1; done"


class Room:
    """Starts watchers one after another. All of them store logs in the same folder."""

    def __init__(self, admin: Api, kubeconfig: Path, namespace: str, logs: Path, node: RealNode) -> None:
        self.admin, self.kubeconfig, self.namespace, self.logs = admin, kubeconfig, namespace, logs
        self.node = node

    @contextmanager
    def watcher(self, log_streams: int = 8, *, bare: bool = False) -> Iterator[Rig]:
        rig = Rig(self.admin, self.kubeconfig, self.namespace, self.logs, log_streams=log_streams, bare=bare)
        with rig.watching():
            yield rig

    def gang(self, rig: Rig, script: str, *, job: int = 1, epoch: int = 1, workers: int = 1) -> Gang:
        nodes = [self.node.name] * workers
        command = ["sh", "-c", script]
        return rig.start(rig.gang(*nodes, job=job, epoch=epoch, command=command, environment_name=SHELL))


def text(rig: Rig, gang: Gang, rank: int = 0) -> str:
    assert rig.trouble is None, rig.trouble
    chunk = rig.backend.read_log(job_id=gang.job_id, rank=rank, offset=0, limit=100_000_000)
    return chunk.data.decode()


def is_complete(rig: Rig, gang: Gang, rank: int = 0) -> bool:
    size = rig.backend.log_size(job_id=gang.job_id, rank=rank)
    asked = {"job_id": gang.job_id, "rank": rank, "offset": size, "limit": 1}
    return rig.backend.read_log(**asked, last_attempt=gang.epoch).complete


def wait_for_text(rig: Rig, gang: Gang, wanted: str, rank: int = 0) -> None:
    wait_for(lambda: wanted in text(rig, gang, rank), what=lambda: f"{wanted!r} in {text(rig, gang, rank)!r}")


def state_of(rig: Rig, gang: Gang) -> str:
    """Returns a text about the stored log of the first worker and its recorded position, for the message of a failed
    test."""
    kept, mark = text(rig, gang), (rig.backend.logs / str(gang.job_id) / "logs" / "rank-0.json").read_text()
    threads = [one.name for one in threading.enumerate() if one.name.startswith("logs-")]
    pods = [pod["status"].get("containerStatuses") for pod in rig.pods(gang)]
    return f"{len(kept)} bytes, {kept[-60:]!r}; {mark}; {rig.trouble}; {threads}; {pods}"


def counted(lines: int, rank: int = 0) -> str:
    return "".join(f"line {number} of {rank}\n" for number in range(1, lines + 1))


@pytest.fixture
def room(fairlot: Path, admin: Api, tenant: str, tmp_path: Path, real_node: RealNode) -> Room:
    return Room(admin, fairlot, tenant, tmp_path, real_node)


@pytest.fixture
def rig(room: Room) -> Iterator[Rig]:
    with ExitStack() as stack:
        yield stack.enter_context(room.watcher())


def test_each_rank_has_its_log_while_it_runs_and_after_its_pod_is_gone(room: Room, rig: Rig) -> None:
    gang = room.gang(rig, f"{COUNT.format(500)}; {UNTIL_TOLD}", workers=2)
    for rank in (0, 1):
        wait_for_text(rig, gang, f"line 500 of {rank}\n", rank)
        assert text(rig, gang, rank) == counted(500, rank)
        assert not is_complete(rig, gang, rank)
    assert rig.backend.log_ranks(job_id=gang.job_id) == [0, 1]
    rig.stop(gang)
    assert rig.wait(gang).end is End.STOPPED
    wait_for(lambda: not rig.pods(gang), what="the pods are gone")
    for rank in (0, 1):
        wait_for(partial(is_complete, rig, gang, rank), what="the log is complete")
        assert text(rig, gang, rank) == f"{counted(500, rank)}told to stop\n"


def test_the_next_attempt_continues_the_same_log(room: Room, rig: Rig) -> None:
    first = room.gang(rig, f"echo attempt $FAIRLOT_EPOCH; {UNTIL_TOLD}")
    wait_for_text(rig, first, "attempt 1\n")
    rig.stop(first)
    rig.wait(first)
    # The Job's command was set at its creation, so this script does not matter.
    second = room.gang(rig, "", epoch=2)
    wait_for_text(rig, second, "attempt 2\n")
    assert text(rig, second) == "attempt 1\ntold to stop\nattempt 2\n"


def test_a_bare_pod_is_stopped_and_its_next_attempt_continues_the_same_log(room: Room) -> None:
    """Proves that the next attempt of a stopped bare pod continues the same log, even if no watcher ran when the pod
    ended."""
    with room.watcher(bare=True) as rig:
        first = room.gang(rig, f"echo attempt $FAIRLOT_EPOCH; {UNTIL_TOLD}")
        wait_for_text(rig, first, "attempt 1\n")
    rig.stop(first)
    wait_for(lambda: all(map(objects.has_ended, rig.pods(first))), what="it has ended")
    with room.watcher(bare=True) as rig:
        ended = rig.wait(first)
        assert (ended.end, ended.message) == (End.STOPPED, "stopped by Fairlot"), "though it said 0"
        wait_for_text(rig, first, "told to stop\n")
        second = room.gang(rig, "echo attempt $FAIRLOT_EPOCH; exit 0", epoch=2)
        assert rig.wait(second).end is End.SUCCEEDED
        wait_for(partial(is_complete, rig, second), what="the log is complete")
        assert text(rig, second) == "attempt 1\ntold to stop\nattempt 2\n"


def test_a_watcher_continues_where_the_previous_one_ended(room: Room) -> None:
    with room.watcher() as rig:
        gang = room.gang(rig, f"{COUNT.format(5000)}; sleep 2; {COUNT.format(3000)}")
        wait_for_text(rig, gang, "line 1000 of 0\n")
    for wanted in (1, 2):
        with room.watcher() as rig:
            wait_for(
                lambda: text(rig, gang).count("line 3000 of 0\n") >= wanted,  # noqa: B023
                what=lambda: f"more of it: {state_of(rig, gang)}",
            )
    with room.watcher() as rig:
        assert rig.wait(gang).end is End.SUCCEEDED
        wait_for(lambda: is_complete(rig, gang), what="it is complete")
        assert text(rig, gang) == counted(5000) + counted(3000)


def test_the_log_of_a_job_that_ended_unwatched_is_fetched(room: Room, admin: Api) -> None:
    orders = Rig(admin, room.kubeconfig, room.namespace, room.logs)
    gang = room.gang(orders, f"{COUNT.format(100)}; printf 'no end'; exit 3")

    def ended() -> bool:
        return [pod["status"]["phase"] for pod in orders.pods(gang)] == ["Failed"]

    wait_for(ended, what="it has ended")
    with room.watcher() as rig:
        wait_for(lambda: is_complete(rig, gang), what=lambda: f"all of it: {text(rig, gang)!r}")
        assert text(rig, gang) == f"{counted(100)}no end"


def test_the_logs_of_more_workers_than_streams_are_all_read(room: Room) -> None:
    with room.watcher(log_streams=1) as rig:
        gang = room.gang(rig, f"{COUNT.format(50)}; {UNTIL_TOLD}", workers=4)
        for rank in range(4):
            wait_for_text(rig, gang, f"line 50 of {rank}\n", rank)
        rig.stop(gang)
        rig.wait(gang)
        for rank in range(4):
            wait_for(partial(is_complete, rig, gang, rank), what="the log is complete")
            assert text(rig, gang, rank).startswith(counted(50, rank))


def test_a_new_watcher_reads_progress_too(room: Room) -> None:
    count = "n=0; while true; do n=$((n+1)); echo step $n; sleep 0.1; done"
    with room.watcher() as rig:
        gang = room.gang(rig, count)
        wait_for(lambda: steps(rig, gang) >= 3, what="three steps")
    with room.watcher() as later:
        before = steps(rig, gang)
        wait_for(lambda: steps(later, gang) > before, what="more steps")
        seen = later.seen[gang.token]
        assert seen.steps_age is not None
        assert seen.steps_age >= 0
        later.stop(gang, grace=1.0)
        later.wait(gang)


def steps(rig: Rig, gang: Gang) -> float:
    seen = rig.seen.get(gang.token)
    return (seen.steps or 0.0) if seen else 0.0


def test_removed_files_are_gone_and_can_be_removed_again(room: Room, rig: Rig) -> None:
    gang = room.gang(rig, COUNT.format(3))
    assert rig.wait(gang).end is End.SUCCEEDED
    wait_for(lambda: is_complete(rig, gang), what="it is complete")
    rig.stop(gang)
    wait_for(lambda: removed(rig, gang), what="it is removed")
    assert rig.backend.log_ranks(job_id=gang.job_id) == []
    rig.backend.remove_files(job_id=gang.job_id)
    assert not (room.logs / str(gang.job_id)).exists()


def removed(rig: Rig, gang: Gang) -> bool:
    rig.backend.remove_files(job_id=gang.job_id)
    return not rig.pods(gang)


def test_a_job_that_never_ran_has_a_complete_empty_log(rig: Rig) -> None:
    chunk = rig.backend.read_log(job_id=7, rank=0, offset=0, limit=1)
    assert (chunk.data, chunk.complete) == (b"", True)
    assert not rig.backend.read_log(job_id=7, rank=0, offset=0, limit=1, last_attempt=1).complete
