"""The upgrade replaces earlier names in stored specs, options, rules and leases by the new names."""

from __future__ import annotations

import pytest

from tests.upgrading import ALIAS, database_as_of, rows_of, small_cluster

BEFORE, AFTER = ("scheduling", "0061_room_beside_jobs"), ("scheduling", "0063_one_reserved_lease_a_job")


@pytest.mark.django_db(transaction=True)
def test_values_stored_under_old_names_are_found_under_new_ones() -> None:
    with database_as_of([BEFORE]) as executor:
        make = rows_of(executor, BEFORE)
        of = small_cluster(make)
        of["cluster"].draw, of["cluster"].policy_options = "lottery", {"draw": "lottery", "memory": 60}
        of["cluster"].residence_seconds = 30
        of["cluster"].save(using=ALIAS)
        make(
            "scheduling",
            "IdleRule",
            action="only_idle",
            after_minutes=9,
            grace_minutes=9,
            snooze_hours=0,
            services=False,
        )
        specs = {"asked": {"name": "a", "only_idle": True}, "not": {"name": "b"}, "odd": ["only_idle"]}
        jobs = {
            name: make(
                "scheduling",
                "Job",
                name=name,
                spec=spec,
                workers=1,
                gpus_per_worker=1,
                only_idle=name == "asked",
                **of,
            )
            for name, spec in specs.items()
        }
        kind = make("accounting", "Generation", name="A100")
        make(
            "scheduling",
            "Lease",
            job=jobs["asked"],
            cluster=of["cluster"],
            generation=kind,
            epoch=1,
            gpus=1,
            state="promised",
        )
        executor.loader.build_graph()
        executor.migrate([AFTER])
        apps = executor.loader.project_state([AFTER]).apps
        after = apps.get_model("scheduling", "Job").objects.using(ALIAS)
        assert dict(after.values_list("name", "spec")) == {
            "asked": {"name": "a", "preemptible": True},
            "not": {"name": "b"},
            "odd": ["only_idle"],
        }
        assert dict(after.values_list("name", "preemptible")) == {"asked": True, "not": False, "odd": False}
        cluster = apps.get_model("scheduling", "Cluster").objects.using(ALIAS).get()
        assert (cluster.ordering, cluster.min_hold_seconds) == ("lottery", 30)
        assert cluster.policy_options == {"ordering": "lottery", "memory": 60}
        assert apps.get_model("scheduling", "IdleRule").objects.using(ALIAS).get().action == "preemptible"
        assert apps.get_model("scheduling", "Lease").objects.using(ALIAS).get().state == "reserved"
