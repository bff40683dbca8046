"""An imported job trace becomes the history of a cluster. Reports agree with the trace file, and the hours can be
closed."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from hypothesis import given
from hypothesis import strategies as st

from accounting.actions import create_generation, create_tenant, set_price
from accounting.core.clock import now_from_database
from accounting.models import (
    AuditEvent,
    ClosedBook,
    Generation,
    Membership,
    Tenant,
    UsageSegment,
    User,
)
from accounting.reports.capacity import capacity_report
from accounting.reports.usage import By, usage_report
from scheduling.anomalies.history_reader import read_past
from scheduling.books.closing import close_hours
from scheduling.imports import actions as imports
from scheduling.imports.actions import hours_to_close
from scheduling.imports.traces import BadTrace, TraceJob, gang, read_trace, replay
from scheduling.management.commands import import_trace
from scheduling.models import Cluster, HeldGpu, Job, JobEvent, Lease, Node, NodeChange
from tests import make
from tests.scheduling.world import world

BEGINS = datetime(2026, 4, 30, 22, tzinfo=UTC)
HEADER = "job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval"
Row = tuple[int, str, int, int, int]  # job number, team, GPUs, submit time in seconds, duration in seconds


def rows(count: int, seed: int) -> list[Row]:
    """Returns `count` random rows like those of the Philly trace: most jobs are small, and a few have no GPUs."""
    dice = random.Random(seed)
    return [
        (
            number,
            f"vc_{dice.randrange(4)}",
            dice.choice([0, 1, 1, 1, 1, 2, 4, 8, 12, 16]),
            dice.randrange(9000),
            dice.randrange(0, 3000),
        )
        for number in range(count)
    ]


def written(folder: Path, some: Sequence[Row]) -> Path:
    lines = [f"{n},{team},{gpus},{at},77,resnet,{lasts},8" for n, team, gpus, at, lasts in some]
    path = folder / "trace.csv"
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return path


def imported(path: Path, *more: str) -> str:
    out = StringIO()
    call_command(
        "import_trace", str(path), "--name", "Philly", "--nodes", "6", "--begins", BEGINS.isoformat(),
        "--generation", "P100", *more, stdout=out,
    )  # fmt: skip
    return out.getvalue()


@pytest.mark.django_db(transaction=True)
def test_reports_agree_with_the_file_and_the_books_close(tmp_path: Path) -> None:
    some = rows(120, seed=5)
    p100 = create_generation(actor=None, name="P100")
    set_price(actor=None, generation=p100, per_gpu_hour=Decimal("1.37"), since=make.LONG_AGO)
    told = imported(written(tmp_path, some))
    seconds: dict[str, int] = defaultdict(int)
    jobs: dict[str, int] = defaultdict(int)
    for _, team, gpus, _, lasts in some:
        if gpus and lasts:
            seconds[f"Philly {team}"] += gpus * lasts
            jobs[f"Philly {team}"] += 1
    idle = len(some) - sum(jobs.values())
    assert f"left out: {idle} jobs" in told

    ada = make.user("ada", portal_role="admin")
    report = usage_report(ada, BEGINS, BEGINS + timedelta(days=3), by=(By.TENANT,))
    assert {row.tenant: row.gpu_seconds for row in report.rows} == seconds
    assert {name: Job.objects.filter(tenant__name=name).count() for name in jobs} == jobs
    cost = sum(segment.cost for segment in UsageSegment.objects.all())
    assert (
        abs(cost - sum(seconds.values()) * Decimal("1.37") / 3600)
        < Decimal("0.00005") * UsageSegment.objects.count()
    )

    cluster = Cluster.objects.get(name="Philly")
    assert cluster.detached_at is not None
    whole = capacity_report(BEGINS, cluster.detached_at, book=cluster.pk)
    assert whole.until == cluster.detached_at
    (row,), (identity,) = whole.rows, whole.identities
    assert row.capacity == 6 * 8 * (cluster.detached_at - BEGINS).total_seconds()
    assert row.held == sum(seconds.values())
    assert whole.classes_close
    assert identity.closes
    call_command("verify_ledger", stdout=StringIO())


@pytest.mark.django_db(transaction=True)
def test_every_worker_had_its_gpus_and_no_job_overtook_another(tmp_path: Path) -> None:
    imported(written(tmp_path, rows(80, seed=6)))
    for lease in Lease.objects.select_related("job"):
        places = list(HeldGpu.objects.filter(lease=lease).values_list("rank", "node_id"))
        assert len(places) == lease.gpus == lease.job.workers * lease.job.gpus_per_worker
        assert len(set(places)) == lease.job.workers  # all GPUs of a worker are on one node
    starts = list(Job.objects.order_by("created_at", "id").values_list("first_started_at", flat=True))
    assert starts == sorted(starts)
    assert not Job.objects.exclude(state="succeeded").exists()
    assert not Tenant.objects.filter(name__startswith="Philly vc").exclude(parent__name="Philly").exists()


@pytest.mark.django_db(transaction=True)
def test_a_trace_comes_in_once(tmp_path: Path) -> None:
    path = written(tmp_path, rows(10, seed=7))
    imported(path)
    before = everything()
    for more in ((), ("--name", "Later"), ("--nodes", "7")):
        with pytest.raises(CommandError, match="has already been imported as Philly"):
            imported(path, *more)
    # The same jobs, in a file with other line ends and other model names.
    path.write_text(path.read_text().replace("resnet", "vgg").replace("\n", "\r\n"))
    with pytest.raises(CommandError, match="has already been imported as Philly"):
        imported(path)
    path = written(tmp_path, rows(10, seed=8))
    with pytest.raises(CommandError, match="A cluster named Philly already exists"):
        imported(path)
    with pytest.raises(CommandError, match="must end in the past"):
        imported(path, "--name", "Later", "--begins", "2996-01-01T00:00Z")
    with pytest.raises(CommandError, match="not a full hour"):
        imported(path, "--name", "Later", "--begins", "2026-04-01T00:30Z")
    create_tenant(actor=None, name="Later", parent=None)
    with pytest.raises(CommandError, match="A team with this name"):
        imported(path, "--name", "Later")
    assert everything() == before + 2  # the new rows are the team Later and its audit event


class Killed(BaseException):
    """Raised where the test kills the process. As a BaseException it is not caught by `except Exception`."""


def everything() -> int:
    """Returns the total number of rows in the tables that an import writes."""
    models = (
        Tenant, User, Membership, Generation, Cluster, Node, NodeChange, Job, JobEvent, Lease, HeldGpu, UsageSegment,
        AuditEvent, ClosedBook,
    )  # fmt: skip
    return sum(model.objects.count() for model in models)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("step", ["add_within", "_create_nodes", "bill", "archive_within"])
def test_a_kill_in_the_middle_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path, before = written(tmp_path, rows(40, seed=9)), everything()
    real, calls = getattr(imports, step), []

    def killed(*args: object, **fields: object) -> object:
        calls.append(step)
        real(*args, **fields)
        raise Killed

    monkeypatch.setattr(imports, step, killed)
    with pytest.raises(Killed):
        imported(path)
    assert calls == [step]
    assert everything() == before
    monkeypatch.undo()
    imported(path)
    assert Job.objects.count() == sum(1 for _, _, gpus, _, lasts in rows(40, seed=9) if gpus and lasts)


@pytest.mark.django_db(transaction=True)
def test_hours_that_a_kill_left_open_are_closed_when_the_command_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, rows(60, seed=10))

    def killed(*, cluster_id: int, at_most: int) -> int:
        close_hours(cluster_id=cluster_id, at_most=3)
        raise Killed

    monkeypatch.setattr(import_trace, "close_hours", killed)
    with pytest.raises(Killed):
        imported(path)
    monkeypatch.undo()
    cluster = Cluster.objects.get(name="Philly")
    left, bills = hours_to_close(cluster), UsageSegment.objects.count()
    assert left > 0
    assert f"closed {left} of {left} hours" in imported(path)
    assert hours_to_close(cluster) == 0
    assert UsageSegment.objects.count() == bills
    assert cluster.detached_at is not None
    assert capacity_report(BEGINS, cluster.detached_at, book=cluster.pk).classes_close
    call_command("verify_ledger", stdout=StringIO())
    with pytest.raises(CommandError, match="has already been imported"):
        imported(path)


@pytest.mark.django_db(transaction=True)
def test_a_bad_line_at_the_end_leaves_nothing_behind(tmp_path: Path) -> None:
    path, before = written(tmp_path, rows(20, seed=11)), everything()
    good = path.read_bytes()
    for bad, why in (
        (b"99,vc_0,1,5,0,m,many,0\n", "line 22: duration must be a whole number"),
        (b"99,vc_0,1,5,0,m\xff,9,0\n", "line 22: not valid UTF-8"),
        (
            b"99,vc_0,999,5,0,m,9,0\n",
            "line 22: job 99 requests 999 GPUs; 6 nodes with 8 GPUs each are too few",
        ),
        (b"99,vc_0,1,5,0,m,99999999999,0\n", "line 22: .*has a name or number that is not accepted"),
        (b'99,"vc_0,1,5,0,m,9,0\n', "line 22: unexpected end of data"),
        (b"99," + b"v" * 51 + b",1,5,0,m,9,0\n", "line 22: .*has a name or number that is not accepted"),
    ):
        path.write_bytes(good + bad)
        with pytest.raises(CommandError, match=why):
            imported(path)
    with pytest.raises(CommandError, match="at least one node"):
        imported(path, "--gpus-per-node", "0")
    with pytest.raises(CommandError, match="No such file"):
        imported(tmp_path / "nothing.csv")
    assert everything() == before


@pytest.mark.django_db(transaction=True)
def test_imported_teams_take_no_share_from_those_that_are_there(tmp_path: Path) -> None:
    lab = world()
    imported(written(tmp_path, rows(20, seed=12)))
    assert (
        not Tenant.objects.filter(path__startswith=Tenant.objects.get(name="Philly").path).active().exists()
    )
    now = now_from_database()
    seen = read_past(lab.cluster, now, now + timedelta(hours=1))
    assert dict(zip(seen.tenants, seen.past.parts, strict=True)) == {
        lab.people.uni.pk: 0, lab.people.astro.pk: 0.5, lab.people.bio.pk: 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("job_id,user,num_gpu,duration\n", "no column submit_time"),
        (f"{HEADER}\n1,a,x,0,0,m,5,0\n", "line 2: num_gpu must be a whole number"),
        (f"{HEADER}\n1,a,1,-5,0,m,5,0\n", "line 2: .*has a name or number that is not accepted"),
        (f"{HEADER}\n1,a,1,5,0,m,5,0\n1,b,1,5,0,m,5,0\n", "line 3: job 1 occurs twice"),
        (f"{HEADER}\n1,a,1\n", "line 2"),
        (f'{HEADER}\n1,"a,1,5,0,m,5,0\n2,b,1,5,0,m,5,0\n', "line 2: unexpected end of data"),
        (
            "num_gpu,submit_time,duration,user,job_id\n1,1,1,a\n",
            "line 2: .*has a name or number that is not accepted",
        ),
    ],
)
def test_an_invalid_trace_is_refused_with_its_line(text: str, why: str) -> None:
    with pytest.raises(BadTrace, match=why):
        read_trace(StringIO(text))


def test_a_gang_that_fits_on_no_nodes_is_refused_by_number() -> None:
    job = TraceJob("9", "a", 15, 0, 60)  # three workers of five GPUs; a node of eight fits one worker
    with pytest.raises(BadTrace, match="job 9 requests 15 GPUs; 2 nodes with 8 GPUs each are too few"):
        replay([job], nodes=2, gpus_per_node=8)
    assert len(replay([job], nodes=3, gpus_per_node=8)) == 1


@given(st.integers(1, 200), st.integers(1, 16))
def test_a_gang_has_all_its_gpus_in_equal_workers_that_fit_on_a_node(gpus: int, per_node: int) -> None:
    workers, each = gang(gpus, per_node)
    assert workers * each == gpus
    assert each <= per_node
    assert workers == 1 or gpus > per_node
