"""Users keep forms as drafts, on pages and by the API, open them again, and submit them."""

from __future__ import annotations

import pytest
from django.test import Client

from portal.submit.fields import Fields, digest
from scheduling.jobs.secrets import create_secret
from scheduling.models import CodeUpload, Draft, Job, Pipeline, Schedule, Sweep
from tests.portal.scene import Scene
from tests.portal.sweeps.test_sweeps import posted as posted_sweep

API = "/api/v1/drafts"


def posted(scene: Scene, fields: Fields, **changes: object) -> dict[str, object]:
    """Returns the fields of the submit form as a browser sends them, with `changes`."""
    yaml = fields.to_yaml()
    texts = {name: getattr(fields, name) for name in Fields.__dataclass_fields__}
    rest = {
        "yaml": yaml, "agreed": digest(yaml), "request_key": "k1", "do": "draft",
        "tenant": scene.people.astro.pk, "cluster": scene.world.cluster.pk,
    }  # fmt: skip
    return texts | rest | changes


@pytest.fixture
def bob(scene: Scene, browser_of) -> Client:
    return browser_of(scene.people.bob)


def test_a_wrong_form_is_kept_as_it_is_opened_and_submitted_once_it_is_right(
    scene: Scene, bob: Client
) -> None:
    wrong = Fields(name="later", command="", workers="many", variables="no equals sign", generations=["V100"])
    saved = bob.post("/submit/", posted(scene, wrong))
    draft = Draft.objects.get()
    assert (saved.status_code, saved.url) == (302, f"/submit/?draft={draft.pk}")
    assert "later" in bob.get("/drafts/").content.decode()
    opened = bob.get(saved.url).context["draft"]
    assert (opened.fields, opened.tenant) == (wrong, scene.people.astro)
    assert {"workers", "variables", "command"} <= opened.problems.keys()
    right = Fields(name="later", command="go")
    sent = bob.post("/submit/", posted(scene, right, do="submit", request_key=opened.request_key))
    assert sent.url == f"/jobs/{Job.objects.latest('pk').pk}/"
    assert not Draft.objects.exists()
    assert bob.get(saved.url).status_code == 404


def test_scripts_get_only_the_line_that_says_whether_the_form_is_kept(scene: Scene, bob: Client) -> None:
    form = posted(scene, Fields(name="later", command="go"))
    kept = bob.post("/submit/", form, headers={"HX-Request": "true"})
    assert (kept.status_code, "Draft kept" in kept.content.decode()) == (200, True)
    assert "<html" not in kept.content.decode()
    bob.post("/submit/", form | {"do": "submit"})
    late = bob.post("/submit/", form, headers={"HX-Request": "true"})
    assert "submitted already" in late.content.decode()
    shown = bob.post("/submit/", form)
    assert (shown.status_code, shown.context["draft"].fields.command) == (422, "go")


def test_a_draft_without_a_name_is_called_by_its_command(scene: Scene, bob: Client) -> None:
    bob.post("/submit/", posted(scene, Fields(name=" ", command="python train.py\necho done")))
    assert str(Draft.objects.get()) == "python train.py"


def test_a_draft_that_was_kept_beside_its_submit_leads_to_the_job(scene: Scene, bob: Client) -> None:
    bob.post("/submit/", posted(scene, Fields(name="later", command="go")))
    job = scene.waiting
    Job.objects.filter(pk=job.pk).update(owner=scene.people.bob, request_key="k1")
    opened = bob.get(f"/submit/?draft={Draft.objects.get().pk}")
    assert opened.url == f"/jobs/{job.pk}/"
    assert not Draft.objects.exists()


def test_form_and_yaml_that_were_both_changed_stay_both(scene: Scene, bob: Client) -> None:
    form = posted(scene, Fields(name="form", command="go"), yaml="name: yaml\ncommand: go", agreed="before")
    opened = bob.get(bob.post("/submit/", form).url).context["draft"]
    assert (opened.fields.name, opened.yaml, opened.changed_both) == ("form", "name: yaml\ncommand: go", True)


def test_no_value_of_a_secret_and_no_pasted_foreign_file_is_kept(scene: Scene, bob: Client) -> None:
    create_secret(actor=scene.people.bob, name="hub", values={"value": "s3cr3t-value"})
    using = Fields(name="later", command="go", secrets="HF_TOKEN=hub")
    bob.post("/submit/", posted(scene, using))
    pasted = "services:\n  train:\n    image: busybox\n    environment: {DB_PASSWORD: hunter2-hunter2}\n"
    converted = posted(scene, Fields(), yaml=pasted, agreed=digest(Fields().to_yaml()), foreign=pasted)
    bob.post("/submit/", converted | {"request_key": "k2"})
    both = posted(scene, Fields(name="form"), yaml=pasted, agreed="before", request_key="k3")
    bob.post("/submit/", both)
    stored = str(list(Draft.objects.values_list("content", flat=True)))
    assert Draft.objects.count() == 3
    assert "HF_TOKEN=hub" in stored
    assert "s3cr3t-value" not in stored
    assert "hunter2" not in stored


def test_uploaded_files_are_kept_by_reference(scene: Scene, bob: Client, tmp_path) -> None:
    file = tmp_path / "train.py"
    file.write_text("print(1)")
    with file.open("rb") as content:
        bob.post("/submit/", posted(scene, Fields(name="later"), code_files=content))
    draft = Draft.objects.get()
    assert draft.upload == CodeUpload.objects.get()
    assert bob.get(f"/submit/?draft={draft.pk}").context["upload"] == draft.upload


def test_a_sweep_is_kept_with_its_parameters(scene: Scene, bob: Client) -> None:
    form = posted_sweep(do="draft", count="many", parameters="lr = ")
    draft_url = bob.post("/sweeps/new/", form).url
    opened = bob.get(draft_url).context
    assert (opened["swept"].parameters, opened["swept"].count) == ("lr = ", "many")
    assert opened["draft"].fields.command == "python train.py {lr}"
    assert bob.get(f"/submit/?draft={Draft.objects.get().pk}").status_code == 404
    assert bob.post("/sweeps/new/", posted_sweep(tenant=scene.people.astro.pk)).status_code == 302
    assert (Sweep.objects.count(), Draft.objects.count()) == (1, 0)


def test_a_schedule_is_kept_with_its_times(scene: Scene, bob: Client) -> None:
    times = {"expression": "not yet", "time_zone": "Europe/Berlin", "missed": "once", "overlap": "forbid"}
    form = posted(scene, Fields(name="nightly", command="go"), catch_up_hours="24", **times)
    draft_url = bob.post("/schedules/new/", form).url
    assert draft_url == f"/schedules/new/?draft={Draft.objects.get().pk}"
    assert draft_url in bob.get("/drafts/").content.decode()
    opened = bob.get(draft_url).context
    assert (opened["timing"].expression, opened["timing"].time_zone) == ("not yet", "Europe/Berlin")
    assert "expression" in opened["timing"].problems
    assert opened["draft"].fields.name == "nightly"
    [shown] = bob.get(API).json()
    assert (shown["kind"], shown["name"]) == ("schedule", "nightly")
    sent = bob.post("/schedules/new/", form | {"do": "submit", "expression": "0 3 * * *"})
    made = Schedule.objects.get(name="nightly")
    assert sent.url == f"/schedules/{made.pk}/"
    assert not Draft.objects.exists()
    late = bob.post("/schedules/new/", form, headers={"HX-Request": "true"})
    assert "submitted already" in late.content.decode()


def test_a_stored_schedule_is_changed_and_never_kept(scene: Scene, bob: Client) -> None:
    page = f"/schedules/{scene.schedule.pk}/edit/"
    assert "Save as draft" in bob.get("/schedules/new/").content.decode()
    assert "Save as draft" not in bob.get(page).content.decode()


def test_a_pipeline_is_kept_also_while_it_is_wrong(scene: Scene, bob: Client) -> None:
    form = {"yaml": "name: line\nsteps: [", "team": scene.people.astro.pk, "request_key": "k1", "do": "draft"}
    opened = bob.get(bob.post("/pipelines/new/", form).url)
    assert opened.context["form"].initial["yaml"] == form["yaml"]
    right = form | {
        "do": "",
        "yaml": "name: line\nsteps: {one: {command: go}}",
        "cluster": scene.world.cluster.pk,
    }
    assert bob.post("/pipelines/new/", right).status_code == 302
    assert (Pipeline.objects.count(), Draft.objects.count()) == (1, 0)


def test_drafts_are_deleted_by_their_owner_alone(scene: Scene, bob: Client, browser_of) -> None:
    bob.post("/submit/", posted(scene, Fields(name="later")))
    draft = Draft.objects.get()
    for other in (scene.people.alice, scene.people.charlie, scene.people.ada):
        assert browser_of(other).post(f"/drafts/{draft.pk}/delete/").status_code == 404
        assert browser_of(other).get(f"/submit/?draft={draft.pk}").status_code == 404
        assert browser_of(other).delete(f"{API}/{draft.pk}").status_code == 404
    assert bob.post(f"/drafts/{draft.pk}/delete/").url == "/drafts/"
    assert not Draft.objects.exists()


def test_the_api_keeps_shows_and_submits_a_draft(scene: Scene, bob: Client) -> None:
    new = {"spec": {"name": "later", "workers": 0}, "team": "astro"}
    made = bob.post(API, new, content_type="application/json", headers={"Idempotency-Key": "mine"}).json()
    assert (made["name"], made["team"], made["request_key"]) == ("later", "astro", "mine")
    assert {"workers", "command"} <= {name.split(".")[0] for name in made["problems"]}
    right = new | {"spec": "name: later\ncommand: go\n"}
    again = bob.post(API, right, content_type="application/json", headers={"Idempotency-Key": "mine"}).json()
    assert (again["id"], again["problems"]) == (made["id"], {})
    assert [one["id"] for one in bob.get(API).json()] == [made["id"]]
    job = {"spec": again["yaml"], "team": again["team"]}
    sent = bob.post("/api/v1/jobs", job, content_type="application/json", headers={"Idempotency-Key": "mine"})
    assert (sent.status_code, bob.get(f"{API}/{made['id']}").status_code) == (201, 404)


def test_the_api_refuses_a_team_that_is_not_the_callers(scene: Scene, bob: Client) -> None:
    new = {"spec": "name: later", "team": "bio"}
    assert bob.post(API, new, content_type="application/json").status_code == 422
    assert not Draft.objects.exists()


def test_the_api_shows_drafts_of_sweeps_and_pipelines(scene: Scene, bob: Client) -> None:
    bob.post("/sweeps/new/", posted_sweep(do="draft"))
    bob.post("/pipelines/new/", {"yaml": "name: line", "request_key": "k2", "do": "draft"})
    line, sweep = (bob.get(f"{API}/{one['id']}").json() for one in bob.get(API).json())
    assert (sweep["kind"], sweep["parameters"]) == ("sweep", "lr = 0.1, 0.01\nopt = adam, sgd")
    assert (line["kind"], line["yaml"], "steps" in line["problems"]) == ("pipeline", "name: line", True)
