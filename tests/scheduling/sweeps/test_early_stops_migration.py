"""A downgrade keeps members that stopped early as cancelled ones, because the earlier release does not know them."""

from __future__ import annotations

import pytest

from tests.upgrading import ALIAS, database_as_of, rows_of, small_cluster

BEFORE, AFTER = ("scheduling", "0095_points_by_step"), ("scheduling", "0096_early_stops_of_members")


@pytest.mark.django_db(transaction=True)
def test_a_downgrade_keeps_early_stops_as_cancelled_members() -> None:
    with database_as_of([AFTER]) as executor:
        make = rows_of(executor, AFTER)
        place = small_cluster(make)
        job = make("scheduling", "Job", name="a", spec={}, workers=1, gpus_per_worker=1, **place)
        counts = {"stopped": 2, "cancelled": 1, "failed": 1}
        sweep = make("scheduling", "Sweep", name="s", spec={}, parameters={}, size=4, counts=counts, **place)
        make("scheduling", "SweepMember", sweep=sweep, index=0, state="stopped", job=job)
        make("scheduling", "JobEvent", job=job, kind="cancelled", code="member_outdone")
        executor.loader.build_graph()
        executor.migrate([BEFORE])
        apps = executor.loader.project_state([BEFORE]).apps
        event = apps.get_model("scheduling", "JobEvent").objects.using(ALIAS).get()
        assert (event.code, event.text) == ("", "Stopped early: worse than the median of its sweep")
        assert apps.get_model("scheduling", "Sweep").objects.using(ALIAS).get().counts == {
            "cancelled": 3,
            "failed": 1,
        }
        assert apps.get_model("scheduling", "SweepMember").objects.using(ALIAS).get().state == "cancelled"
