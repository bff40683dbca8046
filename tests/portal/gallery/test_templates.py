"""Users find, publish, preview and use templates on pages and by the API."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from portal.gallery.parameters import parameters_of_rows, rows_of
from portal.submit.fields import Fields, digest
from scheduling.models import Job, JobTemplate, TemplateUse, TemplateVersion
from scheduling.spec.job_spec import SpecError
from scheduling.spec.templates import Parameter, read_parameters
from scheduling.templates.actions import publish_template, withdraw_template
from tests.portal.scene import Scene

API = "/api/v1/templates"
YAML = (
    "name: 'train {who}'\ncommand: train --lr {lr} {who}\ngpus_per_worker: '{gpus}'\ngenerations: ['{gpu}']\n"
)
PARAMETERS: list[dict[str, Any]] = [
    {"name": "lr", "type": "number", "min": 0, "max": 1, "default": 0.1, "description": "Learning rate"},
    {"name": "who", "type": "choice", "choices": ["me", "it's $(me)"], "default": "me"},
    {"name": "gpus", "type": "number", "whole": True, "default": 1},
    {"name": "gpu", "type": "generation", "required": False},
    {"name": "fast", "type": "boolean", "required": False},
    {"name": "data", "type": "volume", "required": False},
    {"name": "key", "type": "secret", "required": False},
    {"name": "note", "type": "text", "required": False},
]
SPEC: dict[str, Any] = {
    "name": "train {who}", "command": "train --lr {lr} {who} {fast}", "gpus_per_worker": "{gpus}",
    "generations": ["{gpu}"], "volumes": [{"name": "{data}"}], "secrets": {"KEY": "{key}"},
    "variables": {"NOTE": "{note}"},
}  # fmt: skip


WORDS = st.text("a,:#'\" ", max_size=4)
NUMBERS = st.floats(-1e6, 1e6).map(lambda number: round(number, 7)) | st.integers(-9, 9)
PARAMETER = {
    "type": st.sampled_from(["text", "number", "choice", "boolean", "secret"]),
    "name": st.sampled_from(["a", "b", "c"]),
    "description": WORDS,
    "required": st.booleans(),
    "default": st.none() | WORDS | NUMBERS | st.booleans() | st.sampled_from(["1", "true", "0.5"]),
    "whole": st.booleans(),
    "min": st.none() | NUMBERS.map(float),
    "max": st.none() | NUMBERS.map(float),
    "choices": st.lists(WORDS, max_size=3),
}


@pytest.fixture
def version(scene: Scene) -> TemplateVersion:
    people = scene.people
    return publish_template(
        actor=people.alice, tenant=people.astro, name="Baseline", description="Trains the supernova.", spec=SPEC,
        parameters=PARAMETERS,
    )  # fmt: skip


def used(scene: Scene, **changes: object) -> dict[str, object]:
    usual = {"value_lr": "0.5", "value_who": "me", "value_gpus": "2", "request_key": "k1", "do": "submit"}
    place = {"team": scene.people.astro.pk, "cluster": scene.world.cluster.pk}
    return place | usual | changes


def test_the_gallery_shows_what_is_for_the_reader_and_searches(
    scene: Scene, version: TemplateVersion, browser_of
) -> None:
    people = scene.people
    for_all = {"actor": people.ada, "tenant": None, "spec": {"name": "x", "command": "go"}, "parameters": []}
    publish_template(name="For everybody", description="Says hello.", **for_all)
    gone = publish_template(name="Gone", description="Old.", **for_all)
    withdraw_template(actor=people.ada, template=gone.template)

    def names(user: Any, query: str = "") -> list[str]:
        return [one.name for one, *_ in browser_of(user).get(f"/templates/{query}").context["rows"]]

    assert names(people.bob) == ["Baseline", "For everybody"]
    assert names(people.charlie) == ["For everybody"]
    assert names(people.bob, "?q=SUPERNOVA") == ["Baseline"]
    assert names(people.bob, "?for=all") == ["For everybody"]
    assert names(people.bob, "?for=astro") == ["Baseline"]
    assert names(people.charlie, "?for=astro") == []
    assert names(people.bob, "?q=nothing+like+this") == []
    page = browser_of(people.bob).get("/templates/").content.decode()
    assert "1 GPU" in page
    assert "template_new" not in page
    assert "/templates/new/" in browser_of(people.alice).get("/templates/").content.decode()


def test_another_team_finds_nothing_of_a_template(scene: Scene, version: TemplateVersion, browser_of) -> None:
    charlie, pk = browser_of(scene.people.charlie), version.template_id
    for address in (f"/templates/{pk}/", f"/templates/{pk}/use/", f"/templates/{pk}/edit/", f"{API}/{pk}"):
        assert charlie.get(address).status_code == 404, address
    for address in (f"/templates/{pk}/withdraw/", f"/templates/{pk}/use/"):
        assert charlie.post(address, used(scene)).status_code == 404, address
    for verb in ("withdraw", "preview", "submit", "versions"):
        body = {"description": "x", "spec": {}} if verb == "versions" else {}
        answer = charlie.post(f"{API}/{pk}/{verb}", body, content_type="application/json")
        assert answer.status_code == 404, verb
    assert charlie.get(API).json()["items"] == []
    assert not Job.objects.filter(name__startswith="train").exists()


def test_a_form_of_parameters_submits_a_job_that_names_its_template(
    scene: Scene, version: TemplateVersion, browser_of
) -> None:
    bob, pk = browser_of(scene.people.bob), version.template_id
    form = bob.get(f"/templates/{pk}/use/").context["form"]
    assert form["value_lr"].value() == "0.1"
    assert form.fields["value_gpu"].label == "GPU"
    assert {"V100", "A100"} <= {value for value, _ in form.fields["value_gpu"].choices}
    chosen = {
        "value_gpu": "V100",
        "value_who": "it's $(me)",
        "value_data": "supernova-sky",
        "value_fast": "true",
    }
    sent = bob.post(f"/templates/{pk}/use/", used(scene, **chosen, value_key="supernova-key"))
    job = Job.objects.latest("pk")
    assert sent.url == f"/jobs/{job.pk}/"
    assert job.spec["command"] == "train --lr 0.5 'it'\"'\"'s $(me)' true"
    assert (job.gpus_per_worker, job.spec["generations"]) == (2, ["V100"])
    assert job.spec["secrets"] == {"KEY": "supernova-key"}
    assert TemplateUse.objects.get().version == version
    assert bob.post(f"/templates/{pk}/use/", used(scene)).url == f"/jobs/{job.pk}/"
    page = re.sub(r"\s+", " ", bob.get(f"/jobs/{job.pk}/").content.decode())
    assert f'from the template <a href="/templates/{pk}/?version=1">Baseline</a>, version 1' in page


def test_wrong_values_are_refused_beside_their_fields(
    scene: Scene, version: TemplateVersion, browser_of
) -> None:
    bob, url = browser_of(scene.people.bob), f"/templates/{version.template_id}/use/"
    shown = bob.post(url, used(scene, value_lr="2", value_who="you", team="", value_note="x" * 600))
    assert shown.status_code == 422
    assert {"team"} <= shown.context["form"].errors.keys()
    shown = bob.post(url, used(scene, value_lr="2", value_who="you", value_gpus=""))
    assert {"value_lr", "value_who", "value_gpus"} <= shown.context["form"].errors.keys()
    shown = bob.post(url, used(scene, value_gpus="0"))
    assert "gpus_per_worker" in str(shown.context["form"].non_field_errors())
    other_team = bob.post(url, used(scene, team=scene.people.bio.pk))
    assert other_team.status_code == 422
    assert not TemplateUse.objects.exists()


def test_a_preview_shows_the_job_its_start_and_the_way_into_the_full_form(
    scene: Scene, version: TemplateVersion, browser_of
) -> None:
    bob, url = browser_of(scene.people.bob), f"/templates/{version.template_id}/use/"
    shown = bob.post(url, used(scene, do="preview"))
    draft = shown.context["draft"]
    assert (shown.status_code, draft.spec.command, draft.preflight is None) == (
        200,
        "train --lr 0.5 me ''",
        False,
    )
    full = bob.post(
        "/submit/", {"yaml": draft.yaml, "do": "yaml", "tenant": draft.tenant.pk, "cluster": draft.cluster.pk}
    )
    assert full.context["draft"].fields.command == "train --lr 0.5 me ''"
    never = bob.post(url, used(scene, value_gpus="64"))
    assert (never.status_code, 'name="even_if_never"' in never.content.decode()) == (422, True)
    assert not TemplateUse.objects.exists()
    assert bob.post(url, used(scene, value_gpus="64", even_if_never="on")).status_code == 302


def test_managers_publish_a_template_and_versions_of_it(scene: Scene, browser_of) -> None:
    alice = browser_of(scene.people.alice)
    text = "- {name: lr, type: number, default: 0.1}\n- {name: who, type: text}\n"
    text += "- {name: gpus, type: number, default: 1}\n- {name: gpu, type: generation, required: false}\n"
    new = {
        "team": scene.people.astro.pk,
        "name": "New",
        "description": "Trains.",
        "yaml": YAML,
        "parameters": text,
    }
    wrong = alice.post("/templates/new/", new | {"parameters": "- {name: X, type: text}"})
    assert "0.name" in str(wrong.context["form"].errors["parameters"])
    wrong = alice.post("/templates/new/", new | {"yaml": "name: a\ncommand: echo '{lr}'"})
    assert "inside quotes" in str(wrong.context["form"].errors["yaml"])
    for changes in ({"yaml": "- a"}, {"parameters": "a: ["}, {"team": ""}, {"team": "999"}, {"name": ""}):
        refused = alice.post("/templates/new/", new | changes)
        assert (refused.status_code, bool(refused.context["form"].errors)) == (422, True), changes
    made = alice.post("/templates/new/", new)
    template = JobTemplate.objects.get()
    assert made.url == f"/templates/{template.pk}/"
    opened = alice.get(f"/templates/{template.pk}/edit/").context["form"]
    assert "train --lr {lr} {who}" in opened["yaml"].value()
    again = {"description": "Better.", "yaml": YAML, "parameters": text}
    assert alice.post(f"/templates/{template.pk}/edit/", again).status_code == 302
    assert [one.number for one in template.versions.order_by("pk")] == [1, 2]
    assert "earlier version" in alice.get(f"/templates/{template.pk}/?version=1").content.decode()
    for version in ("0", "3", "x", "9" * 30):
        assert alice.get(f"/templates/{template.pk}/?version={version}").status_code == 404
    assert browser_of(scene.people.bob).get(f"/templates/{template.pk}/edit/").status_code == 404
    alice.post(f"/templates/{template.pk}/withdraw/")
    assert "was withdrawn" in alice.get(f"/templates/{template.pk}/").content.decode()
    assert alice.get(f"/templates/{template.pk}/use/").url == f"/templates/{template.pk}/"


def rows_in(page: str) -> dict[str, str]:
    """Returns what the form of a template posts for its parameters, as the page has it."""
    form = page.partition('class="parameters-title"')[2].partition("</form>")[0]
    found = dict(re.findall(r'<input type="(?:text|hidden)" name="([\w-]+)" value="([^"]*)"', form))
    found |= dict.fromkeys(re.findall(r'<input type="checkbox" name="([\w-]+)"[^>]* checked', form), "on")
    for name, options in re.findall(r'<select name="([\w-]+)"(.*?)</select>', form, re.DOTALL):
        found[name] = re.search(r'value="(\w+)" selected', options)[1]
    for name, text in re.findall(r'<textarea name="([\w-]+)"[^>]*>\n?(.*?)</textarea>', form, re.DOTALL):
        found[name] = unescape(text)
    return found


def test_parameters_are_typed_in_rows_and_rows_and_yaml_say_the_same(scene: Scene, browser_of) -> None:
    alice = browser_of(scene.people.alice)
    new = {"team": scene.people.astro.pk, "name": "New", "description": "Trains.", "do": "publish",
           "yaml": "name: a\ncommand: train --lr {lr} --on {data}\n"}  # fmt: skip
    typed = rows_in(alice.get("/templates/new/").content.decode())
    assert (typed["p0-name"], typed["p0-default"], typed["p0-min"], typed["p0-max"]) == (
        "lr",
        "0.1",
        "0",
        "1",
    )
    more = alice.post("/templates/new/", new | typed | {"do": "row"})
    assert (more.status_code, JobTemplate.objects.exists()) == (200, False)
    second = {
        "p1-name": "data",
        "p1-type": "choice",
        "p1-choices": "cifar\r\nimage, net",
        "p1-default": "cifar",
    }
    typed = rows_in(more.content.decode()) | second
    wrong = alice.post("/templates/new/", new | typed | {"p1-default": "mnist", "p0-max": "much"})
    assert wrong.status_code == 422
    rows = wrong.context["form"].rows
    assert "Must be one of cifar" in str(rows[1]["default"].errors)
    assert rows[0]["max"].errors
    made = alice.post("/templates/new/", new | typed)
    assert made.status_code == 302
    version = TemplateVersion.objects.get()
    assert version.parameters == [
        {
            "name": "lr",
            "type": "number",
            "description": "Learning rate",
            "default": 0.1,
            "min": 0.0,
            "max": 1.0,
        },
        {"name": "data", "type": "choice", "default": "cifar", "choices": ["cifar", "image, net"]},
    ]
    edit = f"/templates/{version.template_id}/edit/"
    typed = rows_in(alice.get(edit).content.decode())
    by_yaml = typed["parameters"].replace("0.1", "0.2")
    both = alice.post(edit, new | typed | {"parameters": by_yaml, "p0-default": "0.3"})
    assert "changed both the rows and this YAML" in str(both.context["form"]["parameters"].errors)
    assert both.context["form"].rows[0]["default"].value() == "0.3"  # neither is lost
    assert alice.post(edit, new | typed | {"parameters": by_yaml}).status_code == 302
    assert version.template.versions.get(number=2).parameters[0]["default"] == 0.2


@given(st.builds(dict, **PARAMETER))
def test_rows_say_all_that_valid_parameters_say(parameter: dict[str, Any]) -> None:
    kind = parameter["type"]
    if kind != "number":
        parameter |= {"min": None, "max": None, "whole": False}
    if kind != "choice":
        parameter["choices"] = []
    try:
        valid = read_parameters([parameter])
    except SpecError:
        return
    rows = rows_of([one.model_dump(mode="json", exclude_defaults=True) for one in valid])
    assert rows is not None

    def said(found: tuple[Parameter, ...]) -> list[tuple[Parameter, object]]:
        return [(one.model_copy(update={"default": None}), one.read(one.default)[0]) for one in found]

    assert said(read_parameters(parameters_of_rows(rows))) == said(valid)


def test_what_rows_cannot_say_stays_in_the_yaml(scene: Scene, browser_of) -> None:
    for parameter in (
        {"name": "a", "type": "number", "min": 1e-99},
        {"name": "a", "type": "text", "odd": 1},
        7,
    ):
        assert rows_of([parameter]) is None
    typed = rows_in(browser_of(scene.people.alice).get("/templates/new/").content.decode())
    yaml = "- {name: lr, type: number, odd: 1}\n"
    new = {
        "team": scene.people.astro.pk,
        "name": "New",
        "description": "x",
        "yaml": "name: a\ncommand: 'true'\n",
    }
    refused = browser_of(scene.people.alice).post("/templates/new/", new | typed | {"parameters": yaml})
    form = refused.context["form"]
    assert (refused.status_code, form["parameters"].value(), form.shows_yaml) == (422, yaml, True)
    assert form.rows[0]["name"].value() == "lr"


def test_a_job_and_a_filled_form_become_templates(scene: Scene, browser_of) -> None:
    alice, bob = browser_of(scene.people.alice), browser_of(scene.people.bob)
    form = alice.get(f"/templates/new/?job={scene.waiting.pk}").context["form"]
    assert (form["name"].value(), "name: supernova-next" in form["yaml"].value()) == ("supernova-next", True)
    fields = Fields(name="mine", command="go")
    texts = {name: getattr(fields, name) for name in Fields.__dataclass_fields__}
    posted = texts | {"yaml": fields.to_yaml(), "agreed": digest(fields.to_yaml()), "do": "template"}
    shown = alice.post("/templates/new/", posted)
    assert (shown.status_code, "command: go" in shown.context["form"]["yaml"].value()) == (200, True)
    assert "Save as template" in alice.get("/submit/").content.decode()
    assert "Save as template" not in bob.get("/submit/").content.decode()
    assert bob.get("/templates/new/").status_code == 404
    assert alice.get(f"/templates/new/?job={scene.other.pk}").status_code == 404


def test_the_api_publishes_previews_submits_and_withdraws(scene: Scene, browser_of) -> None:
    alice, bob = browser_of(scene.people.alice), browser_of(scene.people.bob)

    def post(client: Client, path: str, **body: object) -> Any:
        return client.post(
            f"{API}{path}", body, content_type="application/json", headers={"Idempotency-Key": "k"}
        )

    new = {
        "name": "Baseline",
        "team": "astro",
        "description": "Trains.",
        "spec": SPEC,
        "parameters": PARAMETERS,
    }
    assert post(bob, "", **new).status_code == 403
    assert post(alice, "", **new | {"team": "bio"}).status_code == 403
    assert post(alice, "", **new | {"team": "", "for_all": True}).status_code == 403
    assert post(alice, "", **new | {"for_all": True}).status_code == 422
    made = post(alice, "", **new).json()
    place = f"/{made['id']}"
    assert (made["version"], made["spec"]) == (1, SPEC)
    newer = {"description": "More.", "spec": "name: b\ncommand: go {lr}", "parameters": PARAMETERS[:1]}
    assert post(alice, f"{place}/versions", **newer).json()["version"] == 2
    assert bob.get(f"{API}{place}?version=1").json()["description"] == "Trains."
    assert bob.get(f"{API}{place}?version=3").status_code == 404
    [listed] = bob.get(f"{API}?q=base&team=astro&limit=1").json()["items"]
    assert (listed["version"], listed["gpus"]) == (2, 1)
    preview = post(bob, f"{place}/preview", values={"lr": "0.5"}).json()
    assert preview["spec"]["command"] == "go 0.5"
    wrong = post(bob, f"{place}/preview", values={"lr": 2, "more": 1})
    assert (wrong.status_code, set(wrong.json()["problems"])) == (
        422, {"values.lr", "values.more"},
    )  # fmt: skip
    first = {"values": {"gpus": 0}, "version": 1}
    assert "spec.gpus_per_worker" in post(bob, f"{place}/preview", **first).content.decode()
    job = post(bob, f"{place}/submit", values={"lr": 0.25}, team="astro").json()
    assert post(bob, f"{place}/submit", values={"lr": 0.25}, team="astro").json()["id"] == job["id"]
    assert TemplateUse.objects.get(job=job["id"]).version.number == 2
    assert post(bob, f"{place}/withdraw").status_code == 403
    assert post(alice, f"{place}/withdraw").status_code == 204
    assert bob.get(API).json()["items"] == []
    assert bob.get(f"{API}{place}").json()["withdrawn_at"]
    assert post(bob, f"{place}/submit", team="astro", values={"lr": 0}).status_code == 409


def test_a_default_that_the_cluster_does_not_have_stays_chosen_and_costs_have_units(
    scene: Scene, browser_of
) -> None:
    made = publish_template(
        actor=scene.people.alice, tenant=scene.people.astro, name="Later", description="Needs newer GPUs.",
        spec={"name": "later", "command": "go", "generations": ["{gpu_type}"], "workers": 2, "expected_hours": 0.05},
        parameters=[{"name": "gpu_type", "type": "generation", "default": "B200"}],
    )  # fmt: skip
    shown = browser_of(scene.people.bob).get(f"/templates/{made.template_id}/use/")
    field = shown.context["form"].fields["value_gpu_type"]
    assert (field.label, field.choices[0]) == ("GPU type", ("B200", "B200"))
    assert shown.context["cost"].startswith("2 GPUs for about 3 min")
