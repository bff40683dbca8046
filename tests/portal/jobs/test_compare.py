"""A clone shows what was changed, remembers its origin, and two jobs can be compared by those who see both."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse

from portal.submit.fields import Fields, digest
from scheduling.jobs.submitting import submit_job
from scheduling.models import Job
from scheduling.spec.job_spec import JobSpec
from tests.portal.jobs.test_metrics import SOURCE, record
from tests.portal.scene import Scene
from tests.query_counts import queries_of


@pytest.fixture
def bob(scene: Scene, browser_of) -> Client:
    return browser_of(scene.people.bob)


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def changed(job: Job, **changes: str) -> dict[str, str]:
    """Returns what a browser posts from the form of a clone of `job` after `changes`."""
    before = Fields.from_spec(JobSpec.stored(job.spec))
    names = [name for name in Fields.__dataclass_fields__ if name != "generations"]
    form = {name: getattr(before, name) for name in names} | changes
    yaml = before.to_yaml()
    return form | {
        "clone": str(job.pk),
        "request_key": "k7",
        "yaml": yaml,
        "agreed": digest(yaml),
        "do": "submit",
    }


def test_the_form_of_a_clone_shows_each_change_while_it_is_typed(scene: Scene, bob: Client) -> None:
    page = bob.get(f"/submit/?clone={scene.job.pk}").content.decode()
    name = scene.job.name
    assert f"name {name} {name} 2" in text_of(page)
    assert f'name="clone" value="{scene.job.pk}"' in page
    typed = changed(scene.job, variables="LR=0.5", priority="7")
    told = text_of(bob.post(reverse("convert_spec") + "?from=form", typed).content.decode())
    assert "priority 3 7" in told
    assert "variables.LR – 0.5" in told
    assert "Changes from job" not in bob.get("/submit/").content.decode()


def test_the_clone_remembers_its_origin_and_its_page_links_the_comparison(scene: Scene, bob: Client) -> None:
    response = bob.post("/submit/", changed(scene.job, priority="7"))
    assert response.status_code == 302
    clone = Job.objects.latest("id")
    assert clone.cloned_from_id == scene.job.pk
    page = bob.get(f"/jobs/{clone.pk}/").content.decode()
    url = reverse("job_compare", args=[scene.job.pk, clone.pk])
    assert f'href="{url}"' in page
    told = text_of(bob.get(url).content.decode())
    assert "priority 3 7" in told
    found = bob.get(f"/jobs/{scene.job.pk}/compare/", {"with": f"#{clone.pk}"})
    assert (found.status_code, found["Location"]) == (302, url)


def test_nobody_learns_of_a_job_that_they_may_not_see(scene: Scene, browser_of) -> None:
    charlie, people = browser_of(scene.people.charlie), scene.people
    own = submit_job(
        actor=people.charlie,
        tenant=people.bio,
        cluster=scene.world.cluster,
        spec=JobSpec(name="own", command="true"),
        cloned_from=scene.job,
    )
    assert own.cloned_from is None
    assert charlie.get(reverse("job_compare", args=[own.pk, scene.job.pk])).status_code == 404
    assert charlie.get(reverse("job_compare", args=[scene.job.pk, own.pk])).status_code == 404
    typed = charlie.get(f"/jobs/{own.pk}/compare/", {"with": str(scene.job.pk)}, follow=True)
    assert f"There is no job “{scene.job.pk}” that you can see" in typed.content.decode()
    assert charlie.post("/submit/", changed(scene.job)).status_code in {302, 422}
    assert Job.objects.latest("id").cloned_from is None
    Job.objects.filter(pk=own.pk).update(cloned_from=scene.job)  # as if Charlie had left Astro
    assert "cloned from" not in charlie.get(f"/jobs/{own.pk}/").content.decode()


def test_the_comparison_has_the_results_and_the_last_metrics_of_both_jobs(scene: Scene, bob: Client) -> None:
    one, other = scene.job, scene.waiting
    record(one, SOURCE.OUTPUT, {"loss": [3.0, 2.0, 0.25], "accuracy": [0.5]})
    record(one, SOURCE.MACHINE, {"gpu_utilisation@n1/0": [10.0, 40.0], "gpu_utilisation@n1/1": [10.0, 60.0]})
    record(other, SOURCE.OUTPUT, {"loss": [3.0, 0.5]})
    one.refresh_from_db()
    Job.objects.filter(pk=one.pk).update(created_at=one.first_started_at - timedelta(seconds=90))
    url = reverse("job_compare", args=[one.pk, other.pk])
    bob.get(url)
    with queries_of("the comparison of two jobs"):
        told = text_of(bob.get(url).content.decode())
    assert "State Running Queued" in told
    assert re.search(r"GPU type (A100|V100) –", told)
    assert re.search(r"Waiting time 1 min 30 s \d[^–]*? so far Duration", told)
    assert re.search(r"Duration [^–]*so far – GPU time", told)
    # The running job goes on while the test runs.
    sums = r"GPU time 3[.0-9]* GPU-h so far 1[.0-9]* GPU-h so far Cost 9\.\d\d EUR so far 1\.\d\d EUR so far"
    assert re.search(sums, told)
    assert "loss 0.25 0.5" in told
    assert "accuracy 0.5 –" in told
    assert "GPU utilisation (mean of the GPUs) 50 % –" in told
    Job.objects.filter(pk=other.pk).update(
        state=Job.State.CANCELLED, ended_at=other.created_at + timedelta(seconds=42)
    )
    assert re.search(r"Waiting time 1 min 30 s 42 s Duration", text_of(bob.get(url).content.decode()))
