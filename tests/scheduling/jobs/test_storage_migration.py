"""An upgrade remembers which files were measured for the last time, and a downgrade gives that back."""

from __future__ import annotations

import pytest

from tests.upgrading import ALIAS, database_as_of, rows_of, small_cluster

BEFORE, AFTER = (
    ("scheduling", "0079_pipelines_beside_many_jobs"),
    ("scheduling", "0080_files_that_were_measured"),
)


@pytest.mark.django_db(transaction=True)
def test_files_that_were_measured_for_the_last_time_stay_so_through_upgrade_and_downgrade() -> None:
    with database_as_of([BEFORE]) as executor:
        make = rows_of(executor, BEFORE)
        place = small_cluster(make)
        jobs = {}
        for name, is_final in (("over", True), ("runs", False)):
            jobs[name] = make(
                "scheduling", "Job", name=name, spec={}, workers=1, gpus_per_worker=1, **place
            ).pk
            make("scheduling", "JobStorage", job_id=jobs[name], size=5, is_final=is_final)
        executor.loader.build_graph()
        executor.migrate([AFTER])
        job = executor.loader.project_state([AFTER]).apps.get_model("scheduling", "Job")
        measured = job.objects.using(ALIAS).values_list("name", "files_measured")
        assert dict(measured) == {"over": True, "runs": False}
        executor.loader.build_graph()
        executor.migrate([BEFORE])
        storage = executor.loader.project_state([BEFORE]).apps.get_model("scheduling", "JobStorage")
        kept = storage.objects.using(ALIAS).values_list("job_id", "is_final", "size")
        assert set(kept) == {(jobs["over"], True, 5), (jobs["runs"], False, 5)}
