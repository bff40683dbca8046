"""Whole portals for the proofs; they are slow to start, so each module shares one."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proof.portal import RunningPortal


@pytest.fixture(scope="module")
def portal(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[RunningPortal]:
    folder = (
        Path("/var/tmp") / f"fairlot-proof-{tmp_path_factory.getbasetemp().name}-{request.module.__name__}"
    )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o755)
    portal = RunningPortal(folder, port=0)
    try:
        yield portal.start()
    finally:
        portal.stop()
        shutil.rmtree(folder, ignore_errors=True)
