"""The numbers of all PostgreSQL advisory locks are distinct."""

from __future__ import annotations

from collections import Counter

from accounting.core.locks import OutboxLock
from portal.edge import places
from scheduling.core.locks import Lock


def test_no_two_locks_have_the_same_first_key() -> None:
    # Reads `__members__`, because iterating over an enumeration skips a second name with the same number.
    named = [*Lock.__members__.values(), *OutboxLock.__members__.values(), places.LOCK]
    assert [int(key) for key, times in Counter(named).items() if times > 1] == []
