"""A downgrade keeps the events of retries, sweeps and pipelines as texts, because the earlier release does not know
their codes."""

from __future__ import annotations

import pytest

from tests.upgrading import ALIAS, database_as_of, rows_of, small_cluster

BEFORE, AFTER = ("scheduling", "0072_code_uploads"), ("scheduling", "0079_pipelines_beside_many_jobs")
TEXTS = {
    "submitted_by_sweep": ("", "Submitted by a sweep"),
    "sweep_stopped": ("", "Cancelled: its sweep met the stop rule"),
    "submitted_by_pipeline": ("", "Submitted by a pipeline"),
    "pipeline_cancelled": ("", "Cancelled with its pipeline"),
    "failed": ("failed", ""),
    "retried": ("", "Failed; the job starts again"),
    "resumed": ("", "Resumed from a checkpoint"),
}


@pytest.mark.django_db(transaction=True)
def test_a_downgrade_keeps_retries_and_resumptions_in_the_history() -> None:
    with database_as_of([AFTER]) as executor:
        make = rows_of(executor, AFTER)
        job = make(
            "scheduling", "Job", name="a", spec={}, workers=1, gpus_per_worker=1, **small_cluster(make)
        )
        assert job.failures == 0
        for code in TEXTS:
            make("scheduling", "JobEvent", job=job, kind=code, code=code)
        executor.loader.build_graph()
        executor.migrate([BEFORE])
        events = executor.loader.project_state([BEFORE]).apps.get_model("scheduling", "JobEvent")
        kept = events.objects.using(ALIAS).values_list("kind", "code", "text")
        assert {kind: (code, text) for kind, code, text in kept} == TEXTS
