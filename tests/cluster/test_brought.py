"""What real containers find of that which their job brings: secrets as variables and files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from scheduling.backends.base import End, Gang, SecretFolder, Secrets
from tests.cluster.api import Api
from tests.cluster.backend_rig import Rig
from tests.cluster.images import SHELL
from tests.cluster.realnode import RealNode
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

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
    """All that it has written, once it has ended."""

    def read() -> tuple[str, bool]:
        asked = {"job_id": gang.job_id, "rank": 0, "offset": 0, "limit": 10**6}
        chunk = rig.backend.read_log(**asked, last_turn=gang.epoch)
        return chunk.data.decode(), chunk.complete

    wait_for(lambda: read()[1], what="the log is whole")
    return read()[0]


def test_a_container_reads_its_secrets(rig: Rig, real_node: RealNode) -> None:
    secrets = Secrets({"HF_TOKEN": TEXT}, [SecretFolder("hf", "/secrets/hf", {"token": f"{TEXT}\n"})])
    script = (
        'cat "$FAIRLOT_SECRETS_DIR/hf/token"; echo "$HF_TOKEN"; '
        "echo mine > /secrets/hf/token || echo it cannot be written"
    )
    gang = run(rig, real_node, script, secrets=secrets)
    assert rig.wait(gang).end is End.SUCCEEDED, log(rig, gang)
    lines = log(rig, gang).splitlines()
    assert lines[:2] == [TEXT, TEXT]
    assert lines[-1] == "it cannot be written"
