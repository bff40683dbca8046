"""Users create, follow, cancel and repeat pipelines on pages, and see their graph."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from accounting.core.clock import now_from_database
from accounting.models import Membership
from portal.pipelines.graph import columns_of, draw, ranks_of
from portal.submit.fields import Fields, digest
from scheduling.models import Job, Pipeline
from scheduling.pipelines.actions import cancel_pipeline
from tests.make import membership, user
from tests.portal.scene import Scene
from tests.scheduling.piped import defined, make, step

WRITTEN = "name: digits\nsteps:\n  a: {command: go}\n  b: {needs: [a], command: go}\n"


@pytest.fixture
def bob(scene: Scene, browser_of) -> Client:
    return browser_of(scene.people.bob)


def text_of_page(response: Any) -> str:
    return re.sub(r"\s+", " ", response.content.decode())


def posted(scene: Scene, **changes: object) -> dict[str, object]:
    place = {"team": scene.people.astro.pk, "cluster": scene.world.cluster.pk}
    return {**place, "yaml": WRITTEN, "request_key": "k1", **changes}


def ended(scene: Scene) -> Pipeline:
    """Returns a pipeline of Bob's that was cancelled before its first step."""
    pipeline = make(scene.world, definition=defined(name="supernova-line"))
    cancel_pipeline(actor=scene.people.bob, pipeline=pipeline)
    return step(pipeline)


def test_a_right_form_becomes_a_pipeline(scene: Scene, bob: Client) -> None:
    assert "FAIRLOT_INPUT_PREPARE" in text_of_page(bob.get("/pipelines/new/"))
    response = bob.post("/pipelines/new/", posted(scene))
    made = Pipeline.objects.get()
    assert (response.status_code, response["Location"]) == (302, f"/pipelines/{made.pk}/")
    assert (made.owner, made.tenant, made.name) == (scene.people.bob, scene.people.astro, "digits")
    assert bob.post("/pipelines/new/", posted(scene))["Location"] == f"/pipelines/{made.pk}/"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"yaml": WRITTEN.replace("[a]", "[z]")}, "steps.b.needs: z is no step of this pipeline"),
        ({"yaml": "a: ["}, "The YAML cannot be read"),
        ({"yaml": "steps: {a: {comand: x}}\nname: x"}, "characters. steps.a.comand: is not"),
        ({"yaml": WRITTEN.replace("go}", "go, workers: 0}", 1)}, "steps.a.workers: must be"),
        ({"team": 10**6}, "Choose an option"),
    ],
)
def test_a_wrong_form_says_what_is_wrong(
    scene: Scene, bob: Client, changes: dict[str, Any], says: str
) -> None:
    response = bob.post("/pipelines/new/", posted(scene, **changes))
    assert response.status_code == 422
    assert says in text_of_page(response)
    assert not Pipeline.objects.exists()


def test_a_team_of_others_is_no_choice(scene: Scene, bob: Client) -> None:
    assert bob.post("/pipelines/new/", posted(scene, team=scene.people.bio.pk)).status_code == 422


def test_a_clone_and_a_job_fill_the_form(scene: Scene, bob: Client, browser_of) -> None:
    pipeline = make(scene.world, definition=defined(name="supernova-line"))
    assert "name: supernova-line" in text_of_page(bob.get(f"/pipelines/new/?clone={pipeline.pk}"))
    html = text_of_page(bob.get(f"/pipelines/new/?job={scene.job.pk}"))
    assert f"needs: - {scene.job.pk}" in html
    charlie = browser_of(scene.people.charlie)
    for query in (f"clone={pipeline.pk}", f"job={scene.job.pk}", "clone=x"):
        assert charlie.get(f"/pipelines/new/?{query}").status_code == 404


def test_the_page_shows_the_graph_and_each_step(scene: Scene, bob: Client) -> None:
    pipeline = step(make(scene.world, {"prepare": [], "train": ["prepare", scene.job.pk]}))
    html = text_of_page(bob.get(f"/pipelines/{pipeline.pk}/"))
    assert 'aria-label="prepare: Queued"' in html
    assert f'<a href="/jobs/{scene.job.pk}/" aria-label="job {scene.job.pk}: Running">' in html
    assert 'href="#step-train" aria-label="train: Not submitted"' in html
    assert html.count("marker-end") == 2
    job = pipeline.steps.get(name="prepare").job_id
    head = text_of_page(bob.get(f"/jobs/{job}/"))
    assert f'step prepare of the pipeline <a href="/pipelines/{pipeline.pk}/">digits</a>' in head
    listed = text_of_page(bob.get(f"/jobs/?pipeline={pipeline.pk}"))
    assert "digits-prepare" in listed
    assert "supernova-next" not in listed
    assert "1 not submitted, 1 submitted" in text_of_page(bob.get("/pipelines/"))


def test_a_failed_step_says_why(scene: Scene, bob: Client) -> None:
    pipeline = step(make(scene.world))
    first = pipeline.steps.select_related("job").first()
    assert first is not None
    assert first.job is not None
    Job.objects.filter(pk=first.job_id).update(
        state=Job.State.FAILED, ended_at=now_from_database(), exit_code=137
    )
    step(pipeline)
    assert "SIGKILL" in text_of_page(bob.get(f"/pipelines/{pipeline.pk}/"))


def test_cancelling_and_running_again(scene: Scene, bob: Client) -> None:
    pipeline = make(scene.world)
    page = f"/pipelines/{pipeline.pk}/"
    assert "Keep the pipeline" in text_of_page(bob.get(page)), "two buttons of one dialog do not say Cancel"
    html = text_of_page(bob.post(f"{page}cancel/", follow=True))
    assert "has been cancelled" in html
    assert "Cancelled by bob." in html
    assert "Run from here" in html
    assert "digits runs again from train." in text_of_page(
        bob.post(f"{page}run-again/", {"step": "train"}, follow=True)
    )
    assert "has not ended" in text_of_page(bob.post(f"{page}run-again/", follow=True))


@pytest.mark.parametrize("role", [Membership.Role.VIEWER, Membership.Role.MEMBER])
def test_a_user_who_only_sees_a_pipeline_cannot_change_it(scene: Scene, browser_of, role: str) -> None:
    pipeline, other = ended(scene), user("vera")
    membership(other, scene.people.astro, role=role)
    browser, page = browser_of(other), f"/pipelines/{pipeline.pk}/"
    assert "Run from here" not in text_of_page(browser.get(page))
    for verb in ("cancel", "run-again"):
        shown = text_of_page(browser.post(f"{page}{verb}/", follow=True))
        assert "Only the owner, a manager of the team or an operator" in shown


def test_for_others_it_does_not_exist(scene: Scene, browser_of) -> None:
    pipeline, charlie = ended(scene), browser_of(scene.people.charlie)
    assert charlie.get(f"/pipelines/{pipeline.pk}/").status_code == 404
    for verb in ("cancel", "run-again"):
        assert charlie.post(f"/pipelines/{pipeline.pk}/{verb}/").status_code == 404
    assert "supernova" not in text_of_page(charlie.get("/pipelines/"))
    assert "supernova" not in text_of_page(charlie.get(f"/jobs/?pipeline={pipeline.pk}"))


def test_more_steps_need_no_more_queries(scene: Scene, bob: Client) -> None:
    def queries(needs: dict[str, list[Any]]) -> int:
        pipeline = make(scene.world, needs)
        with CaptureQueriesContext(connection) as counted:
            assert bob.get(f"/pipelines/{pipeline.pk}/").status_code == 200
        return len(counted)

    few = queries({"a": [], "b": ["a"]})
    assert queries({"a": [], **{f"s{number}": ["a"] for number in range(40)}}) == few
    assert few <= 16


# --- the graph -----------------------------------------------------------------------------------

NAMES = [*"abcdefgh"]


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, list[str]]:
    """Draws steps that need only earlier ones, in any order of writing."""
    needs = {
        name: draw(st.lists(st.sampled_from(NAMES[:place]), unique=True)) if place else []
        for place, name in enumerate(NAMES)
    }
    return {name: needs[name] for name in draw(st.permutations(NAMES))}


@given(graphs())
def test_every_step_stands_right_of_what_it_needs(needs: dict[str, list[str]]) -> None:
    ranks = ranks_of(needs)
    for name, wanted in needs.items():
        assert ranks[name] == max((ranks[one] + 1 for one in wanted), default=0)
    columns = columns_of(needs)
    assert [sorted(column) for column in columns] == [
        sorted(name for name in needs if ranks[name] == number) for number in range(len(columns))
    ]


def test_boxes_do_not_overlap_and_lie_within_the_drawing(scene: Scene) -> None:
    needs: dict[str, list[Any]] = {
        "a": [],
        "b": ["a"],
        "c": ["a"],
        "d": ["b", "c", scene.job.pk],
        "e": ["a", "d"],
    }
    steps = list(make(scene.world, needs).steps.prefetch_related("needs__on", "needs__job"))
    graph = draw(steps, {})
    places = [(box.x, box.y) for box in graph.boxes]
    assert len(places) == len(set(places)) == 6
    assert all(x >= 0 and x + 176 <= graph.width and y >= 0 and y + 56 <= graph.height for x, y in places)
    for one in graph.boxes:
        for other in graph.boxes:
            assert one is other or one.x != other.x or abs(one.y - other.y) >= 56
    assert len(graph.lines) == 7


# --- a job that needs others ---------------------------------------------------------------------


def submitted(**changes: object) -> dict[str, object]:
    """Returns the fields of the submit form as a browser sends them, with `changes`."""
    fields = Fields(name="after", command="go")
    yaml = fields.to_yaml()
    texts = {name: getattr(fields, name) for name in Fields.__dataclass_fields__}
    return texts | {"yaml": yaml, "agreed": digest(yaml), "request_key": "k1", "do": "submit"} | changes


def test_the_form_of_a_job_takes_the_jobs_that_it_needs(scene: Scene, bob: Client) -> None:
    assert 'name="needs"' in text_of_page(bob.get("/submit/"))
    response = bob.post("/submit/", submitted(needs=f"#{scene.job.pk}, {scene.waiting.pk}"))
    made = Pipeline.objects.get()
    assert (response.status_code, response["Location"]) == (302, f"/pipelines/{made.pk}/")
    assert {need.job_id for need in made.steps.get().needs.all()} == {scene.job.pk, scene.waiting.pk}


@pytest.mark.parametrize(
    ("needs", "says"),
    [("train", "must be numbers of jobs"), ("other", "is no job of Astro"), ("0", "must be")],
)
def test_wrong_needs_are_named_beside_their_field(scene: Scene, bob: Client, needs: str, says: str) -> None:
    needs = str(scene.other.pk) if needs == "other" else needs
    response = bob.post("/submit/", submitted(needs=needs))
    assert response.status_code == 422
    assert says in re.search(r'id="problem-needs"[^>]*>([^<]*)<', response.content.decode())[1].replace(
        "Must", "must"
    )
    assert f'name="needs" value="{needs}"' in text_of_page(response)
    assert not Pipeline.objects.exists()
