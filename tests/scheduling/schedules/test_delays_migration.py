"""After the upgrade, schedules store the reason for late runs as a code, and the downgrade restores the text."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.upgrading import ALIAS, database_as_of, rows_of, small_cluster

BEFORE, AFTER = (
    ("scheduling", "0067_plain_help_texts"),
    ("scheduling", "0068_codes_of_service_events_and_runs"),
)
CODES = {"": "", "the schedule was paused": "paused", "the cluster was detached": "detached"}
DUE = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.mark.django_db(transaction=True)
def test_reasons_for_late_runs_become_codes_and_texts_again() -> None:
    with database_as_of([BEFORE]) as executor:
        make = rows_of(executor, BEFORE)
        of = small_cluster(make)
        for text in CODES:
            make(
                "scheduling",
                "Schedule",
                name=text or "none",
                spec={},
                late_because=text,
                next_due_at=DUE,
                **of,
            )

        def stored(state: tuple[str, str]) -> list[str]:
            schedules = executor.loader.project_state([state]).apps.get_model("scheduling", "Schedule")
            return list(schedules.objects.using(ALIAS).order_by("id").values_list("late_because", flat=True))

        executor.loader.build_graph()
        executor.migrate([AFTER])
        assert stored(AFTER) == list(CODES.values())
        executor.loader.build_graph()
        executor.migrate([BEFORE])
        assert stored(BEFORE) == list(CODES)
