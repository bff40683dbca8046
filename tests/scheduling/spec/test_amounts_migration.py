"""The upgrade rewrites the amounts in stored specs with ASCII digits, so that they can still be read."""

from __future__ import annotations

import pytest

from scheduling.spec.attachments import read_bytes
from tests.upgrading import ALIAS, database_as_of, rows_of, small_cluster

BEFORE, AFTER = ("scheduling", "0044_deadlines_of_drains"), ("scheduling", "0045_digits_of_amounts")
AMOUNTS = {"１Gi": "1Gi", "٣٢.٥G": "32.5G", "8Gi": "8Gi", "": "", "五Gi": "五Gi"}


@pytest.mark.django_db(transaction=True)
def test_amounts_of_before_have_ascii_digits() -> None:
    with database_as_of([BEFORE]) as executor:
        make = rows_of(executor, BEFORE)
        of = small_cluster(make)
        for number, amount in enumerate(AMOUNTS):
            spec = {"name": "é", "memory": amount, "shm": "٣Gi", "command": "echo ٣"}
            make("scheduling", "Job", name=str(number), spec=spec, workers=1, gpus_per_worker=1, **of)
        plain = make(
            "scheduling", "Job", name="plain", spec={"memory": 5}, workers=1, gpus_per_worker=1, **of
        )
        executor.loader.build_graph()
        executor.migrate([AFTER])
        jobs = executor.loader.project_state([AFTER]).apps.get_model("scheduling", "Job").objects.using(ALIAS)
        found = dict(jobs.exclude(pk=plain.pk).values_list("name", "spec"))
        assert jobs.get(pk=plain.pk).spec == {"memory": 5}
    for number, amount in enumerate(AMOUNTS.values()):
        assert found[str(number)] == {"name": "é", "memory": amount, "shm": "3Gi", "command": "echo ٣"}
    assert read_bytes(found["1"]["memory"]) == 32_500_000_000
