"""The upgrade records all the time of an ended lease as lost if its gang never ran. Of other leases it records no time
as lost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.upgrading import ALIAS, database_as_of, rows_of, small_cluster

BEFORE, AFTER = ("scheduling", "0029_share_hours"), ("scheduling", "0033_lost_work")
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.mark.django_db(transaction=True)
def test_turns_that_never_ran_are_lost() -> None:
    with database_as_of([BEFORE]) as executor:
        make = rows_of(executor, BEFORE)
        of = small_cluster(make)
        generation = make("accounting", "Generation", name="V100")
        for name, running_from, state in (
            ("never", None, "closed"), ("ran", NOON, "closed"), ("starts", None, "starting"),
        ):  # fmt: skip
            job = make("scheduling", "Job", name=name, spec={}, workers=1, gpus_per_worker=1, **of)
            make(
                "scheduling", "Lease", job=job, cluster=of["cluster"], epoch=1, generation=generation, gpus=1,
                state=state, held_from=NOON, running_from=running_from,
                held_until=None if state == "starting" else NOON + HOUR,
            )  # fmt: skip
        executor.loader.build_graph()
        executor.migrate([AFTER])
        lease = executor.loader.project_state([AFTER]).apps.get_model("scheduling", "Lease")
        found = dict(lease.objects.using(ALIAS).values_list("job__name", "lost_from"))
    assert found == {"never": NOON, "ran": None, "starts": None}
