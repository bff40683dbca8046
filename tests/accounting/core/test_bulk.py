"""Tests that rows written in bulk, as SQL array literals, are read back unchanged, whatever values they contain."""

from datetime import timedelta
from decimal import Decimal

import pytest
from django.db import DataError, IntegrityError, connection
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from accounting.core.bulk import insert_rows, insert_values, number_rows, update_rows
from accounting.core.clock import now_from_database
from scheduling.models import Cluster, HeldGpu, Job, JobEvent, Lease, Operation
from tests.scheduling.world import World, start, world

pytestmark = pytest.mark.django_db
AWKWARD = [
    "",
    "NULL",
    "null",
    " ",
    '"',
    "\\",
    '\\"',
    "{}",
    "{a,b}",
    "a,b",
    "two\nlines",
    "'; --",
    "Käse 芝士 🧀",
    "%s",
]


def job(lab: World, generation_ids: list[int], **fields: object) -> Job:
    people = lab.people
    whose = {"cluster": lab.cluster, "tenant": people.astro, "owner": people.bob}
    shape = {"workers": 1, "gpus_per_worker": 2, "generation_ids": generation_ids}
    return Job(**whose, **shape, name="x", spec={"name": "x"}, **fields)


def test_texts_and_json_come_back_as_they_were() -> None:
    lab = world()
    owner = lab.submit(lab.people.bob, lab.people.astro)
    at = now_from_database()
    details = [{text: [text, None, 1.5, {"deep": text}]} for text in AWKWARD]
    insert_rows(
        JobEvent(job=owner, at=at, kind="awkward", text=text, detail=detail)
        for text, detail in zip(AWKWARD, details, strict=True)
    )
    stored = list(JobEvent.objects.filter(kind="awkward").order_by("id"))
    assert [event.text for event in stored] == AWKWARD
    assert [event.detail for event in stored] == details
    assert {(event.at, event.epoch, event.job_id) for event in stored} == {(at, 0, owner.pk)}


def test_lists_of_different_lengths_and_what_the_database_fills_in() -> None:
    lab = world()
    choices = [[], [lab.people.v100.pk], [lab.people.v100.pk, 7, 8]]
    insert_rows(job(lab, choice) for choice in choices)
    stored = Job.objects.order_by("id")
    assert [one.generation_ids for one in stored] == choices
    assert all(one.created_at and one.not_before is None and one.frozen is False for one in stored)


def test_an_update_writes_each_row_its_own_values_and_no_other_row_or_field() -> None:
    lab = world()
    insert_rows(job(lab, []) for _ in range(3))
    one, two, other = Job.objects.order_by("id")
    now = now_from_database()
    one.end_message, one.not_before, one.frozen, one.steps_done = AWKWARD[6], now, True, Decimal("12.345")
    two.end_message, two.not_before, two.frozen, two.steps_done = "NULL", None, False, None
    one.name = other.name = "never written"
    update_rows([one, two], ["end_message", "not_before", "frozen", "steps_done"])
    fields = ("name", "end_message", "not_before", "frozen", "steps_done")
    assert list(Job.objects.order_by("id").values_list(*fields)) == [
        ("x", AWKWARD[6], now, True, Decimal("12.345")),
        ("x", "NULL", None, False, None),
        ("x", "", None, False, None),
    ]


def test_ranges_come_back_as_they_were() -> None:
    lab = world()
    lease = lab.lease(start(lab))
    now = now_from_database()
    later = now + timedelta(seconds=1)
    ranges = [
        DateTimeTZRange(now, None, "[)"),
        DateTimeTZRange(None, later, "()"),
        DateTimeTZRange(now, later, "[]"),
        DateTimeTZRange(empty=True),
        None,
    ]
    node = lease.held_gpus.first().node
    insert_rows(
        HeldGpu(lease=lease, node=node, rank=0, gpu_index=100 + i, during=during)
        for i, during in enumerate(ranges)
    )
    stored = HeldGpu.objects.filter(gpu_index__gte=100).order_by("gpu_index")
    assert [gpu.during for gpu in stored] == ranges


def test_values_are_stored_without_objects_and_the_database_fills_in_the_rest() -> None:
    lab = world()
    lease = lab.lease(start(lab))
    at = now_from_database()
    insert_values(
        Operation,
        ["cluster", "lease", "verb", "attempts", "error"],
        [(lab.cluster.pk, lease.pk, "kill", 3, "")],
    )
    one = lease.operations.get(verb="kill")
    assert (one.attempts, one.done_at) == (3, None)
    assert one.created_at >= at
    with pytest.raises(ValueError, match="shorter"):
        insert_values(Operation, ["cluster", "lease"], [(1, 2), (1,)])
    with pytest.raises(IntegrityError, match="null value"):
        insert_values(Operation, ["cluster"], [(lab.cluster.pk,)])


def test_a_text_with_a_nul_is_refused_and_shifts_no_other() -> None:
    lab = world()
    owner = lab.submit(lab.people.bob, lab.people.astro)
    with pytest.raises(ValueError, match="NUL"):
        insert_rows(
            JobEvent(job=owner, kind="awkward", text=text, at=now_from_database()) for text in ("a", "b\0c")
        )


def test_numbers_are_given_ahead_and_in_order() -> None:
    lab = world()
    new = [job(lab, []) for _ in range(3)]
    number_rows(new)
    keys = [one.pk for one in new]
    assert keys == sorted(set(keys))
    insert_rows(new)
    assert list(Job.objects.order_by("id").values_list("pk", flat=True)) == keys
    assert lab.submit(lab.people.bob, lab.people.astro).pk > keys[-1]


def test_conflicts_are_refused_unless_they_are_to_be_ignored() -> None:
    lab = world()
    lease = lab.lease(start(lab))
    again = [
        Operation(cluster=lab.cluster, lease=lease, verb=verb)
        for verb in (Operation.Verb.START, Operation.Verb.KILL)
    ]
    insert_rows(again, ignore_conflicts=True)
    assert sorted(lease.operations.values_list("verb", flat=True)) == ["kill", "start"]
    with pytest.raises(IntegrityError):
        insert_rows(again)


def test_what_is_too_long_is_refused_and_not_cut() -> None:
    lab = world()
    lease = lab.lease(start(lab))
    lease.end_reason = "x" * 41
    with pytest.raises(DataError):
        update_rows([lease], ["end_reason"])


def test_an_expression_is_refused() -> None:
    lab = world()
    lease: Lease = lab.lease(start(lab))
    lease.epoch = F("epoch") + 1
    with pytest.raises(TypeError, match="expression"):
        update_rows([lease], ["epoch"])


def test_nothing_to_write_asks_nothing(django_assert_num_queries) -> None:
    with django_assert_num_queries(0):
        insert_rows([])
        insert_values(Operation, ["verb"], [])
        update_rows([], ["state"])
        number_rows([])


def test_a_round_takes_as_many_queries_for_many_gangs_as_for_few() -> None:
    small = world(v100=0)
    large = World(small.people, Cluster.objects.create(name="large"))
    counts = []
    for lab, nodes in ((small, 2), (large, 12)):
        for n in range(nodes):
            lab.node(f"v100-{n}", lab.people.v100, 2)
        bobs = [lab.submit(lab.people.bob, lab.people.astro, gpus=2) for _ in range(nodes)]
        first = queries_of_a_round(lab)
        assert lab.states(bobs) == [Job.State.STARTING] * nodes
        lab.carry_out()
        charlies = [lab.submit(lab.people.charlie, lab.people.bio, gpus=2) for _ in range(2 * nodes)]
        later = queries_of_a_round(lab)
        assert lab.states(bobs).count(Job.State.STOPPING) == nodes // 2
        assert set(lab.states(charlies)) == {Job.State.QUEUED}
        counts.append((first, later))
    assert counts[0] == counts[1]


def queries_of_a_round(lab: World) -> int:
    with CaptureQueriesContext(connection) as queries:
        lab.quantum()
    return len(queries)
