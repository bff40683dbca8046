"""Users create, follow, cancel and repeat pipelines on pages, and see their graph."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.db.models import F
from django.test import Client
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from accounting.core.clock import now_from_database
from accounting.models import Membership
from portal.pipelines.graph import columns_of, draw, ranks_of
from portal.submit.fields import Fields, digest
from scheduling.models import Draft, Job, Lease, Pipeline
from scheduling.pipelines.actions import cancel_pipeline
from scheduling.pipelines.definition import Definition
from scheduling.retention import remove_code
from tests.make import membership, user
from tests.portal.scene import Scene
from tests.scheduling.piped import defined, make, step
from tests.scheduling.swept import end as end_job

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
        (
            {"yaml": WRITTEN.replace("[a]", "[z]")},
            "<code>steps.b.needs</code>: z is no step of this pipeline",
        ),
        ({"yaml": "a: ["}, "The YAML cannot be read"),
        ({"yaml": "steps: {a: {comand: x}}\nname: x"}, "<code>steps.a.comand</code>: is not"),
        ({"yaml": WRITTEN.replace("go}", "go, workers: 0}", 1)}, "<code>steps.a.workers</code>: must be"),
        ({"yaml": WRITTEN.replace("go}", "go, gpus_per_worker: 0}", 1)}, "in a role with 0 GPUs"),
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


def preview(scene: Scene, bob: Client, text: str, **changes: object) -> str:
    return unescape(text_of_page(bob.post("/pipelines/preview/", posted(scene, yaml=text, **changes))))


def test_the_graph_follows_the_text_while_it_is_typed(scene: Scene, bob: Client) -> None:
    html = preview(
        scene, bob, WRITTEN.replace("command: go}", "command: go, workers: 2, gpus_per_worker: 4}", 1)
    )
    assert 'aria-label="a: 2 × 4 GPUs"' in html
    assert 'aria-label="b: 1 GPU"' in html
    assert html.count("marker-end") == 1
    assert "2 steps, nothing to correct." in html
    assert 'hx-swap-oob="true">2 steps · 1 to 8 GPUs each</p>' in html
    assert not Pipeline.objects.exists()
    # A step that is wrong is drawn as such, and so are the others.
    html = preview(scene, bob, WRITTEN + "  c: {needs: [b], comand: go}\n")
    assert 'aria-label="c: to be corrected"' in html
    assert "<code>steps.c.comand</code>: is not" in html
    assert html.count("marker-end") == 2
    html = preview(scene, bob, "steps: {a: {needs: [b]}, b: {needs: [a]}}")
    assert "these steps need each other" in preview(scene, bob, WRITTEN.replace("a: {", "a: {needs: [b], "))
    assert html.count("pipeline-box") == 2
    html = preview(scene, bob, "steps: [")
    assert "The YAML cannot be read in line 1" in html
    assert "Correct the YAML to see the graph" in html


def test_the_check_says_what_the_cluster_refuses_and_what_could_never_run(scene: Scene, bob: Client) -> None:
    text = (
        WRITTEN
        + "  c: {needs: [999999], command: go, generations: [A9000]}\n  d: {command: go, gpus_per_worker: 64}\n"
    )
    html = preview(scene, bob, text)
    assert "<code>steps.c.generations</code>: " in html
    assert "job 999999 is no job of Astro" in html
    assert re.search(r"<code>d</code>: [^<]*GPU", html)
    with CaptureQueriesContext(connection) as few:
        preview(scene, bob, WRITTEN)
    many = "name: x\nsteps:\n" + "".join(f"  s{n}: {{command: go {n}}}\n" for n in range(60))
    with CaptureQueriesContext(connection) as more:
        preview(scene, bob, many)
    assert len(more) == len(few), "steps that differ only in their commands are checked once"
    # Nothing is checked for a team of others.
    assert "Choose" not in preview(scene, bob, WRITTEN, team=scene.people.bio.pk)


def dropped(name: str, text: str) -> SimpleUploadedFile:
    return SimpleUploadedFile(name, text.encode())


def hidden(html: str) -> list[str]:
    return re.findall(r'name="code_upload" value="([^"]*)"', html)


def test_files_that_are_dropped_become_the_code_of_all_steps_or_of_one(scene: Scene, bob: Client) -> None:
    html = preview(scene, bob, WRITTEN, code_files=[dropped("all.py", "1")])
    assert "All steps that name no code" in html
    assert "all.py" in html
    one = hidden(html)
    html = preview(scene, bob, WRITTEN, code_upload=one, code_for="b", code_files=[dropped("train.py", "2")])
    both = hidden(html)
    assert [text.partition("=")[0] for text in both] == ["", "b"]
    response = bob.post("/pipelines/new/", posted(scene, code_upload=both))
    steps = {step.name: step.spec["code"]["upload"] for step in Pipeline.objects.get().steps.all()}
    assert response.status_code == 302
    assert [f"={steps['a']}", f"b={steps['b']}"] == both
    assert steps["a"] != steps["b"]
    removed = preview(scene, bob, WRITTEN, code_upload=both, code_remove="")
    assert hidden(removed) == both[1:]
    # A step of this name may be renamed in the text; its code is not given to another.
    renamed = WRITTEN.replace("b:", "c:")
    assert "has no step of this name" in preview(scene, bob, renamed, code_upload=both, code_remove="")
    refused = bob.post("/pipelines/new/", posted(scene, yaml=renamed, code_upload=both, request_key="k2"))
    assert refused.status_code == 422
    assert "The pipeline has no step b; remove its code" in refused.content.decode()


def test_a_browser_without_scripts_adds_and_removes_files(scene: Scene, bob: Client) -> None:
    shown = bob.post("/pipelines/new/", posted(scene, do="code", code_files=[dropped("all.py", "1")]))
    [upload] = hidden(shown.content.decode())
    assert (shown.status_code, Pipeline.objects.count()) == (200, 0)
    shown = bob.post("/pipelines/new/", posted(scene, code_upload=[upload], code_remove=""))
    assert (shown.status_code, hidden(shown.content.decode())) == (200, [])
    refused = bob.post("/pipelines/new/", posted(scene, code_files=[dropped("../x.zip", "no archive")]))
    assert refused.status_code == 422
    assert not Pipeline.objects.exists()


def test_an_upload_of_others_is_not_used(scene: Scene, bob: Client, browser_of) -> None:
    charlie = browser_of(scene.people.charlie)
    theirs = {"team": scene.people.bio.pk, "code_files": [dropped("secret.py", "1")]}
    [upload] = hidden(charlie.post("/pipelines/preview/", posted(scene, **theirs)).content.decode())
    html = preview(scene, bob, WRITTEN, code_upload=[upload])
    assert "secret.py" not in html
    assert "there is no such upload" in html
    assert bob.post("/pipelines/new/", posted(scene, code_upload=[upload])).status_code == 422


def test_a_draft_keeps_the_uploads_of_its_steps(scene: Scene, bob: Client) -> None:
    html = preview(scene, bob, WRITTEN, code_for="b", code_files=[dropped("train.py", "2")])
    form = posted(scene, code_upload=hidden(html), do="draft")
    opened = bob.get(bob.post("/pipelines/new/", form).url).content.decode()
    assert hidden(opened) == hidden(html)
    assert "train.py" in opened
    assert remove_code(after=timedelta(0)) == 0
    Draft.objects.all().delete()
    assert remove_code(after=timedelta(0)) == 1


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


def test_each_step_has_its_times_its_cost_and_its_links(scene: Scene, bob: Client) -> None:
    written = {"prepare": {"expected_hours": 3, "gpus_per_worker": 2}, "train": {"needs": ["prepare"]}}
    steps = {name: {"command": "go", "generations": ["V100"], **fields} for name, fields in written.items()}
    made = make(scene.world, definition=Definition.parse({"name": "digits", "steps": steps}))
    job = step(made).steps.get(name="prepare").job_id
    page, api = f"/pipelines/{made.pk}/", f"/api/v1/pipelines/{made.pk}"
    waits = text_of_page(bob.get(page))
    assert "The end is unknown: prepare: it is not known when it starts." in waits
    assert "no cost yet" in waits
    end_job(scene.world, scene.job)
    scene.world.quantum()
    scene.world.carry_out()
    hour = timedelta(hours=1)
    Lease.objects.filter(job=job).update(
        held_from=F("held_from") - hour, running_from=F("running_from") - hour
    )
    html = text_of_page(bob.get(page))
    assert re.search(r'data-label="Time on GPUs" class="number">1 h', html)
    assert re.search(r'data-label="GPU-hours" class="number">2[.<]', html)
    assert re.search(r'data-label="Cost" class="number"><span>2\.40', html)
    assert re.search(r'aria-label="prepare: [A-Z][a-z]+ · 1 h', html)
    assert re.search(r"2(\.0+)? GPU-hours · cost so far 2\.40", html)
    assert "The end is unknown: train: no run time is known; write expected_hours." in html
    for part in ("log", "files", "metrics"):
        assert f'href="/jobs/{job}/{part}/"' in html
    shown = bob.get(api).json()
    first = shown["steps"][0]
    assert (first["gpus"], first["costs"].keys(), shown["expected_end"]) == (2, {"EUR"}, None)
    assert first["held_seconds"] >= 3600
    assert first["gpu_hours"] == pytest.approx(2, abs=0.2)
    assert first["expected_end"]


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
    assert few <= 17


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
