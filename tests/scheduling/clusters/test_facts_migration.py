"""The upgrade copies facts into columns. Before the upgrade, they were only in the audit trail or in texts."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from scheduling.core.event_texts import sentence
from tests.upgrading import ALIAS, database_as_of, manage, rows_of, small_cluster

NAME = "facts_out_of_the_audit_trail"
BEFORE = [("accounting", "0032_entries_checked_together"), ("scheduling", "0063_one_reserved_lease_a_job")]
AFTER = [("accounting", f"0033_{NAME}"), ("scheduling", "0065_codes_of_events")]
NOON = datetime(2026, 5, 4, 12, 0, 0, 123456, tzinfo=UTC)
HOUR = timedelta(hours=1)


AGAIN = "it starts again, from its checkpoint if it wrote one"
NOW_AGAIN = "the job starts again, from its checkpoint if it has saved one"
SENTENCES = [
    ("submitted", "Submitted by bob"),
    ("submitted", "Submitted by the schedule “nightly”, as bob asked"),
    ("submitted", "Submitted by the schedule “nightly”"),
    ("submitted", "Made as replica 2 of api, revision 3"),
    ("handed_over", "Handed over from bob to alice"),
    ("sharing", "bob: only on GPUs that nobody else wants"),
    ("started", "Running on 4 V100"),
    ("ready", "Ready; it answers at 127.0.0.1:20000"),
    ("unready", "Not ready any more"),
    ("unready", "Not ready any more: GET / was answered with 500"),
    ("released", f"Stopped; at its next turn {AGAIN}"),
    ("released", f"Its processes vanished; {AGAIN}. the machine was restarted"),
    ("unfrozen", f"k1 is being drained: fans; {AGAIN}"),
    ("unfrozen", f"Its frozen processes are gone; {AGAIN}"),
    ("start_failed", "Could not be started: no such program"),
    ("succeeded", "Succeeded"),
    ("succeeded", "Ended, as the trace tells"),
    ("failed", "worker 0 exited with 3"),
    ("failed", "Given up after 3 starts in a row that failed or did not last"),
    ("preempted", "Moved: it stops here with its grace and goes on elsewhere"),
    ("preempted", "Preempted: it is the turn of others; jobs that waited get 4"),
    ("preempted", "Preempted: bob has 4 GPUs, of which 2.5 are guaranteed"),
    ("preempted", "k1 has lost GPUs: 3 of 4 work"),
    (
        "place_lost",
        "Picked, but the 2 GPUs of k1 that it was to have could not be had: others hold all but 1 of its GPUs",
    ),
    ("cluster", "worker 0: no node takes it"),
    ("cancel", "Stopped: its 8 h are over"),
    ("cancel", "Ended: api has 1 replica now"),
]


# The migration stores codes. For these old sentences Fairlot now builds other sentences from the codes, and the wording
# may change from release to release.
REWORDED = {
    "Made as replica 2 of api, revision 3": "Created as replica 2 of the service api, revision 3",
    "bob: only on GPUs that nobody else wants": "bob made the job preemptible",
    "Submitted by the schedule “nightly”, as bob asked": (
        "Submitted by the schedule “nightly”, at the request of bob"
    ),
    "Ready; it answers at 127.0.0.1:20000": "Ready; the program answers at 127.0.0.1:20000",
    "Not ready any more": "No longer ready",
    "Not ready any more: GET / was answered with 500": "No longer ready: GET / was answered with 500",
    f"Stopped; at its next turn {AGAIN}": f"Stopped; in its next attempt {NOW_AGAIN}",
    f"Its processes vanished; {AGAIN}. the machine was restarted": (
        f"The processes of the job disappeared; {NOW_AGAIN}. the machine was restarted"
    ),
    f"k1 is being drained: fans; {AGAIN}": f"k1 is being drained: fans; {NOW_AGAIN}",
    f"Its frozen processes are gone; {AGAIN}": f"The frozen processes of the job have ended; {NOW_AGAIN}",
    "Ended: api has 1 replica now": "Ended: the service api now has 1 replica",
    "worker 0 exited with 3": "Failed: worker 0 exited with 3",
    "Ended, as the trace tells": "Ended, according to the imported trace",
    "Given up after 3 starts in a row that failed or did not last": (
        "Fairlot gave up after 3 consecutive attempts that failed to start or lasted less than a minute"
    ),
    "Moved: it stops here with its grace and goes on elsewhere": (
        "Moved: the job stops on these GPUs within its grace period and continues on other GPUs"
    ),
    "Preempted: it is the turn of others; jobs that waited get 4": (
        "Suspended: other jobs go first; waiting jobs get 4"
    ),
    "Preempted: bob has 4 GPUs, of which 2.5 are guaranteed": (
        "Suspended: bob has 4 GPUs, of which 2.5 are guaranteed"
    ),
    "k1 has lost GPUs: 3 of 4 work": "k1 lost GPUs: 3 of 4 work",
    "Picked, but the 2 GPUs of k1 that it was to have could not be had: others hold all but 1 of its GPUs": (
        "The job was assigned 2 GPUs on the node k1, but could not start there: other jobs hold all GPUs of the node"
        " except 1"
    ),
    "Stopped: its 8 h are over": "Stopped: the session reached its time limit of 8 h",
}


@pytest.mark.django_db(transaction=True)
def test_an_upgrade_turns_sentences_and_the_audit_trail_into_columns() -> None:
    with database_as_of(BEFORE) as executor:
        make = rows_of(executor, BEFORE[1])
        of = small_cluster(make)
        lab, other = of["cluster"], make("scheduling", "Cluster", name="other")
        ada = make("accounting", "User", username="ada")
        v100 = make("accounting", "Generation", name="V100")
        job = make("scheduling", "Job", name="train", spec={}, workers=1, gpus_per_worker=1, state="cancelled",
                   end_reason="cancelled", end_message="Cancelled by bob", **of)  # fmt: skip
        for kind, text in [*SENTENCES, ("warned", "Something that no release says")]:
            make("scheduling", "JobEvent", job=job, kind=kind, text=text)
        for epoch, stopped, ends, (kind, text) in (
            (1, NOON, "stopped", ("preempted", "k1 is being drained: fans")),
            (2, NOON, "stopped", ("preempted", "Fairlot is shutting down")),
            (3, None, "the node was closed", ("picked", "Given 1 V100 on k1 (GPU 0)")),
            (4, NOON, "exit", ("cancel", "Cancelled by bob")),
        ):
            make("scheduling", "Lease", job=job, cluster=lab, epoch=epoch, generation=v100, gpus=1, state="closed",
                 held_from=NOON, held_until=NOON, stop_asked_at=stopped, end_reason=ends)  # fmt: skip
            make("scheduling", "JobEvent", job=job, epoch=epoch, kind=kind, text=text)
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
        told = values("scheduling", "JobEvent", "kind", "code", "detail", "text")
        assert [(kind, sentence(code, detail)) for kind, code, detail, _ in told[: len(SENTENCES)]] == [
            (kind, REWORDED.get(text, text)) for kind, text in SENTENCES
        ]
        assert told[len(SENTENCES)][1:] == ("", {}, "Something that no release says")
        assert values("scheduling", "Job", "end_code", "end_detail", "end_message") == [
            ("cancelled", {"user": "bob"}, "")
        ]
        assert values("scheduling", "Lease", "end_reason", "stop_cause") == [
            ("stopped", "drained"), ("stopped", "portal_stopped"), ("node_closed", ""), ("succeeded", ""),
        ]  # fmt: skip
        manage("migrate", "--verbosity", "0")
        manage("verify_ledger")
