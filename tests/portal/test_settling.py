"""What a server does before its first request."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from portal.settling import settle


@pytest.fixture
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_stays_for_ever_is_no_garbage_to_look_for(thawed: None) -> None:
    gc.unfreeze()
    settle()
    assert gc.get_freeze_count() > len(gc.get_objects())
