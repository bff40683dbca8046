"""After the upgrade, each old job has the grace period that its spec states, limited to the allowed range. If the spec
states none, the grace period is 30 s."""

from __future__ import annotations

import pytest

from tests.upgrading import ALIAS, database_as_of, rows_of, small_cluster

BEFORE, AFTER = ("scheduling", "0042_uids_of_teams"), ("scheduling", "0043_graces_and_failures")
GRACES = {5: 5, 0: 0, 0.25: 0.25, 30: 30, 1e300: 3600, -1: 0, "7": 30, True: 30, None: 30}


@pytest.mark.django_db(transaction=True)
def test_jobs_of_before_have_the_grace_of_their_specs() -> None:
    with database_as_of([BEFORE]) as executor:
        make = rows_of(executor, BEFORE)
        of = small_cluster(make)
        specs = [*({"checkpoint_grace_seconds": grace} for grace in GRACES), {}, [], "5"]
        for number, spec in enumerate(specs):
            make("scheduling", "Job", name=str(number), spec=spec, workers=1, gpus_per_worker=1, **of)
        executor.loader.build_graph()
        executor.migrate([AFTER])
        jobs = executor.loader.project_state([AFTER]).apps.get_model("scheduling", "Job").objects.using(ALIAS)
        found = dict(jobs.values_list("name", "checkpoint_grace_seconds"))
    wanted = [*GRACES.values(), 30, 30, 30]
    assert found == {str(number): grace for number, grace in enumerate(wanted)}
