"""Contains one fixture: the portal that all attacks share."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attack.attacks import Target
from tests.proof.portal import RunningPortal


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    folder = Path(tempfile.mkdtemp(prefix="fairlot-attack-", dir="/var/tmp"))
    folder.chmod(0o755)  # PostgreSQL's unprivileged user must be able to enter it
    portal = RunningPortal(folder)
    try:
        target = Target(portal.start())
        yield target
        target.close()
    finally:
        portal.stop()
        shutil.rmtree(folder, ignore_errors=True)
