"""After the upgrade, old jobs have columns for their first generation and for how long they held GPUs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.upgrading import ALIAS, database_as_of, rows_of, small_cluster

BEFORE, AFTER = ("scheduling", "0035_indexes_of_reports"), ("scheduling", "0036_what_jobs_held")
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
HOUR, MICROSECOND = timedelta(hours=1), timedelta(microseconds=1)
# By job: the attempts, each as (generation, held_from, held_until).
TURNS = {
    "never begun": [],
    "withdrawn": [("V100", None, None)],
    "two": [
        ("A100", None, None),
        ("V100", NOON, NOON + 51 * HOUR),
        ("A100", NOON + 60 * HOUR, NOON + 60 * HOUR + MICROSECOND),
    ],
    "runs": [("V100", NOON, NOON + HOUR), ("A100", NOON + 2 * HOUR, None)],
    "no length": [("A100", NOON, NOON)],
    "long": [("A100", NOON, NOON + timedelta(days=400, microseconds=123457))],
}
HELD = {
    "never begun": (None, timedelta(0)),
    "withdrawn": (None, timedelta(0)),
    "two": ("V100", 51 * HOUR + MICROSECOND),
    "runs": ("V100", HOUR),
    "no length": ("A100", timedelta(0)),
    "long": ("A100", timedelta(days=400, microseconds=123457)),
}


@pytest.mark.django_db(transaction=True)
def test_old_jobs_record_what_their_attempts_held() -> None:
    with database_as_of([BEFORE]) as executor:
        make = rows_of(executor, BEFORE)
        of = small_cluster(make)
        generations = {name: make("accounting", "Generation", name=name) for name in ("V100", "A100")}
        for name, turns in TURNS.items():
            begun = min((begins for _, begins, _ in turns if begins), default=None)
            job = make(
                "scheduling",
                "Job",
                name=name,
                spec={},
                workers=1,
                gpus_per_worker=1,
                first_started_at=begun,
                **of,
            )
            for epoch, (generation, begins, ends) in enumerate(turns, start=1):
                make(
                    "scheduling", "Lease", job=job, cluster=of["cluster"], epoch=epoch, gpus=1,
                    generation=generations[generation], held_from=begins, held_until=ends,
                    state="running" if begins and not ends else "closed",
                )  # fmt: skip
        executor.loader.build_graph()
        executor.migrate([AFTER])
        jobs = executor.loader.project_state([AFTER]).apps.get_model("scheduling", "Job").objects.using(ALIAS)
        found = {name: told for name, *told in jobs.values_list("name", "first_generation__name", "held_for")}
    assert {name: tuple(told) for name, told in found.items()} == HELD
