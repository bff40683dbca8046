"""The audit trail is searched by person, object, team, kind, words and period, and saved as a file."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.http import QueryDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounting import actions
from accounting.access import audit
from accounting.models import AuditEvent, Generation, Membership, User
from accounting.models.audit import AuditFilter
from portal.administration import trail_search
from portal.administration.event_filter import EventFilter
from portal.administration.trail_search import found_by, rows_of
from portal.reports.periods import WrongQuestion
from tests import make
from tests.make import Cast
from tests.portal.reports.test_exports import get
from tests.portal.scene import Scene


def found(user: User, query: str) -> list[tuple[str, str]]:
    events = found_by(QueryDict(query), user).order_by("pk")
    return list(events.values_list("verb", "target_name"))


@pytest.fixture
def cast(db: None) -> Cast:
    return make.cast()


@pytest.fixture
def changed(cast: Cast) -> Cast:
    bobs = Membership.objects.get(user=cast.bob)
    actions.change_membership(actor=cast.alice, membership=bobs, role="viewer", tickets=7)
    actions.set_tickets(actor=cast.ada, tenant=cast.bio, tickets=50)
    audit.record(
        actor=cast.bob, verb="job.submit", target=cast.bob, tenant=cast.astro,
        after={"name": "x", "spec": {"command": "cd work\npython train.py --it's"}},
    )  # fmt: skip
    audit.record(actor=None, verb="node.drain", target=cast.a100, after={"reason": "new fan"})
    return cast


def test_a_team_finds_the_changes_of_its_members(changed: Cast) -> None:
    assert found(changed.ada, "target=Astro&kind=members") == [("member.change", "bob")]
    assert ("job.submit", "bob") in found(changed.ada, "target=astro")
    assert found(changed.ada, "target=Bio") == [("tenant.set_tickets", "Bio")]
    assert found(changed.alice, "target=Bio") == []  # she manages Astro alone


@pytest.mark.parametrize(
    ("query", "verbs"),
    [
        ("q=new+fan", ["node.drain"]),
        ("q=fa", ["node.drain"]),  # the beginning of a word
        ("q=python", ["job.submit"]),  # after a line break
        ("q=it's", ["job.submit"]),
        ("q=drained+node", ["node.drain"]),  # what was done, in words
        ("q=fan+python", []),  # each word must be there
        ("target=fan", []),  # a word of the values, not of the object's name
        ("target=a1", ["node.drain"]),
        ("actor=fair", ["node.drain"]),
        ("actor=ALI", ["member.change"]),
        ("verb=node.drain", ["node.drain"]),
        ("kind=tickets", ["tenant.set_tickets"]),
        ("from=2020-01-01&to=2020-12-31", []),
        ("to=2020-12-31", []),
        ("from=2020-01-01&kind=clusters", ["node.drain"]),
    ],
)
def test_each_field_narrows_the_trail(changed: Cast, query: str, verbs: list[str]) -> None:
    assert [verb for verb, _ in found(changed.olga, query)] == verbs


def test_managers_search_the_changes_of_their_team_and_save_what_they_found(scene: Scene, browser_of) -> None:
    people = scene.people
    for actor, tenant in ((people.alice, people.astro), (people.ada, people.bio)):
        audit.record(
            actor=actor, verb="quota.set", target=tenant, tenant=tenant, after={"kind": "gpus", "limit": 4711}
        )
    audit.record(
        actor=people.bob, verb="job.submit", target=people.astro, tenant=people.astro, after={"gpus": 4711}
    )
    alice = browser_of(people.alice)
    page = alice.get("/team/astro/changes/?q=4711").content.decode()
    assert "Save all 1 matching changes" in page
    assert "/team/astro/changes/audit.csv?q=4711" in page
    assert "No change matches" in alice.get("/team/astro/changes/?q=4712").content.decode()

    def lines(query: str, form: str = "audit.jsonl") -> list[tuple[str, str]]:
        written = get(people.alice, f"/team/astro/changes/{form}?{query}")[1].splitlines()
        return [(row["actor"], row["verb"]) for row in map(json.loads, written)]

    assert lines("q=4711") == [("alice", "quota.set")], "as on the page: without work, and of this team alone"
    assert lines("q=4711&kind=all") == [("bob", "job.submit"), ("alice", "quota.set")]
    assert alice.get("/team/astro/changes/audit.csv?from=soon").status_code == 400
    assert alice.get("/team/astro/changes/audit.pdf").status_code == 404
    assert browser_of(people.bob).get("/team/astro/changes/audit.csv").status_code == 404
    assert browser_of(people.ada).get("/admin/tenants/astro/changes/audit.csv").status_code == 200


@pytest.mark.parametrize(
    "query", ["from=soon", "to=2026-13-01", "from=2026-02-02&to=2026-02-01", "zone=Moon"]
)
def test_an_invalid_period_is_refused_and_the_page_says_so(scene: Scene, browser_of, query: str) -> None:
    with pytest.raises(WrongQuestion):
        found_by(QueryDict(query), scene.people.olga)
    html = browser_of(scene.people.olga).get(f"/admin/audit/?{query}").content.decode()
    assert "field-error" in html
    assert scene.job.name in html  # the list is shown as without the invalid value


def test_days_begin_at_midnight_in_the_zone() -> None:
    events = AuditEvent.objects.all()
    wanted = EventFilter.read(QueryDict("from=2026-05-04&to=2026-05-04&zone=Europe/Berlin")).narrow(events)
    days = [datetime(2026, 5, day, tzinfo=ZoneInfo("Europe/Berlin")) for day in (4, 5)]
    assert str(wanted.query) == str(events.matching(AuditFilter(since=days[0], until=days[1])).query)


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_can_be_searched(cast: Cast, text: str) -> None:
    for wanted in (AuditFilter(text=text), AuditFilter(target=text), AuditFilter(actor=text)):
        list(AuditEvent.objects.matching(wanted))


@given(
    data=st.data(),
    name=st.lists(st.from_regex(r"[a-z]{1,8}|[0-9]{1,4}", fullmatch=True), min_size=1, max_size=4),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_event_is_found_by_the_beginning_of_each_word_of_its_name(
    cast: Cast, data: st.DataObject, name: list[str]
) -> None:
    target = Generation(pk=1, name=" ".join(name))
    event = audit.record(actor=cast.ada, verb="generation.create", target=target)
    word = data.draw(st.sampled_from(name))
    asked = word[: data.draw(st.integers(1, len(word)))]
    for wanted in (AuditFilter(target=asked), AuditFilter(text=asked)):
        assert AuditEvent.objects.matching(wanted).filter(pk=event.pk).exists()


def test_words_are_found_by_the_index(changed: Cast) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
    for wanted in (AuditFilter(text="fan"), AuditFilter(target="fan")):
        assert "words_of_audit_events" in AuditEvent.objects.matching(wanted).order_by().explain()


def test_an_event_with_very_long_values_is_stored_and_found(cast: Cast) -> None:
    words = " ".join(f"word{number}" for number in range(300_000))
    audit.record(actor=cast.ada, verb="job.submit", target=cast.bob, after={"command": words})
    assert found(cast.ada, "q=word7") == [("job.submit", "bob")]


def test_a_file_has_all_matching_rows_of_one_moment(changed: Cast, monkeypatch) -> None:
    monkeypatch.setattr(trail_search, "STEP", 1)
    before = list(AuditEvent.objects.order_by("-pk").values_list("pk", flat=True))
    rows = rows_of(AuditEvent.objects.all())
    first = next(rows)
    audit.record(actor=None, verb="node.drain", target=changed.a100, after={})  # while the file is sent
    assert [row["id"] for some in (first, *rows) for row in some] == before


def test_operators_save_all_changes_and_managers_those_of_their_teams(scene: Scene) -> None:
    people = scene.people
    audit.record(actor=people.ada, verb="node.drain", target=people.a100, after={"reason": "=1+1"})
    audit.record(actor=people.charlie, verb="job.submit", target=people.charlie, tenant=people.bio)

    def read(user: User, address: str) -> list[dict[str, Any]]:
        status, text = get(user, address)
        assert status == 200
        if ".csv" in address:
            return list(csv.DictReader(io.StringIO(text)))
        return [json.loads(line) for line in text.splitlines()]

    assert get(people.alice, "/admin/audit/audit.csv")[0] == 404
    for form in ("audit.csv", "audit.jsonl"):
        everything = read(people.olga, f"/admin/audit/{form}")
        assert len(everything) == AuditEvent.objects.count()
        assert everything == read(people.olga, f"/api/v1/audit/{form}")
        drained = read(people.olga, f"/admin/audit/{form}?verb=node.drain&q=1")
        assert [(row["actor"], row["target"], row["action"]) for row in drained] == [
            ("ada", "A100", "Drained a node")
        ]
        own = read(people.alice, f"/api/v1/audit/{form}")
        assert {row["team"] for row in own} == {"astro"}
        for reader in (people.bob, people.charlie):
            assert get(reader, f"/api/v1/audit/{form}")[0] == 404


def test_the_api_pages_through_the_changes(scene: Scene, browser_of) -> None:
    olga, seen, before = browser_of(scene.people.olga), [], 0
    while before is not None:
        page = olga.get(f"/api/v1/audit?limit=7&before={before}").json()
        seen += [row["id"] for row in page["items"]]
        before = page["next"]
    assert seen == list(AuditEvent.objects.order_by("-pk").values_list("pk", flat=True))
    tomorrow = datetime.now(UTC).date() + timedelta(days=2)
    assert olga.get(f"/api/v1/audit?from={tomorrow}").json()["items"] == []
    assert olga.get("/api/v1/audit?from=soon").status_code == 422
