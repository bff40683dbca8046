"""Programs can read the raw exports, and each user gets only the jobs that the user may export."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from html import unescape
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import AsyncClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounting.core.calendar import MICROSECOND
from accounting.core.clock import now_from_database
from accounting.models import Membership, User
from scheduling.models import Job, Lease
from scheduling.reports.exports import FORMS, Selection, export_lines, reading
from scheduling.reports.exports.slurm import SACCT, SHREDDER
from tests.clock import set_clock
from tests.portal.scene import SECRETS, Scene
from tests.query_counts import queries_of
from tests.scheduling.bygone import had, hours, ran, waited
from tests.scheduling.world import World, world

WIDE = "period=dates&from=2020-01-01&to=2199-12-31"
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
LONG = Selection(NOON - timedelta(days=10), NOON + timedelta(days=10), None)


@pytest.fixture
def lab(db: None) -> World:
    return world(v100=8, a100=8)


@pytest.fixture
def jobs(lab: World) -> list[Job]:
    """Returns three jobs: the first was preempted and succeeded later, the second failed, the third waits."""
    people = lab.people
    v100, more = lab.cluster.nodes.get(name="v100-0"), lab.node("v100-1", people.v100, 8)
    first = waited(lab, people.bob, people.astro, NOON, gpus=2, workers=2, name="train|me\n", priority=3)
    first.first_started_at = NOON + hours(1)
    ran(first, NOON + hours(1), NOON + hours(2), v100, more, why="stopped")
    ran(first, NOON + hours(4), NOON + hours(31), v100, v100)
    second = waited(lab, people.charlie, people.bio, NOON, gpus=1, generation_ids=[people.v100.pk])
    second.first_started_at = NOON + hours(1)
    ran(second, NOON + hours(1), NOON + hours(1.5), v100, why="failed")
    Job.objects.filter(pk=second.pk).update(state="failed", ended_at=NOON + hours(1.5), exit_code=137)
    third = waited(lab, people.alice, people.astro, NOON + hours(3))
    return [first, second, third]


def text_of(form: str, selection: Selection = LONG) -> str:
    return "".join(export_lines(form, selection))


def sacct(selection: Selection = LONG) -> list[dict[str, str]]:
    """Returns the rows of the sacct export, read like the output of `sacct --parsable2`."""
    head, *lines = text_of("sacct.txt", selection).split("\n")[:-1]
    assert head.split("|") == list(SACCT)
    rows = [line.split("|") for line in lines]
    assert {len(row) for row in rows} <= {len(SACCT)}
    return [dict(zip(SACCT, row, strict=True)) for row in rows]


def moment(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)


def seconds(elapsed: str) -> int:
    found = re.fullmatch(r"(?:(\d+)-)?(\d\d):(\d\d):(\d\d)", elapsed)
    assert found
    days, hour, minute, second = (int(part or 0) for part in found.groups())
    return ((days * 24 + hour) * 60 + minute) * 60 + second


def test_sacct_lines_are_read_back(jobs: list[Job]) -> None:
    rows = {row["JobID"]: row for row in sacct()}
    first, second, third = (str(job.pk) for job in jobs)
    assert set(rows) == {first, f"{first}.1", f"{first}.2", second, f"{second}.1", third}
    attempts = [row for row in sacct() if row["JobID"] == first]
    assert {row["JobName"] for row in attempts} == {"train me "}
    assert {(row["User"], row["Account"], row["Priority"]) for row in attempts} == {("bob", "astro", "3")}
    assert [[moment(row[name]) for name in ("Submit", "Start", "End")] for row in attempts] == [
        [NOON, NOON + hours(1), NOON + hours(2)],
        [NOON + hours(2), NOON + hours(4), NOON + hours(31)],
    ]
    assert [(row["Elapsed"], row["Restarts"], row["State"], row["ExitCode"]) for row in attempts] == [
        ("01:00:00", "0", "PREEMPTED", "0:0"),
        ("1-03:00:00", "1", "COMPLETED", "0:0"),
    ]
    assert attempts[1]["AllocTRES"] == "gres/gpu=4,gres/gpu:v100=4,node=1"
    assert attempts[1]["ReqTRES"] == "gres/gpu=4,node=2"
    assert rows[f"{first}.1"]["NodeList"] == "v100-0,v100-1"
    assert rows[f"{first}.2"]["NNodes"] == "1"
    assert (rows[second]["State"], rows[second]["ExitCode"]) == ("FAILED", "0:9")
    assert rows[second]["ReqTRES"] == "gres/gpu=1,gres/gpu:v100=1,node=1"
    waiting = rows[third]
    assert [waiting[name] for name in ("State", "Start", "End", "NodeList")] == [
        "PENDING", "Unknown", "Unknown", "None assigned",
    ]  # fmt: skip
    assert [row for row in sacct() if "." in row["JobID"]] == [
        row | {"JobID": step["JobID"], "JobIDRaw": step["JobIDRaw"]}
        for row, step in zip([*attempts, rows[second]], [rows[f"{first}.1"], rows[f"{first}.2"], rows[f"{second}.1"]],
                             strict=True)
    ]  # fmt: skip


def is_consistent(row: dict[str, str]) -> bool:
    """Returns whether the elapsed time equals the time from start to end. True if start or end is unknown."""
    if "Unknown" in (row["Start"], row["End"]):
        return True
    return moment(row["End"]) - moment(row["Start"]) == timedelta(seconds=seconds(row["Elapsed"]))


# An attempt: microseconds before it without GPUs, microseconds with GPUs, and why it ended.
attempts = st.tuples(
    st.integers(0, 9 * 10**10), st.integers(0, 9 * 10**10), st.sampled_from(["stopped", "lost", "drained"])
)
histories = st.lists(
    st.tuples(
        st.integers(0, 3 * 10**11),
        st.lists(attempts, max_size=4),
        st.sampled_from(["succeeded", "cancelled", "waits", "runs"]),
        st.integers(1, 3),
    ),
    min_size=1,
    max_size=4,
)


def lasts(one: Any) -> int:
    return one[0] + sum(gap + lasted for gap, lasted, _ in one[1])


def lived(lab: World, history: list[Any]) -> None:
    """Creates the jobs of `history` with their attempts.

    A job is (arrival, attempts, final state, number of workers). An attempt is (wait before it, duration, reason of its
    end). All times are in microseconds, and arrivals count from NOON.
    """
    for came, held, became, workers in history:
        at = NOON + came * MICROSECOND
        job = waited(lab, lab.people.bob, lab.people.astro, at, gpus=2, workers=workers)
        leases = []
        for epoch, (gap, lasted, why) in enumerate(held, 1):
            begins = at + gap * MICROSECOND
            at = begins + lasted * MICROSECOND
            had(job, begins, at, lab.people.v100)
            leases.append(
                Lease(job=job, cluster=lab.cluster, epoch=2 * epoch, generation=lab.people.v100, gpus=2 * workers,
                      state="closed", held_from=begins, held_until=at, end_reason=why)
            )  # fmt: skip
        if became == "runs" and leases:
            leases[-1].state, leases[-1].held_until, leases[-1].end_reason = "running", None, ""
        elif became == "succeeded" and leases:
            leases[-1].end_reason = "succeeded"
            job.state, job.ended_at, job.exit_code = "succeeded", at, 0
        elif became == "cancelled":
            job.state, job.ended_at = "cancelled", at + hours(1)
        job.epoch = 2 * len(leases) + 1
        job.save()
        Lease.objects.bulk_create(leases)


def sums(*parts: Selection) -> dict[str, Any]:
    """Returns the sums of times and GPU-seconds in the sacct and CSV exports of all `parts`. Also checks the times in
    each row.

    The key "ends" has a counter: the number of rows of ended jobs, by job and state.
    """
    found: dict[str, Any] = defaultdict(Decimal)
    found["ends"] = Counter()
    for part in parts:
        for row in sacct(part):
            assert is_consistent(row)
            for name in ("Start", "End"):
                within = row[name] == "Unknown" or part.begins - SECOND < moment(row[name]) <= part.ends
                assert part.whole or within
            kind = "step" if "." in row["JobID"] else "job"
            gpus = int(re.search(r"gres/gpu=(\d+)", row["ReqTRES"])[1])
            found[f"{kind}: elapsed"] += int(row["ElapsedRaw"])
            found[f"{kind}: GPU-seconds"] += gpus * int(row["ElapsedRaw"])
            if kind == "job" and row["State"] not in {"RUNNING", "PENDING", "PREEMPTED", "NODE_FAIL"}:
                found["ends"]["line", row["JobID"], row["State"]] += 1
        for row in csv.DictReader(io.StringIO(text_of("jobs.csv", part))):
            for name in ("elapsed_seconds", "wall_seconds", "wait_seconds", "gpu_seconds"):
                found[name] += Decimal(row[name])
            if row["start_time"] and row["end_time"]:
                lasted = datetime.fromisoformat(row["end_time"]) - datetime.fromisoformat(row["start_time"])
                assert Decimal(row["elapsed_seconds"]) == Decimal(str(lasted.total_seconds()))
            if row["exit_state"] not in {"RUNNING", "PENDING"}:
                found["ends"]["row", row["job_id"], row["exit_state"]] += 1
    return found


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(histories, st.lists(st.integers(1, 10**12 - 1), max_size=4, unique=True), st.booleans())
def test_files_of_adjoining_periods_add_up(
    lab: World, history: list[Any], cuts: list[int], is_over: bool
) -> None:
    """The totals of adjoining files are those of one long file.

    Hypothesis chooses the history of the jobs, where the period is cut, and whether the last period has ended.
    """
    ends = NOON + 10**12 * MICROSECOND
    now = ends + hours(400 if is_over else -30)
    bounds = [NOON, *(NOON + cut * MICROSECOND for cut in sorted(cuts)), ends]
    with transaction.atomic(), pytest.MonkeyPatch.context() as patch:
        set_clock(patch, now)
        lived(lab, history if is_over else [one for one in history if lasts(one) < 8 * 10**11])
        whole = sums(Selection(NOON, ends, None))
        assert sums(*(Selection(a, b, None) for a, b in itertools.pairwise(bounds))) == whole
        micros = sum(
            one.gpus
            * max((min(one.held_until or now, ends, now) - max(one.held_from, NOON)) // MICROSECOND, 0)
            for one in Lease.objects.all()
        )
        assert whole["gpu_seconds"] == Decimal(micros).scaleb(-6)
        assert whole["job: GPU-seconds"] == whole["step: GPU-seconds"]
        assert max(whole["ends"].values(), default=1) == 1
        transaction.set_rollback(True)


def test_a_job_that_is_cancelled_after_a_lost_attempt_is_cancelled_in_each_file(lab: World) -> None:
    """If a job is cancelled after a lost attempt, the attempt has the state NODE_FAIL, and the wait after it has the
    state CANCELLED.

    Two files that divide the period during this wait have the same sums as one file.
    """
    lived(lab, [(0, [(0, 10**9, "lost")], "cancelled", 1)])
    day = Selection(NOON, NOON + hours(24), None)
    assert [row["State"] for row in sacct(day) if "." not in row["JobID"]] == ["NODE_FAIL", "CANCELLED"]
    halves = [replace(day, ends=NOON + hours(1)), replace(day, begins=NOON + hours(1))]
    assert sums(*halves) == sums(day)


def test_a_job_over_midnight_is_in_both_days_with_its_part(lab: World, jobs: list[Job]) -> None:
    """Each day's file has the part of the job within the day. On request both files have the whole job."""
    midnight = NOON + hours(12)
    days = [Selection(midnight - hours(24), midnight, None), Selection(midnight, midnight + hours(24), None)]
    first = str(jobs[0].pk)
    told = [
        [(row["Start"], row["End"], row["State"]) for row in sacct(day) if row["JobID"] == first]
        for day in days
    ]
    assert told == [
        [
            ("2026-05-04T13:00:00", "2026-05-04T14:00:00", "PREEMPTED"),
            ("2026-05-04T16:00:00", "2026-05-05T00:00:00", "RUNNING"),
        ],
        [("2026-05-05T00:00:00", "2026-05-05T19:00:00", "COMPLETED")],
    ]
    rows = [json.loads(text_of("jobs.json", day))[0] for day in days]
    assert [(row["state"], row["end_time"], row["wall_seconds"], row["attempts"]) for row in rows] == [
        ("running", "2026-05-05T00:00:00+00:00", 9 * 3600, 2),
        ("succeeded", "2026-05-05T19:00:00+00:00", 19 * 3600, 1),
    ]
    whole = [json.loads(text_of("jobs.json", replace(day, whole=True)))[0] for day in days]
    assert [row["wall_seconds"] for row in whole] == [28 * 3600] * 2


@pytest.mark.parametrize(
    ("why", "state"), [("lost", "NODE_FAIL"), ("start_failed", "FAILED"), ("stopped", "CANCELLED")]
)
def test_a_turn_that_ended_before_its_job_was_cancelled_keeps_its_end(
    lab: World, why: str, state: str
) -> None:
    job = waited(lab, lab.people.bob, lab.people.astro, NOON)
    ran(job, NOON + hours(1), NOON + hours(2), lab.cluster.nodes.get(name="v100-0"), why=why)
    Job.objects.filter(pk=job.pk).update(state="cancelled", ended_at=NOON + hours(9))
    assert [row["State"] for row in shredded()] == [state]


def test_the_last_turn_of_a_job_that_was_cancelled_between_two_is_cancelled(lab: World) -> None:
    job = waited(lab, lab.people.bob, lab.people.astro, NOON, spec={"cpu": 2.5}, workers=3, gpus=1)
    node = lab.cluster.nodes.get(name="v100-0")
    for begins in (1, 4):
        ran(job, NOON + hours(begins), NOON + hours(begins + 1), node, node, node, why="stopped")
    Job.objects.filter(pk=job.pk).update(state="cancelled", ended_at=NOON + hours(9), epoch=5)
    assert [row["State"] for row in sacct() if "." not in row["JobID"]] == ["PREEMPTED", "CANCELLED"]
    assert [(row["State"], row["NCPUS"]) for row in shredded()] == [("PREEMPTED", "8"), ("CANCELLED", "8")]
    before, after = Selection(NOON, NOON + hours(8), None), Selection(NOON + hours(8), LONG.ends, None)
    assert [row["State"] for row in sacct(before) if "." not in row["JobID"]] == [
        "PREEMPTED", "PREEMPTED", "PENDING",
    ]  # fmt: skip
    assert [(row["State"], row["Start"], row["Elapsed"]) for row in sacct(after)] == [
        ("CANCELLED", "Unknown", "00:00:00")
    ]


def shredded(selection: Selection = LONG) -> list[dict[str, str]]:
    """Returns the rows of the XDMoD export, parsed in the same way as by XDMoD's log parser, the shredder.

    Fails if a line does not have the fixed number of fields, or has a value that the shredder would not accept.
    """
    found = []
    for line in text_of("xdmod.txt", selection).splitlines():
        row = dict(zip(SHREDDER, line.split("|", len(SHREDDER) - 1), strict=True))
        assert "." not in row["JobID"]
        assert row["End"] != "Unknown"
        assert is_consistent(row)
        assert int(row["NCPUS"]) >= 1
        assert row["NodeList"] != "None assigned"
        assert row["State"].split(" ")[0] in {"COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "PREEMPTED"}
        assert re.search(r"gres/gpu=(\d+)", row["AllocTRES"])
        found.append(row)
    return found


def test_xdmod_gets_each_turn_once_whatever_the_periods(jobs: list[Job]) -> None:
    whole = shredded()
    assert len(whole) == 3
    gpu_seconds = sum(
        int(re.search(r"gres/gpu=(\d+)", row["AllocTRES"])[1]) * seconds(row["Elapsed"]) for row in whole
    )
    leases = Lease.objects.filter(job__in=jobs)
    assert gpu_seconds == sum(one.gpus * (one.held_until - one.held_from).total_seconds() for one in leases)
    waits = {(row["JobID"], row["State"]): moment(row["Start"]) - moment(row["Submit"]) for row in whole}
    assert waits[str(jobs[0].pk), "PREEMPTED"] == hours(1)
    assert waits[str(jobs[0].pk), "COMPLETED"] == hours(2)  # from the preemption to the next start
    cuts = [LONG.begins, NOON + hours(1.5), NOON + hours(2), NOON + hours(31), LONG.ends]
    parts = [shredded(Selection(a, b, None)) for a, b in itertools.pairwise(cuts)]
    key = lambda row: (row["JobID"], row["Start"])  # noqa: E731
    assert sorted((row for part in parts for row in part), key=key) == sorted(whole, key=key)


def test_csv_and_json_say_the_same(jobs: list[Job]) -> None:
    rows = list(csv.DictReader(io.StringIO(text_of("jobs.csv"))))
    told = json.loads(text_of("jobs.json"))
    # The waiting time of the third job grows between two exports.
    steady = [name for name in told[0] if name != "wait_seconds"]
    for row, one in zip(rows, told, strict=True):
        assert [row[name] for name in steady] == [
            "" if one[name] is None else str(one[name]) for name in steady
        ]
    first = told[0]
    assert (first["wall_seconds"], first["wait_seconds"], first["attempts"]) == (28 * 3600, 3 * 3600, 2)
    assert first["gpu_seconds"] == 4 * 28 * 3600
    assert first["job_name"] == "train|me\n"


def test_no_name_breaks_a_record(jobs: list[Job]) -> None:
    """Job names with line breaks or separators add no lines or fields to an export.

    Such names are refused today, but the database may have older ones. CSV is an exception: \\n and \\r in a name add
    lines.
    """
    forms = ("sacct.txt", "xdmod.txt", "jobs.json", "jobs.csv")
    before = {form: len(text_of(form).splitlines()) for form in forms[:-1]}
    breaks = "".join(char for char in map(chr, range(1, 0x3000)) if len(f"a{char}b".splitlines()) > 1)
    name = f"a{breaks}|\t=b"
    Job.objects.filter(pk=jobs[0].pk).update(name=name)
    for form, lines in before.items():
        assert len(text_of(form).splitlines()) == text_of(form).count("\n") == lines
    assert {len(line.split("|")) for line in text_of("sacct.txt").splitlines()} == {len(SACCT)}
    assert {len(line.split("|")) for line in text_of("xdmod.txt").splitlines()} == {len(SHREDDER)}
    assert json.loads(text_of("jobs.json"))[0]["job_name"] == name
    Job.objects.filter(pk=jobs[0].pk).update(name=name.replace("\n", "").replace("\r", ""))
    assert len(text_of("jobs.csv").splitlines()) == 1 + len(jobs)


def test_a_period_without_jobs_is_empty_but_well_formed(lab: World) -> None:
    assert json.loads(text_of("jobs.json")) == []
    assert sacct() == []
    assert text_of("xdmod.txt") == ""


def test_pseudonyms_are_stable_and_tell_no_name(jobs: list[Job]) -> None:
    anonymous = Selection(LONG.begins, LONG.ends, None, anonymous=True)
    for form in FORMS:
        text = text_of(form, anonymous)
        assert not re.search("bob|alice|charlie|astro|bio|uni|train[| ]me", text, re.IGNORECASE)
        assert re.findall(r"user-\w+", text) == re.findall(r"user-\w+", text_of(form, anonymous))
    rows = {row["JobID"]: row for row in sacct(anonymous)}
    first, second, third = (rows[str(job.pk)] for job in jobs)
    assert first["Account"] == third["Account"] != second["Account"]
    assert len({first["User"], second["User"], third["User"]}) == 3
    real, hidden = shredded(), shredded(anonymous)
    for number, name, keys in (
        ("UID", "User", [job.owner_id for job in jobs]),
        ("GID", "Account", [job.tenant_id for job in jobs]),
    ):
        assert {row[number] for row in real} <= {str(key) for key in keys}
        assert not {row[number] for row in hidden} & {str(key) for key in keys}
        assert all(0 < int(row[number]) < 2**31 for row in hidden)
        assert len({(row[number], row[name]) for row in hidden}) == len({row[name] for row in hidden}) == 2


def test_steps_of_reading_leave_nothing_out(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sacct(), shredded(), text_of("jobs.csv").count("\n"), len(json.loads(text_of("jobs.json")))
    monkeypatch.setattr(reading, "STEP", 1)
    assert [dict(row.items()) for row in sacct()] == whole[0]
    assert shredded() == whole[1]
    assert text_of("jobs.csv").count("\n") == whole[2]
    assert len(json.loads(text_of("jobs.json"))) == whole[3]


@pytest.mark.parametrize("form", FORMS)
def test_rows_read_at_once_are_sent_at_once(jobs: list[Job], form: str) -> None:
    assert (
        len(list(export_lines(form, LONG))) <= 2
    )  # one piece with all rows, and one with the header or footer


def test_queries_do_not_grow_with_jobs(jobs: list[Job], lab: World) -> None:
    for _ in range(20):
        waited(lab, lab.people.bob, lab.people.astro, NOON)
    with queries_of("the export sacct.txt"):
        text_of("sacct.txt")
    with queries_of("the export xdmod.txt"):
        text_of("xdmod.txt")


def test_the_shell_writes_the_same(jobs: list[Job], capsys: pytest.CaptureFixture[str]) -> None:
    call_command("export_jobs", "sacct.txt", "--from", "2026-05-01", "--to", "2026-05-09", "--team", "bio")
    told = capsys.readouterr().out
    head, *lines = told.splitlines()
    assert head.startswith("JobID|JobIDRaw|")
    assert {line.split("|")[4] for line in lines} == {"bio"}
    with pytest.raises(CommandError, match="no team"):
        call_command(
            "export_jobs", "jobs.csv", "--from", "2026-05-01", "--to", "2026-05-09", "--team", "nowhere"
        )


def get(user: User, address: str) -> tuple[int, str]:
    async def work() -> tuple[int, str]:
        client = AsyncClient()
        await client.aforce_login(user, backend="django.contrib.auth.backends.ModelBackend")
        answer = await client.get(address)
        if not answer.streaming:
            return answer.status_code, answer.content.decode()
        return answer.status_code, b"".join([part async for part in answer.streaming_content]).decode()

    return async_to_sync(work)()


@pytest.mark.parametrize("form", FORMS)
def test_managers_export_their_own_teams_operators_all(scene: Scene, form: str) -> None:
    people = scene.people
    then = now_from_database() - hours(3)
    for owner, team, name in (
        (people.bob, people.astro, "supernova-1"),
        (people.charlie, people.bio, "genome-1"),
    ):
        job = waited(scene.world, owner, team, then, name=name)
        ran(job, then + hours(1), then + hours(2), scene.node)
    for address in (
        f"/usage/{form}?{WIDE}",
        f"/api/v1/exports/{form}?{WIDE}",
        f"/usage/{form}?{WIDE}&all=whole",
    ):
        status, text = get(people.alice, address)
        assert status == 200
        assert "charlie" not in text
        assert "genome" not in text
        status, everything = get(people.olga, address)
        assert status == 200
        assert "supernova-1" in text
        assert "supernova-1" in everything
        assert "genome-1" in everything
        _, own = get(people.olga, f"{address}&team=bio")
        assert "genome-1" in own
        assert not any(name in own for name in SECRETS)
        for reader in (people.bob, people.charlie):
            assert get(reader, address)[0] == 404
        assert get(people.alice, f"{address}&team=bio")[0] == 404
        assert get(people.alice, f"{address}&team=astro")[0] == 200


def test_a_path_begins_with_the_first_team_that_the_reader_may_see(scene: Scene) -> None:
    def paths(user: User) -> set[str]:
        _, text = get(user, f"/usage/jobs.csv?{WIDE}&team=astro")
        return {row["account_path"] for row in csv.DictReader(io.StringIO(text))}

    people = scene.people
    assert paths(people.alice) == {"Astro"}
    assert paths(people.olga) == {"Uni/Astro"}
    Membership.objects.create(user=people.alice, tenant=people.uni, role=Membership.Role.VIEWER)
    assert paths(people.alice) == {"Uni/Astro"}


def test_every_button_leads_to_a_file_whichever_team_is_looked_at(scene: Scene, browser_of: Any) -> None:
    people = scene.people
    Membership.objects.create(user=people.alice, tenant=people.bio, role=Membership.Role.VIEWER)
    for reader, team, kept in (
        (people.alice, "bio", False),
        (people.alice, "astro", True),
        (people.olga, "bio", True),
    ):
        html = browser_of(reader).get(f"/usage/?{WIDE}&team={team}").content.decode()
        links = [unescape(link) for link in re.findall(r'href="(/usage/(?:sacct|xdmod|jobs)\.[^"]+)"', html)]
        assert len(links) == 8
        for link in links:
            assert (f"team={team}" in link, "from=2020-01-01" in link) == (kept, True)
            assert get(reader, link)[0] == 200


def test_links_to_exports_are_shown_to_users_who_may_export(scene: Scene, browser_of: Any) -> None:
    for reader, shown in ((scene.people.alice, True), (scene.people.bob, False), (scene.people.olga, True)):
        assert ("/usage/sacct.txt" in browser_of(reader).get("/usage/").content.decode()) is shown
