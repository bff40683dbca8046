"""The upgrade repairs leases and closed hours of a cluster whose clock was set back. Afterwards its gangs can resume,
and later hours can be closed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from tests.upgrading import ALIAS, database_as_of, rows_of, small_cluster

BEFORE = [("accounting", "0020_seals_of_sums"), ("scheduling", "0038_indexes_by_team")]
AFTER = ("scheduling", "0039_clocks_set_back")
CLOSED = datetime(2026, 5, 4, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
EARLY, LATER = CLOSED - 3 * HOUR, CLOSED + HOUR
# By job: (state of its lease, held_from, running_from, billed_until).
LEASES = {
    "starts": ("starting", EARLY, None, None),
    "runs": ("running", EARLY, EARLY + HOUR, None),
    "ran later": ("stopping", EARLY, LATER, None),
    "is billed": ("running", EARLY, EARLY, CLOSED),
    "began later": ("running", LATER, LATER, None),
    "is billed too little": ("running", EARLY, EARLY, EARLY + HOUR),
    "is over": ("closed", EARLY, EARLY, EARLY + HOUR),
    "is promised": ("promised", None, None, None),
}
MENDED = LEASES | {
    "starts": ("starting", CLOSED, None, None),
    "runs": ("running", CLOSED, CLOSED, None),
    "ran later": ("stopping", CLOSED, LATER, None),
    "is billed too little": ("running", EARLY, EARLY, CLOSED),
}


@pytest.mark.django_db(transaction=True)
def test_leases_broken_by_a_clock_set_back_are_repaired() -> None:
    with database_as_of(BEFORE) as executor:
        make = rows_of(executor, BEFORE[1])
        of = small_cluster(make)
        generation = make("accounting", "Generation", name="A100")
        make(
            "accounting", "ClosedBook", book=of["cluster"].pk, since=CLOSED - 9 * HOUR, until=CLOSED,
            priced_until=CLOSED,
        )  # fmt: skip
        node = make(
            "scheduling",
            "Node",
            cluster=of["cluster"],
            name="n",
            generation=generation,
            gpus=8,
            virtual_speed=1.0,
        )
        for number, (name, (state, begins, running, billed)) in enumerate(LEASES.items()):
            job = make("scheduling", "Job", name=name, spec={}, workers=1, gpus_per_worker=1, **of)
            ends = billed if state == "closed" else None
            lease = make(
                "scheduling", "Lease", job=job, cluster=of["cluster"], epoch=1, gpus=1, generation=generation,
                state=state, held_from=begins, running_from=running, billed_until=billed, held_until=ends,
            )  # fmt: skip
            during = DateTimeTZRange(begins, ends, "[)") if begins else None
            make("scheduling", "HeldGpu", lease=lease, node=node, rank=0, gpu_index=number, during=during)
        changes(make, of["cluster"], generation)
        imported = make("scheduling", "Cluster", name="imported", detached_at=EARLY)
        changes(make, imported, generation)
        for cluster in (of["cluster"], imported):
            running_trade(make, cluster, of["tenant"], generation)
        executor.loader.build_graph()
        executor.migrate([AFTER])
        apps = executor.loader.project_state([AFTER]).apps
        found = {
            name: (tuple(told), during and during.lower)
            for name, during, *told in apps.get_model("scheduling", "HeldGpu").objects.using(ALIAS).values_list(
                "lease__job__name", "during", "lease__state", "lease__held_from", "lease__running_from",
                "lease__billed_until",
            )
        }  # fmt: skip
        told = apps.get_model("scheduling", "NodeChange").objects.using(ALIAS).filter(name="m").order_by("pk")
        order = {
            pk: list(told.filter(cluster=pk).values_list("at", flat=True))
            for pk in (of["cluster"].pk, imported.pk)
        }
        trades = apps.get_model("scheduling", "Trade").objects.using(ALIAS)
        ends = dict(trades.values_list("round__cluster__name", "ends"))
    assert ends == {"lab": None, "imported": EARLY}
    assert found == {name: (row, row[1]) for name, row in MENDED.items()}
    assert order == {
        of["cluster"].pk: [EARLY, LATER, LATER, LATER + HOUR, EARLY - HOUR],
        imported.pk: [EARLY, LATER, CLOSED, LATER + HOUR, EARLY - HOUR],
    }


def running_trade(make: Any, cluster: Any, seller: Any, fast: Any) -> None:
    name = f"of {cluster.name}"
    made = make(
        "scheduling", "Round", cluster=cluster, number=1, kind="quantum", at=EARLY, draw="stride", seed=1, gpus_up=8,
        gpus_given=0, jobs_considered=0, started=0, stopped=0, read_ms=0, decide_ms=0,
    )  # fmt: skip
    make(
        "scheduling", "Trade", round=made, seller=seller, fast=fast, begins=EARLY, fast_gpus=1, slow_gpus=2, price=2,
        buyer=make("accounting", "Tenant", name=name, slug=name[3:], path=f"{cluster.pk + 8}/"), seller_speedup=1,
        slow=make("accounting", "Generation", name=name), buyer_speedup=3,
    )  # fmt: skip


def changes(make: Any, cluster: Any, generation: Any) -> None:
    """Creates four changes of node 77, the third of them after the clock was set back, and one change of node 78."""
    for node, at in ((77, EARLY), (77, LATER), (77, CLOSED), (77, LATER + HOUR), (78, EARLY - HOUR)):
        make(
            "scheduling", "NodeChange", cluster=cluster, node_id=node, name="m", generation=generation, gpus=4,
            state="ready", failed_gpus=0, others_gpus=0, at=at,
        )  # fmt: skip
