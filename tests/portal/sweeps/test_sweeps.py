"""Users create, compare, cancel and repeat sweeps on pages and in the API."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import given

from accounting.core.clock import now_from_database
from accounting.models import Generation, Membership
from portal.models import Scope
from portal.submit.fields import Fields, digest
from portal.sweeps.chart import HEIGHT, Chart, Scale, draw
from portal.sweeps.curves import curves_of
from portal.sweeps.texts import read_parameters, write_parameters
from portal.tokens.actions import create_token
from scheduling.backends.local.files import JobFiles
from scheduling.clusters.backend_factory import backend_for
from scheduling.jobs.explain import explain
from scheduling.models import Cluster, Job, JobForecast, MetricStream, Sweep, SweepMember
from scheduling.spec.job_spec import SpecError
from scheduling.sweeps.distributions import read_value
from scheduling.sweeps.parameters import Parameters, text_of
from scheduling.sweeps.tables import best_of
from tests.make import membership, user
from tests.portal.jobs.test_metrics import record
from tests.portal.scene import Scene
from tests.scheduling.sweeps.test_parameters import DESCRIPTIONS
from tests.scheduling.swept import LR, array, make, spec, step

API = "/api/v1/sweeps"


def posted(**changes: object) -> dict[str, object]:
    """Returns the fields of the form as a browser sends them, with `changes`."""
    fields = Fields(name="tune", command="python train.py {lr}")
    yaml = fields.to_yaml()
    texts = {name: getattr(fields, name) for name in Fields.__dataclass_fields__}
    swept = {
        "kind": "grid", "parameters": "lr = 0.1, 0.01\r\nopt = adam, sgd", "count": "", "seed": "7", "at_once": "3",
        "metric": "loss", "goal": "min", "stop_at": "0.5", "stop_cancels": "on",
        "median_after": "100",
    }  # fmt: skip
    rest = {"yaml": yaml, "agreed": digest(yaml), "request_key": "k1", "do": "submit", "page": "sweep"}
    return texts | swept | rest | changes


def drawn(sweep: Sweep) -> Chart | None:
    return draw(sweep, best_of(sweep, 300))


@pytest.fixture
def bob(scene: Scene, browser_of) -> Client:
    return browser_of(scene.people.bob)


def text_of_page(response: Any) -> str:
    return re.sub(r"\s+", " ", response.content.decode())


def problem_of(html: str, field: str) -> str:
    return re.search(rf'id="problem-{field}"[^>]*>([^<]*)<', html)[1]


def ended(scene: Scene, count: int = 4) -> Sweep:
    """Returns a sweep of Bob's whose members have ended: losses fall with the index, and the last member failed."""
    grid = Parameters("grid", grid={"lr": [10**-power for power in range(count)]})
    sweep = step(make(scene.world, grid, metric="loss", spec=spec(name="supernova-tune")))
    for member in sweep.members.all():
        member.state = "failed" if member.index == count - 1 else "succeeded"
        member.metrics = {"loss": 1 / (1 + member.index), "step": 90}
        member.save()
    sweep.jobs.update(state="succeeded", ended_at=sweep.created_at)
    sweep.counts = {"succeeded": count - 1, "failed": 1}
    sweep.metric_names, sweep.state, sweep.ended_at = ["loss", "step"], "finished", sweep.created_at
    sweep.save()
    return sweep


# --- the form ------------------------------------------------------------------------------------


def test_a_right_form_becomes_a_sweep(scene: Scene, bob: Client) -> None:
    response = bob.post("/sweeps/new/", posted())
    made = Sweep.objects.get()
    assert (response.status_code, response["Location"]) == (302, f"/sweeps/{made.pk}/")
    assert (made.owner, made.tenant, made.name) == (scene.people.bob, scene.people.astro, "tune")
    assert (made.at_once, made.metric, made.stop_at, made.stop_cancels) == (3, "loss", 0.5, True)
    assert made.median_after == 100
    assert 'value="100"' in bob.get(f"/sweeps/new/?clone={made.pk}").content.decode()
    rules = text_of_page(bob.get(f"/sweeps/{made.pk}/"))
    assert "from step 100 on, if loss is worse than the median of the others" in rules
    assert list(made.members.values_list("parameters", flat=True)) == [
        {"lr": lr, "opt": opt} for lr in (0.1, 0.01) for opt in ("adam", "sgd")
    ]
    assert bob.post("/sweeps/new/", posted())["Location"] == f"/sweeps/{made.pk}/"
    assert Sweep.objects.count() == 1


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"parameters": "lr"}, "parameters", "line 1 must be a name"),
        ({"parameters": "lr = 1\nlr = 2"}, "parameters", "a second time"),
        ({"parameters": ""}, "parameters", "at least one"),
        ({"kind": "random", "parameters": "lr = gauss(0, 1)", "count": "3"}, "parameters", "log_uniform"),
        ({"kind": "random", "parameters": "lr = int(1, 5)", "count": "x"}, "count", "whole number"),
        ({"kind": "list", "parameters": "a,b\n1"}, "parameters", "row 2 has 1 values"),
        ({"at_once": "many"}, "at_once", "whole number"),
        ({"stop_at": "low"}, "stop_at", "number"),
        ({"metric": "", "stop_at": "1"}, "metric", "must be set"),
        ({"metric": "", "stop_at": "", "median_after": "5"}, "metric", "must be set"),
        ({"median_after": "-1"}, "median_after", "whole number"),
        ({"median_after": "soon"}, "median_after", "whole number"),
        ({"variables": "lr=1"}, "variables", "must not contain lr"),
    ],
)
def test_a_wrong_form_says_what_is_wrong_beside_the_field(
    scene: Scene, bob: Client, changes: dict[str, str], field: str, says: str
) -> None:
    response = bob.post("/sweeps/new/", posted(**changes))
    assert response.status_code == 422
    assert says in problem_of(response.content.decode(), field).lower()
    assert not Sweep.objects.exists()
    if field != "variables" and changes.get("parameters") != "":
        shown = bob.post("/sweeps/preview/", posted(**changes)).content.decode()
        assert says in problem_of(shown, field).lower()


def test_the_preview_shows_the_first_commands(scene: Scene, bob: Client) -> None:
    html = text_of_page(bob.post("/sweeps/preview/", posted(parameters="lr = 1, 2, 3, 4, 5, 6")))
    assert "6 jobs, of which these are the first 5" in html
    assert re.search(
        r'id="sweep-summary"[^>]*>6 members with 1 GPU each · from \d[^<]* if each runs 1 h', html
    )
    assert "python train.py 5<" in html
    assert "python train.py 6<" not in html
    assert not Sweep.objects.exists()


def test_the_preview_shows_what_differs_and_folds_the_commands(scene: Scene, bob: Client) -> None:
    html = text_of_page(bob.post("/sweeps/preview/", posted(parameters="lr = 1e-5, 0.1")))
    for place, text in enumerate(("1e-05", "0.1")):
        member = re.search(rf'<details class="fold" id="previewed-{place}" data-kept>(.*?)</details>', html)
        assert member is not None
        summary, command = member[1].split("</summary>")
        assert f"<code>lr={text}</code>" in summary
        assert "python" not in summary
        assert f"python train.py {text}<" in command
    html = text_of_page(bob.post("/sweeps/preview/", posted(kind="array", count="2")))
    assert "<code>index=1</code>" in html


def test_the_preview_says_what_all_members_cost_and_under_which_assumption(scene: Scene, bob: Client) -> None:
    fields = {"gpus_per_worker": "2", "generations": "V100"}
    html = unescape(text_of_page(bob.post("/sweeps/preview/", posted(**fields, expected_hours="1.5"))))
    assert "4 members with 2 GPUs each, at most 3 at once: 6 GPUs" in html
    assert "An hour of a member</dt><dd>2.40 EUR on V100" in html
    assert "An hour of 3 at once</dt><dd>7.20 EUR on V100" in html
    assert "If each runs 1 h 30 min</dt><dd>12 GPU-hours: 14.40 EUR on V100" in html
    assert "the run time that you expect" in html
    new = {
        "spec": {"name": "tune", "command": "go {lr}", "gpus_per_worker": 2, "generations": ["V100"]},
        "parameters": {"kind": "grid", "grid": {"lr": [1, 2]}},
    }

    def preview(**more: object) -> Any:
        return bob.post(f"{API}/preview", json.dumps(new | more), content_type="application/json")

    found = preview(at_once=1).json()["estimate"]
    assert (found["gpus_per_member"], found["at_once"], found["hours"], found["basis"]) == (
        2,
        1,
        1,
        "an_hour",
    )
    assert (found["gpu_hours"], float(found["cost"]["V100"]), found["currencies"]["V100"]) == (4, 4.8, "EUR")
    assert preview(at_once=0).status_code == preview(cluster="nowhere").status_code == 422
    assert preview(team=scene.people.bio.slug).status_code == 422
    Cluster.objects.create(name="another")
    assert preview().json()["estimate"] is None
    assert preview(cluster=scene.world.cluster.name).json()["estimate"] == found | {"at_once": None}


def test_what_was_typed_for_another_kind_stays_and_is_not_read(scene: Scene, bob: Client) -> None:
    others = {"count": "x", "seed": "y"}
    html = text_of_page(bob.post("/sweeps/preview/", posted(**others)))
    assert "4 jobs" in html
    assert problem_of(html, "count") == problem_of(html, "seed") == ""
    assert bob.post("/sweeps/new/", posted(**others)).status_code == 302
    assert Sweep.objects.get().parameters["kind"] == "grid"
    shown = bob.post("/sweeps/new/", posted(**others, do="form")).content.decode()
    assert 'name="count" value="x"' in shown


def test_a_clone_and_a_job_fill_the_form(scene: Scene, bob: Client, browser_of) -> None:
    drawn = {
        "lr": {"distribution": "uniform", "low": 0, "high": 1},
        "b": {"distribution": "int", "low": 1, "high": 2},
    }
    sweep = make(scene.world, Parameters("random", random=drawn, count=3, seed=11))
    html = text_of_page(bob.get(f"/sweeps/new/?clone={sweep.pk}"))
    assert "lr = uniform(0, 1) b = int(1, 2)" in html
    assert 'value="11"' in html
    assert "supernova" in text_of_page(bob.get(f"/sweeps/new/?job={scene.job.pk}"))
    charlie = browser_of(scene.people.charlie)
    for query in (f"clone={sweep.pk}", f"job={scene.job.pk}", "clone=x"):
        assert charlie.get(f"/sweeps/new/?{query}").status_code == 404


@given(DESCRIPTIONS)
def test_written_parameters_are_read_back_to_the_same_members(described: Parameters) -> None:
    read = read_parameters(
        described.kind, write_parameters(described), count=described.count, seed=described.seed
    )
    read.check()

    def texts(parameters: Parameters) -> list[dict[str, str]]:
        return [
            {name: text_of(value).strip() for name, value in values.items()} for values in parameters.expand()
        ]

    assert [list(one) for one in texts(read)] == [list(one) for one in texts(described)]
    for one, other in zip(texts(read), texts(described), strict=True):
        for name, text in one.items():
            assert text == other[name] or float(text) == float(other[name])


def test_csv_with_names_twice_is_refused() -> None:
    with pytest.raises(SpecError, match="once"):
        read_parameters("list", "a,a\n1,2", count=None, seed=None)


# --- its pages -----------------------------------------------------------------------------------


def test_the_page_lists_members_the_best_first_and_sorts_by_any_column(scene: Scene, bob: Client) -> None:
    sweep = ended(scene)
    page = f"/sweeps/{sweep.pk}/"

    def order(query: str = "") -> list[int]:
        return [
            int(index)
            for index in re.findall(r'id="member-(\d+)"', bob.get(f"{page}{query}").content.decode())
        ]

    assert order() == [3, 2, 1, 0]
    assert order("?sort=p.lr") == [3, 2, 1, 0]
    assert order("?sort=-p.lr") == order("?sort=-m.loss") == order("?sort=index") == [0, 1, 2, 3]
    assert order("?state=failed") == [3]
    assert order("?state=pending") == []
    html = text_of_page(bob.get(page))
    assert "Best member</dt><dd>2, with loss 0.333333" in html
    assert "Succeeded 3" in html
    assert "Run the failed again" in html
    assert 'class="sweep-best"' in html
    heads = re.findall(r"sort=-?([\w.]+)", html.partition("<thead>")[2].partition("</thead>")[0])
    assert heads == ["index", "state", "m.loss", "p.lr", "m.step", "attempts"]
    first = html.partition("<tbody>")[2].partition("</tr>")[0]
    assert re.findall(r"<t[dh][^>]*>([\w.]+|<code>.*?)</", first) == ["3", "0.25", "<code>0.001", "90", "1"]
    assert "supernova-tune" in text_of_page(bob.get("/sweeps/"))
    job = sweep.members.get(index=0).job_id
    assert f'member 0 of the sweep <a href="{page}">supernova-tune</a>' in text_of_page(
        bob.get(f"/jobs/{job}/")
    )
    listed = text_of_page(bob.get(f"/jobs/?sweep={sweep.pk}"))
    assert "supernova-tune-0" in listed
    assert "supernova-next" not in listed


def test_the_page_says_why_members_wait_what_they_cost_and_why_others_failed(
    scene: Scene, bob: Client, jobs_folder: Path
) -> None:
    sweep = step(make(scene.world, array(4)))
    page, first = f"/sweeps/{sweep.pk}/", sweep.jobs.order_by("sweep_index")[0]
    html = text_of_page(bob.get(page))
    assert f'4 submitted members wait. The first, <a href="/jobs/{first.pk}/">job {first.pk}</a>: ' in html
    assert explain(first, reader=scene.people.bob).sentence in unescape(html)
    assert "no cost yet" in html
    assert "expected to start" not in html
    now = timezone.now()
    late = {"earliest": now + timedelta(hours=1), "starts_by": now + timedelta(hours=2)}
    JobForecast.objects.create(job=first, at=now, **late)
    assert "It is expected to start between" in text_of_page(bob.get(page))

    counts = []
    for job, log, ended in zip(
        sweep.jobs.order_by("sweep_index"),
        (b"step 1\nRuntimeError: <boom>\n", b"", b""),
        (
            {"exit_code": 1},
            {"exit_code": 137},
            {"end_code": "time_limit", "end_detail": {"whose": "the job", "hours": 2}},
        ),
        strict=False,
    ):
        path = JobFiles(backend_for(job.cluster).root, job.pk).log(0)
        path.parent.mkdir(parents=True)
        path.write_bytes(log)
        ended |= {"first_started_at": now, "first_generation": Generation.objects.first()}
        Job.objects.filter(pk=job.pk).update(state="failed", ended_at=now, **ended)
        sweep.members.filter(job=job).update(state="failed")
        with CaptureQueriesContext(connection) as counted:
            bob.get(page)
        counts.append(len(counted))
    assert len(set(counts)) == 1, counts
    html = text_of_page(bob.get(page))
    assert "1 submitted member waits" in html
    assert "Why it ended" in html
    assert 'small">RuntimeError: &lt;boom&gt;</td>' in html
    assert "memory ran out" in html
    assert "Stopped: the time limit of the job is 2 h" in html
    _, token = create_token(actor=scene.people.bob, name="t", scopes=Scope.values, days=1)
    headers = {"authorization": f"Bearer {token}"}
    members = Client().get(f"/api/v1/sweeps/{sweep.pk}/members", headers=headers).json()["items"]
    assert [one["cause"][:12] for one in members] == ["RuntimeError", "The program ", "Stopped: the", ""]


def test_cancelling_and_running_again(scene: Scene, bob: Client) -> None:
    sweep = ended(scene)
    page = f"/sweeps/{sweep.pk}/"
    assert "run again." in text_of_page(bob.post(f"{page}run-failed/", follow=True))
    assert sweep.members.get(index=3).state == "pending"
    html = text_of_page(bob.post(f"{page}cancel/", follow=True))
    assert "has been cancelled" in html
    assert "Cancelled by bob." in html
    assert "was cancelled" in text_of_page(bob.post(f"{page}run-failed/", follow=True))


@pytest.mark.parametrize("role", [Membership.Role.VIEWER, Membership.Role.MEMBER])
def test_a_user_who_only_sees_a_sweep_cannot_change_it(scene: Scene, browser_of, role: str) -> None:
    sweep, other = ended(scene), user("vera")
    membership(other, scene.people.astro, role=role)
    browser, page = browser_of(other), f"/sweeps/{sweep.pk}/"
    assert "Run the failed again" not in text_of_page(browser.get(page))
    for verb in ("cancel", "run-failed"):
        shown = text_of_page(browser.post(f"{page}{verb}/", follow=True))
        assert "Only the owner, a manager of the team or an operator" in shown
        assert browser.post(f"{API}/{sweep.pk}/{verb}").status_code == 403
    sweep.refresh_from_db()
    assert sweep.state == "finished"


def test_for_others_it_does_not_exist(scene: Scene, browser_of) -> None:
    sweep, charlie = ended(scene), browser_of(scene.people.charlie)
    for path in ("", "members.csv"):
        assert charlie.get(f"/sweeps/{sweep.pk}/{path}").status_code == 404
    for path in ("", "/members", "/members?format=csv"):
        assert charlie.get(f"{API}/{sweep.pk}{path}").status_code == 404
    for verb in ("cancel", "run-failed"):
        assert charlie.post(f"/sweeps/{sweep.pk}/{verb}/").status_code == 404
        assert charlie.post(f"{API}/{sweep.pk}/{verb}").status_code == 404
    assert charlie.get(API).json()["items"] == []
    assert "supernova" not in text_of_page(charlie.get("/sweeps/"))
    assert "supernova" not in text_of_page(charlie.get(f"/jobs/?sweep={sweep.pk}"))


def test_the_csv_file_has_all_members_and_no_formulas(scene: Scene, bob: Client) -> None:
    sweep = make(scene.world, Parameters("grid", grid={"opt": ["=1+1", "sgd"], "lr": [0.5]}))
    SweepMember.objects.filter(sweep=sweep, index=1).update(metrics={"loss": 0.25})
    Sweep.objects.update(metric_names=["loss"])
    for path in (f"/sweeps/{sweep.pk}/members.csv", f"{API}/{sweep.pk}/members?format=csv"):
        rows = list(csv.reader(io.StringIO(bob.get(path).content.decode())))
        assert rows == [
            ["index", "state", "attempts", "job", "opt", "lr", "metric loss"],
            ["0", "pending", "0", "", "'=1+1", "0.5", ""],
            ["1", "pending", "0", "", "sgd", "0.5", "0.25"],
        ]


def test_more_members_and_sweeps_need_no_more_queries(scene: Scene, bob: Client) -> None:
    def queries(url: str) -> int:
        with CaptureQueriesContext(connection) as counted:
            assert bob.get(url).status_code == 200
        return len(counted)

    small = make(scene.world, array(3))
    few = [queries("/sweeps/"), queries(f"/sweeps/{small.pk}/")]
    large = make(scene.world, array(10_000))
    assert [queries("/sweeps/"), queries(f"/sweeps/{large.pk}/?page=100")] == few
    assert few[1] <= 14


def test_members_at_work_show_their_latest_metrics_and_their_curves(scene: Scene, bob: Client) -> None:
    sweep = step(make(scene.world, LR, metric="loss", spec=spec(name="tune")))
    first, second = sweep.jobs.order_by("sweep_index")[:2]
    began = now_from_database() - timedelta(minutes=5)
    Job.objects.filter(pk__in=[first.pk, second.pk]).update(
        state="running", first_started_at=began, first_generation=scene.people.v100
    )
    page = f"/sweeps/{sweep.pk}/"
    html = text_of_page(bob.get(page))
    assert "loss over time" not in html
    record(first, MetricStream.Source.OUTPUT, {"loss": [2.0, 1.5, 1.25], "lr": [0.1] * 3})
    record(second, MetricStream.Source.EVENTS, {"loss": [3.0, 2.5]})
    html = bob.get(page).content.decode()
    cells = re.findall(r'<tr id="member-([01])".*?<td class="number">([^<]*)</td>', html, re.DOTALL)
    assert cells == [("0", "1.25"), ("1", "2.5")]
    curves = html.split('id="curves"')[1].split("</section>")[0]
    assert "loss over time" in curves
    assert curves.count("<path") >= 2
    assert "0: lr" in curves
    assert bob.get(f"{page}?sort=m.loss").status_code == 200


def test_the_curves_are_those_of_the_best_and_of_members_at_work(scene: Scene) -> None:
    sweep = ended(scene, 12)
    assert curves_of(sweep, best_of(sweep, 300)) is None, "no values over time are kept"
    for job in sweep.jobs.all():
        record(job, MetricStream.Source.OUTPUT, {"loss": [2.0, 1.0], "other": [1.0, 1.0]})
    sweep.members.filter(index__in=[0, 1]).update(state="active")
    sweep.jobs.update(first_started_at=sweep.created_at, first_generation=scene.people.v100)
    found = curves_of(sweep, best_of(sweep, 300))
    assert found is not None
    panels = [panel for _, some in found["charts"].groups for panel in some]
    assert [panel.title for panel in panels] == ["loss"]
    labels = [line.label.partition(":")[0] for line in panels[0].lines]
    assert labels == ["10", "9", "8", "0", "1", "7"], "member 11 failed"
    assert curves_of(make(scene.world, LR), []) is None, "without a metric"


def test_a_user_chooses_the_members_whose_curves_are_drawn(scene: Scene, bob: Client) -> None:
    sweep = ended(scene, 12)
    for job in sweep.jobs.all():
        record(job, MetricStream.Source.OUTPUT, {"loss": [2.0, 1.0]})
    sweep.jobs.update(first_started_at=sweep.created_at, first_generation=scene.people.v100)

    def drawn(url: str) -> tuple[list[int], dict[int, str]]:
        """Returns the members that are drawn, and where the link in the row of each member leads."""
        response = bob.get(url)
        rows = re.findall(
            r'<tr id="member-(\d+)".*?href="(\?[^"]*)#curves"', response.content.decode(), re.DOTALL
        )
        return response.context["curves"]["drawn"], {int(index): unescape(link) for index, link in rows}

    page = f"/sweeps/{sweep.pk}/"
    usual, links = drawn(page)
    assert usual == [10, 9, 8, 7, 6, 5]
    assert 11 in links, "a failed member has a curve, too"
    now, links = drawn(page + links[11])
    assert now == [10, 9, 8, 7, 6, 11]
    now, _ = drawn(page + links[9])
    assert now == [10, 8, 7, 6, 11]
    assert drawn(f"{page}?curves=3")[0] == [3]
    assert drawn(f"{page}?curves=x,")[0] == usual
    assert "have no values of loss" in text_of_page(bob.get(f"{page}?curves=99"))


def test_the_page_asks_once_for_the_best_members(scene: Scene, bob: Client) -> None:
    sweep = ended(scene, 12)
    with CaptureQueriesContext(connection) as asked:
        html = text_of_page(bob.get(f"/sweeps/{sweep.pk}/"))
    assert sum("ROW_NUMBER" in one["sql"] for one in asked) == 1
    assert "12 members, the best first" in html
    assert [one.index for one in best_of(sweep, 2)] == [11, 10, 9], "11 failed"


# --- the chart -----------------------------------------------------------------------------------


def test_the_chart_has_an_axis_for_each_parameter_and_the_metric(scene: Scene) -> None:
    chart = drawn(ended(scene, 12))
    assert chart is not None
    assert [axis.name for axis in chart.axes] == ["lr", "loss"]
    assert chart.axes[0].is_logarithmic
    assert (chart.drawn, chart.best) == (12, 1)
    assert [is_best for _, is_best in chart.lines] == [False] * 11 + [True]
    assert chart.lines[-1][0] == f"M0,{HEIGHT}L1000,{HEIGHT}"
    assert drawn(make(scene.world, LR, metric="loss")) is None


def test_an_axis_orders_numbers_and_texts() -> None:
    assert Scale("a", [1, 2, 3]).parts() == [0, 0.5, 1]
    assert Scale("a", [5, 5]).parts() == [0.5, 0.5]
    assert Scale("a", [1, 10, 100]).parts() == pytest.approx([0, 0.5, 1])
    assert Scale("a", [1, 2, 4], by_ratio=True).parts() == pytest.approx([0, 0.5, 1])
    assert Scale("a", [0, 2, 4], by_ratio=True).parts() == [0, 0.5, 1]
    assert Scale("a", ["b", "a", 3]).parts() == [1, 0.5, 0]
    assert all(0 <= part <= 1 for part in Scale("a", [-1.7e308, 0, 1.7e308]).parts())


# --- the API -------------------------------------------------------------------------------------


def test_the_api_creates_previews_and_pages(scene: Scene, bob: Client) -> None:
    new = {
        "spec": {"name": "tune", "command": "go {lr}"},
        "parameters": {
            "kind": "random",
            "random": {"lr": {"distribution": "int", "low": 1, "high": 9}},
            "count": 5,
        },
    }
    shown = bob.post(
        f"{API}/preview",
        json.dumps(new | {"parameters": {"kind": "array", "count": 9}}),
        content_type="application/json",
    )
    assert (shown.status_code, shown.json()["size"], len(shown.json()["first"])) == (200, 9, 5)
    assert shown.json()["notes"] == [
        "{lr} is no parameter of this sweep, so it stays in the command as it is."
    ]
    keyed = {"content_type": "application/json", "headers": {"Idempotency-Key": "k"}}
    made, again = (bob.post(API, json.dumps(new), **keyed) for _ in range(2))
    assert made.status_code == 201, made.content
    body = made.json()
    assert body["id"] == again.json()["id"]
    assert (body["size"], body["counts"], body["names"]) == (5, {"pending": 5}, ["lr"])
    assert isinstance(body["parameters"]["seed"], int)
    first = bob.get(f"{API}/{body['id']}/members?limit=3").json()
    assert [one["index"] for one in first["items"]] == [0, 1, 2]
    rest = bob.get(f"{API}/{body['id']}/members?limit=3&after={first['next']}").json()
    assert ([one["index"] for one in rest["items"]], rest["next"]) == ([3, 4], None)
    assert bob.get(f"{API}/{body['id']}/members?state=failed").json()["items"] == []
    assert [one["id"] for one in bob.get(f"{API}?owner=bob&state=running").json()["items"]] == [body["id"]]
    wrong = bob.post(API, json.dumps(new | {"at_once": 0}), content_type="application/json")
    assert wrong.status_code == 422
    assert "at_once" in wrong.content.decode()
    assert bob.post(f"{API}/{body['id']}/cancel").json()["state"] == "cancelled"
    assert bob.post(f"{API}/{body['id']}/run-failed").status_code == 409


def test_the_api_names_the_best_member(scene: Scene, bob: Client) -> None:
    sweep = ended(scene)
    assert bob.get(f"{API}/{sweep.pk}").json()["best"]["index"] == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3.9", 3.9),
        ("3.10", "3.10"),
        ("1e-5", 1e-5),
        ("007", "007"),
        ("2024_01", "2024_01"),
        ("nan", "nan"),
        ("-2", -2),
    ],
)
def test_a_typed_value_is_a_number_only_if_that_does_not_change_it(text: str, value: object) -> None:
    assert repr(read_value(text)) == repr(value)


def test_a_value_that_is_too_long_for_csv_is_refused() -> None:
    with pytest.raises(SpecError, match="values with commas"):
        read_parameters("grid", f"lr = {'x' * 200_000}", count=None, seed=None)
