"""Contains one fixture: the portal that all attacks share."""

from collections.abc import Iterator

import pytest

from tests.attack.attacks import Target
from tests.proof.portal import running_portal


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with running_portal() as portal:
        target = Target(portal)
        yield target
        target.close()
