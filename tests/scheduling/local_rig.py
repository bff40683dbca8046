"""Runs real gangs on a local backend in a temporary folder, for the tests of that backend."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest

from scheduling.backends.base import Gang, Observation, Phase, Worker
from scheduling.backends.local import processes
from scheduling.backends.local.backend import LocalBackend
from scheduling.backends.local.files import JobFiles, read_json
from scheduling.backends.local.isolation import HostPaths
from tests.waiting import PATIENCE, wait_for

USER = 2_011_000_000  # the UID of the rig's jobs if the tests run as root
ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
T = TypeVar("T")


def until(look: Callable[[], T], what: str = "it") -> T:
    """Calls `look` every 10 ms until its result is true, and returns this result.

    `what`: a text for the error message, which names what is awaited.
    """
    return wait_for(look, what=what, every=0.01)


class Rig:
    """A local backend in its own folder, with short methods to start, stop and observe gangs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        needed = (Path(sys.prefix), Path(sys.base_prefix), EXAMPLES)
        self.places = HostPaths(
            jobs=root.resolve(),
            readable=[path.resolve() for path in needed],
            dev=root / "no devices",  # a missing folder, because tests do not use the GPUs of this machine
        )
        self.backend = self.another_backend()
        self.backend.prepare()

    def another_backend(self) -> LocalBackend:
        """Returns a new backend object on the same folder, as another process would create it, or the same process
        after a crash."""
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        return LocalBackend(self.root, {"python": path}, EXAMPLES, 10**9, self.places)

    @property
    def has_users(self) -> bool:
        """Returns whether jobs run as other Unix users than the backend."""
        return self.backend.isolation.users

    def files(self, job: int = 1) -> JobFiles:
        return JobFiles(self.root, job)

    def gang(
        self,
        script: str,
        *,
        job: int = 1,
        epoch: int = 1,
        workers: int = 1,
        gpus: Sequence[Worker] = (),
        **changes: Any,
    ) -> Gang:
        """Returns a gang that runs the shell script `script`; the command `python` in it starts the interpreter of the
        tests.

        - `workers`: the number of workers, each with two virtual GPUs.
        - `gpus`: workers to use instead of these.
        - `changes`: other values for fields of the gang.
        """
        virtual = [Worker(rank, f"node-{rank}", (rank, rank + 8), (), 2.0) for rank in range(workers)]
        given: dict[str, Any] = {
            "job_id": job,
            "epoch": epoch,
            "token": uuid.uuid4(),
            "generation": "V100",
            "command": ["/bin/sh", "-c", script],
            "environment_name": "python",
            "environment": {},
            "progress_pattern": r"\bstep[ =:]+(\d+)",
            "grace_seconds": 5.0,
            "log_limit_bytes": 10**7,
            "workers": gpus or virtual,
            "uid": USER,
            "is_trusted": True,
        }
        return Gang(**given | changes)

    def python(self, program: str, **changes: Any) -> Gang:
        return self.gang("", command=["python", "-c", program], **changes)

    def start(self, gang: Gang) -> Gang:
        self.backend.start(gang)
        return gang

    def stop(self, gang: Gang, grace: float = 5.0) -> None:
        self.backend.stop(job_id=gang.job_id, epoch=gang.epoch, token=gang.token, grace_seconds=grace)

    def freeze(self, gang: Gang) -> None:
        self.backend.freeze(job_id=gang.job_id, epoch=gang.epoch, token=gang.token)

    def look(self, gang: Gang) -> Observation | None:
        return next((seen for seen in self.backend.observe() if seen.token == gang.token), None)

    def wait(self, gang: Gang, phase: Phase = Phase.ENDED) -> Observation:
        """Waits for an observation of the gang in `phase`, and returns it. Fails if the gang ends without having been
        seen in `phase`."""
        deadline = time.monotonic() + PATIENCE
        with closing(self.backend.changes(timeout=0.5)) as changes:
            for _ in changes:
                seen = self.look(gang)
                if seen is not None and seen.phase is phase:
                    return seen
                assert seen is None or seen.phase is not Phase.ENDED, f"ended: {seen}"
                assert time.monotonic() < deadline, f"never {phase}: {seen}"
        raise AssertionError("unreachable")

    def log(self, job: int = 1, rank: int = 0) -> str:
        return self.backend.read_log(job_id=job, rank=rank, offset=0, limit=10**7).data.decode(
            errors="replace"
        )

    def wait_for_log(self, text: str, *, job: int = 1, rank: int = 0, times: int = 1) -> str:
        until(lambda: self.log(job, rank).count(text) >= times, f"{text!r} in the log")
        return self.log(job, rank)

    def supervisor(self, gang: Gang) -> int:
        """Returns the pid of the gang's supervisor; 0 before it is known."""
        status = read_json(self.files(gang.job_id).status(gang.epoch))
        assert status is not None
        return int(status["supervisor"][0]) if status["supervisor"] else 0

    def processes_of(self, gang: Gang) -> list[processes.Process]:
        """Returns all processes whose environment contains the gang's token."""
        return processes.marked(str(gang.token))

    def end_everything(self) -> None:
        """Stops all gangs of the backend without a grace period, and waits until they have ended."""
        for seen in self.backend.observe():
            if seen.phase is not Phase.ENDED:
                self.backend.stop(job_id=seen.job_id, epoch=seen.epoch, token=seen.token, grace_seconds=0.0)
        until(lambda: all(seen.phase is Phase.ENDED for seen in self.backend.observe()), "the end")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    it = Rig(tmp_path / "jobs")
    yield it
    it.end_everything()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Yields a folder that every user may enter. The folder is not in /tmp, because each job has its own /tmp."""
    (ROOT / "artifacts").mkdir(exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="jobs-", dir=ROOT / "artifacts"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)
