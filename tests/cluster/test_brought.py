"""Tests that real containers get what their job requests: secrets, datasets, CPUs and memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from scheduling.backends.base import BackendError, Container, End, Gang, Mount, SecretFolder, Secrets
from tests.cluster.api import JOBS, Api
from tests.cluster.backend_rig import Rig
from tests.cluster.controlplane import ControlPlane
from tests.cluster.images import PYTHON, SHELL
from tests.cluster.realnode import RealNode, claim
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

MIB = 2**20
TEXT = "hf_dontTellAnybody"


@pytest.fixture
def rig(fairlot: Path, admin: Api, tenant: str, tmp_path: Path, real_node: RealNode) -> Iterator[Rig]:
    with ExitStack() as stack:
        made = Rig(admin, fairlot, tenant, tmp_path)
        stack.enter_context(made.watching())
        yield made


def run(rig: Rig, node: RealNode, script: str, **brings: object) -> Gang:
    return rig.start(rig.gang(node.name, command=["sh", "-c", script], environment_name=SHELL, **brings))


def log(rig: Rig, gang: Gang) -> str:
    """Waits until the gang has ended, and returns its complete log."""

    def read() -> tuple[str, bool]:
        asked = {"job_id": gang.job_id, "rank": 0, "offset": 0, "limit": 10**6}
        chunk = rig.backend.read_log(**asked, last_attempt=gang.epoch)
        return chunk.data.decode(), chunk.complete

    wait_for(lambda: read()[1], what="the log is whole")
    return read()[0]


def test_a_script_arrives_unchanged(rig: Rig, real_node: RealNode) -> None:
    """Proves that Fairlot escapes scripts. Otherwise Kubernetes would expand $(NAME) and turn $$ into $."""
    gang = run(rig, real_node, """echo '$(RANK) $$ $$(RANK)' "$RANK" $(echo $$)""")
    assert rig.wait(gang).end is End.SUCCEEDED, log(rig, gang)
    assert log(rig, gang) == "$(RANK) $$ $$(RANK) 0 1\n"


def test_a_container_reads_its_secrets(rig: Rig, real_node: RealNode) -> None:
    secrets = Secrets({"HF_TOKEN": TEXT}, [SecretFolder("hf", "/secrets/hf", {"token": f"{TEXT}\n"})])
    script = (
        'exec 2>&1; cat "$FAIRLOT_SECRETS_DIR/hf/token"; echo "$HF_TOKEN"; '
        "echo mine > /secrets/hf/token || echo it cannot be written"
    )
    gang = run(rig, real_node, script, secrets=secrets)
    assert rig.wait(gang).end is End.SUCCEEDED, log(rig, gang)
    lines = log(rig, gang).splitlines()
    assert lines[:2] == [TEXT, TEXT]
    assert "it cannot be written" in lines


def test_a_dataset_is_read_and_cannot_be_written(
    rig: Rig, plane: ControlPlane, tenant: str, real_node: RealNode
) -> None:
    source = claim(plane, tenant, "imagenet")
    writable = Mount("scratch", "/volumes/scratch", source, read_only=False)
    dataset = Mount("imagenet", "/data/imagenet", source, read_only=True)
    first = run(rig, real_node, 'echo a cat > "$FAIRLOT_VOLUMES_DIR/scratch/0001"', mounts=[writable])
    assert rig.wait(first).end is End.SUCCEEDED, log(rig, first)
    script = "exec 2>&1; cat /data/imagenet/0001; rm /data/imagenet/0001 || echo it cannot be written"
    second = run(rig, real_node, script, job=2, mounts=[dataset])
    assert rig.wait(second).end is End.SUCCEEDED, log(rig, second)
    lines = log(rig, second).splitlines()
    assert lines[0] == "a cat"
    assert "it cannot be written" in lines


def test_a_missing_claim_is_reported_before_any_pod_waits_for_it(
    rig: Rig, tenant: str, real_node: RealNode
) -> None:
    missing = Mount("imagenet", "/data/imagenet", "nowhere", read_only=True)
    with pytest.raises(
        BackendError,
        match=f"the PersistentVolumeClaim nowhere, which does not exist in the namespace {tenant}",
    ):
        run(rig, real_node, "true", mounts=[missing])
    assert not rig.admin.items(JOBS.format(tenant))


def test_a_container_gets_exactly_what_it_requested(rig: Rig, real_node: RealNode) -> None:
    """Proves that the requested limits are in force: the program reads its cgroup and its shared memory from the
    kernel."""
    container = Container(0.5, 256 * MIB, 64 * MIB, working_directory="/opt", user_id=4321, group_id=1234)
    at = "/sys/fs/cgroup"
    script = (
        "id -u; id -g; pwd; "
        f"cat {at}/memory.max || cat {at}/memory/memory.limit_in_bytes; "
        f"cat {at}/cpu.max || echo $(cat {at}/cpu/cpu.cfs_quota_us) $(cat {at}/cpu/cpu.cfs_period_us); "
        "cat /proc/mounts"
    )
    gang = run(rig, real_node, script, container=container)
    assert rig.wait(gang).end is End.SUCCEEDED, log(rig, gang)
    # Leaves out errors about files that only the other version of cgroups has.
    lines = [line for line in log(rig, gang).splitlines() if not line.startswith("cat: ")]
    assert lines[:4] == ["4321", "1234", "/opt", str(256 * MIB)]
    quota, period = map(int, lines[4].split())
    assert quota / period == 0.5
    [shared] = [line for line in lines if " /dev/shm " in line]
    assert f"size={64 * 1024}k" in shared


def test_a_container_that_exceeds_its_memory_is_killed(rig: Rig, real_node: RealNode) -> None:
    container = Container(memory=64 * MIB)
    command = ["python3", "-c", "bytearray(256 << 20)"]
    gang = rig.start(rig.gang(real_node.name, command=command, environment_name=PYTHON, container=container))
    seen = rig.wait(gang)
    assert (seen.end, seen.exit_code) == (End.FAILED, 137)
    assert "memory" in seen.message
