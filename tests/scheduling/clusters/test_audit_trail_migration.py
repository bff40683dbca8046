"""The upgrade fills the tables of pauses, imports, archives and prices from the audit trail, and leaves the trail
unchanged."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from tests.upgrading import ALIAS, database_as_of, manage, rows_of

NAME = "facts_out_of_the_audit_trail"
BEFORE = [("accounting", "0032_entries_checked_together"), ("scheduling", "0063_one_reserved_lease_a_job")]
AFTER = [("accounting", f"0033_{NAME}"), ("scheduling", f"0064_{NAME}")]
NOON = datetime(2026, 5, 4, 12, 0, 0, 123456, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.mark.django_db(transaction=True)
def test_an_upgrade_reads_the_audit_trail_once() -> None:
    with database_as_of(BEFORE) as executor:
        make = rows_of(executor, BEFORE[1])
        lab, other = (make("scheduling", "Cluster", name=name) for name in ("lab", "other"))
        ada = make("accounting", "User", username="ada")
        v100 = make("accounting", "Generation", name="V100")
        for begins, ends in ((NOON, NOON + HOUR), (NOON + HOUR, None)):
            make("accounting", "Price", generation=v100, per_gpu_hour=1, valid=DateTimeTZRange(begins, ends))

        def event(hour: float, verb: str, target: Any = None, actor: Any = ada, **after: Any) -> None:
            kind, pk = (target._meta.model_name, target.pk) if target else ("closedbook", 1)
            make("accounting", "AuditEvent", at=NOON + hour * HOUR, verb=verb, actor=actor, actor_name="",
                 target_type=kind, target_id=str(pk), target_name="", after=after)  # fmt: skip

        for hour, verb in enumerate(("pause", "pause", "resume", "resume", "pause")):
            event(hour, f"cluster.{verb}", lab)
        event(1, "cluster.import", other, fingerprint="abc")
        event(1, "price.set", v100, since="2026-05-04T12:00:00.123Z")
        event(2, "price.set", v100, actor=None, since="2026-05-04T12:00:00.123Z")
        event(1, "ledger.archive", month="2026-04-01", rows=7, digests={"a": "12"}, seals={"1": 3})
        event(2, "ledger.bring_back", month="2026-04-01", rows=7)
        executor.loader.build_graph()
        executor.migrate(AFTER)
        apps = executor.loader.project_state(AFTER).apps

        def values(room: str, model: str, *names: str) -> list[tuple[Any, ...]]:
            return list(apps.get_model(room, model).objects.using(ALIAS).order_by("pk").values_list(*names))

        assert values("scheduling", "ClusterPause", "cluster", "during") == [
            (lab.pk, DateTimeTZRange(NOON, NOON + 2 * HOUR)),
            (lab.pk, DateTimeTZRange(NOON + 4 * HOUR, None)),
        ]
        assert values("scheduling", "ImportedTrace", "cluster", "fingerprint") == [(other.pk, "abc")]
        assert values("accounting", "Price", "set_by", "set_at") == [(None, NOON + 2 * HOUR), (None, None)]
        april = date(2026, 4, 1)
        assert values(
            "accounting", "ArchiveRecord", "month", "is_archived", "rows", "digests", "seals", "at"
        ) == [
            (april, True, 7, {"a": "12"}, {"1": 3}, NOON + HOUR),
            (april, False, 7, {}, {}, NOON + 2 * HOUR),
        ]
        assert len(values("accounting", "AuditEvent")) == 10
        manage("migrate", "--verbosity", "0")
        manage("verify_ledger")
