"""Users give labels to jobs when they submit them, find jobs by label, and see sums by label in reports."""

from __future__ import annotations

import csv
import io
from decimal import Decimal

import numpy as np
import pytest

from accounting.actions import take_back_usage
from accounting.ledger import Payer
from accounting.models import Membership, UsageSegment, User
from portal.submit.fields import Fields
from portal.submit.lines import read_labels
from scheduling.models import Job, JobLabel, LabelKey
from scheduling.reports.label_values import values_of
from scheduling.schedules.actions import Terms, create_schedule
from scheduling.schedules.schedule_runs import run_schedule_now
from scheduling.services.actions import create_service
from scheduling.services.replicas import step_service
from scheduling.spec.job_spec import JobSpec, SpecError
from tests.portal.administration.test_budgets import shown
from tests.portal.reading import sheets, text_of
from tests.portal.scene import Scene, book
from tests.portal.submit.test_submit import posted

GOOD = {"project": "apollo", "example.org/Run": "7", "gpu-test": ""}


@pytest.mark.parametrize(
    "wrong",
    [
        {"": "a"},
        {"-a": "a"},
        {"a b": "a"},
        {"a" * 64: "a"},
        {"Org.example/a": "a"},
        {"a/b/c": "a"},
        {"/a": "a"},
        {"x" * 254 + "/a": "a"},
        {"a": "b c"},
        {"a": "b-"},
        {"a": "x" * 64},
        {"a": "=1+1"},
        {"a": "b\nc"},
        {"ä": "b"},
        {f"k{n}": "" for n in range(11)},
    ],
)
def test_labels_that_kubernetes_would_refuse_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(SpecError) as refused:
        JobSpec.parse({"name": "a", "command": "true", "labels": wrong})
    whole = len(wrong) > 1  # too many labels; each label is valid
    assert list(refused.value.problems) == ["labels" if whole else f"labels.{next(iter(wrong))[:120]}"]


def test_labels_are_typed_one_on_a_line_and_kept_in_yaml() -> None:
    fields = Fields(name="a", command="true", labels="project = apollo\n\nexample.org/Run=7\ngpu-test\n")
    assert fields.to_spec().labels == GOOD
    assert JobSpec.from_yaml(fields.to_yaml()).labels == GOOD
    assert read_labels(Fields.from_spec(fields.to_spec()).labels) == GOOD
    with pytest.raises(SpecError, match="second time"):
        Fields(name="a", command="true", labels="a=1\na=2").to_spec()


def test_a_job_keeps_its_labels_as_rows_and_each_key_is_noted_once(scene: Scene) -> None:
    cast = scene.people
    one, two = (scene.world.submit(cast.bob, cast.astro, labels=GOOD) for _ in range(2))
    assert (
        dict(one.labels.values_list("key", "value")) == GOOD == dict(two.labels.values_list("key", "value"))
    )
    assert set(LabelKey.objects.visible_to(cast.bob).values_list("key", flat=True)) == set(GOOD)
    assert not LabelKey.objects.visible_to(cast.charlie).exists()
    assert not JobLabel.objects.filter(job=scene.job).exists()


@pytest.fixture
def labelled(scene: Scene) -> Job:
    cast = scene.people
    job = scene.world.submit(cast.bob, cast.astro, name="moonshot", labels=GOOD)
    scene.world.submit(cast.charlie, cast.bio, name="cells", labels={"project": "apollo"})
    book(job, cast.bob, cast.a100, gpus=2, minutes=30, lease=9101)
    return job


@pytest.mark.parametrize(
    ("label", "found"),
    [
        ("project=apollo", True),
        ("project", True),
        ("gpu-test=", True),
        ("project=gemini", False),
        ("rojec", False),
    ],
)
def test_lists_find_jobs_by_their_labels(
    labelled: Job, scene: Scene, browser_of, label: str, found: bool
) -> None:
    bob = browser_of(scene.people.bob)
    html = bob.get("/jobs/", {"label": label}).content.decode()
    assert ("moonshot" in html) == found
    assert "cells" not in html
    names = [one["name"] for one in bob.get("/api/v1/jobs", {"label": label}).json()["items"]]
    assert names == (["moonshot"] if found else [])


def test_a_jobs_page_and_the_api_show_its_labels(labelled: Job, scene: Scene, browser_of) -> None:
    bob = browser_of(scene.people.bob)
    html = bob.get(f"/jobs/{labelled.pk}/").content.decode()
    assert "project=apollo" in html
    assert "?label=example.org/Run%3D7" in html
    assert bob.get(f"/api/v1/jobs/{labelled.pk}").json()["labels"] == GOOD
    assert bob.get(f"/api/v1/jobs/{scene.job.pk}").json()["labels"] == {}


def test_usage_is_added_up_by_label(labelled: Job, scene: Scene, browser_of) -> None:
    bob = browser_of(scene.people.bob)
    wide = "period=dates&from=2020-01-01&to=2199-12-31&by=label&label=project"
    text = bob.get(f"/usage.csv?{wide}").content.decode()
    rows = {row["label"]: Decimal(row["gpu_seconds"]) for row in csv.DictReader(io.StringIO(text))}
    assert rows == {"apollo": 2 * 1800, "(none)": 4 * 2700 + 2 * 1800}
    html = bob.get(f"/usage/?{wide}").content.decode()
    assert "apollo" in html
    assert "(none)" in html
    told = {row["label"]: row["cost"] for row in bob.get(f"/api/v1/usage?{wide}").json()["rows"]}
    assert Decimal(told["apollo"]) == 3
    of_a_bare_key = bob.get(f"/usage/?{wide.replace('=project', '=gpu-test')}").content.decode()
    assert "(no value)" in of_a_bare_key
    of_nobody = bob.get(f"/usage/?{wide.replace('=project', '=nonsense')}")
    assert of_nobody.status_code == 200


def test_values_of_labels_are_listed_by_key_with_their_jobs(labelled: Job, scene: Scene) -> None:
    cast = scene.people
    other = scene.world.submit(cast.bob, cast.astro, labels={"project": "apollo", "gpu-test": "b"})
    third = scene.world.submit(cast.bob, cast.astro, labels={"project": "Gemini"})
    jobs = np.array(sorted([scene.job.pk, labelled.pk, other.pk, third.pk]))
    found = values_of(["gpu-test", "nonsense", "project"], jobs, None)
    told = {
        key: {job: names.texts[which] for job, which in zip(names.jobs, names.which, strict=True)}
        for key, names in found.items()
    }
    assert told == {
        "gpu-test": {labelled.pk: "", other.pk: "b"},
        "nonsense": {},
        "project": {labelled.pk: "apollo", other.pk: "apollo", third.pk: "Gemini"},
    }
    assert all(list(names.jobs) == sorted(names.jobs) for names in found.values())
    assert values_of(["project"], jobs[:0], None)["project"].texts == []


@pytest.fixture
def paid_by_another(labelled: Job, scene: Scene) -> Job:
    """Returns a job of Astro whose usage was charged to Bio by a correction. Bio's own jobs have labels with the same
    key."""
    cast = scene.people
    segments = UsageSegment.objects.filter(job_id=labelled.pk).select_related("generation")
    take_back_usage(
        actor=cast.ada,
        segments=list(segments),
        reason="a gift",
        payer=Payer(cast.bio, cast.charlie),
    )
    return labelled


WIDE = "period=dates&from=2020-01-01&to=2199-12-31"


def test_a_jobs_labels_belong_to_its_team_though_another_pays(
    paid_by_another: Job, scene: Scene, browser_of
) -> None:
    charlie = browser_of(scene.people.charlie)
    by = f"{WIDE}&by=label&label=project"
    for url in (f"/usage/?{by}", f"/usage.csv?{by}", f"/usage.json?{by}", f"/api/v1/usage?{by}"):
        text = charlie.get(url).content.decode()
        assert "apollo" not in text
        assert "(none)" in text or '"label": null' in text
    held = charlie.get(f"/api/v1/usage?{by}").json()["totals"][0]["gpu_seconds"]
    assert (
        Decimal(held) == 2 * 1800 + 4 * 900
    )  # Charlie's team pays for the job, although he may not see its labels
    for form in ("csv", "json", "xlsx", "pdf"):
        content = charlie.get(f"/usage/statement.{form}?{WIDE}").content
        text = (
            str(sheets(content))
            if form == "xlsx"
            else text_of(content)
            if form == "pdf"
            else content.decode()
        )
        assert "(none)" in text
        assert "apollo" not in text


@pytest.mark.parametrize(
    ("who", "asked", "is_told"), [("olga", "", True), ("olga", "&team=bio", False), ("una", "", True)]
)
def test_teams_above_read_the_labels_of_those_below(
    paid_by_another: Job, browser_of, who: str, asked: str, is_told: bool
) -> None:
    if who == "una":  # a member of the parent of both teams
        user = User.objects.create(username="una")
        Membership.objects.create(tenant=paid_by_another.tenant.parent, user=user)
    reader = browser_of(User.objects.get(username=who))
    rows = reader.get(f"/api/v1/usage?{WIDE}&by=label&label=project{asked}").json()["rows"]
    assert ("apollo" in {row["label"] for row in rows}) is is_told


def test_the_submit_form_takes_labels(scene: Scene, browser_of) -> None:
    bob = browser_of(scene.people.bob)
    wrong = bob.post("/submit/", posted(labels="no label"))
    assert "is not a label key" in shown(wrong)
    assert bob.post("/submit/", posted(labels="project=apollo")).status_code == 302
    assert dict(Job.objects.latest("pk").labels.values_list("key", "value")) == {"project": "apollo"}
    clone = bob.get(
        f"/submit/?clone={scene.world.submit(scene.people.bob, scene.people.astro, labels=GOOD).pk}"
    )
    assert "example.org/Run=7" in clone.content.decode()


def test_jobs_of_a_schedule_have_its_labels(scene: Scene) -> None:
    cast = scene.people
    schedule = create_schedule(
        actor=cast.bob,
        tenant=cast.astro,
        cluster=scene.world.cluster,
        spec=JobSpec(name="nightly", command="true", labels=GOOD),
        terms=Terms(expression="0 0 1 1 *", time_zone="Europe/Berlin"),
    )
    run = run_schedule_now(actor=cast.bob, schedule=schedule)
    assert dict(run.job.labels.values_list("key", "value")) == GOOD


def test_replicas_of_a_service_have_its_labels(scene: Scene) -> None:
    cast = scene.people
    service = create_service(
        actor=cast.bob,
        tenant=cast.astro,
        cluster=scene.world.cluster,
        spec=JobSpec(name="labelled-api", command="serve", port=8000, labels=GOOD),
        replicas=1,
    )
    step_service(service_id=service.pk)
    assert dict(service.jobs.get().labels.values_list("key", "value")) == GOOD
