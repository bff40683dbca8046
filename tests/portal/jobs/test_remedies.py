"""The page of a waiting job has buttons and links that let it start sooner, and the API lists the same."""

from __future__ import annotations

import re
from html import unescape

import pytest

from fairshare.model import Reason
from scheduling.jobs.actions import cancel_job
from scheduling.models import Job, Lease, ShareBalance
from scheduling.services.replicas import step_service
from scheduling.sessions.actions import start_session
from scheduling.spec.job_spec import JobSpec
from tests.portal.scene import Scene
from tests.scheduling.leases.test_repeated_work import again


def waiting(scene: Scene, reason: Reason, **fields: object) -> Job:
    """Returns a job of Bob's of which the last round said `reason`."""
    job = scene.world.submit(scene.people.bob, scene.people.astro, name="nebula", **fields)
    Job.objects.filter(pk=job.pk).update(reason=reason)
    return job


def test_a_button_changes_the_job_and_says_so(scene: Scene, browser_of) -> None:
    job = waiting(scene, Reason.SHARE_IN_USE, generations=["V100"])
    bob, url = browser_of(scene.people.bob), f"/jobs/{job.pk}/"
    html = bob.get(url).content.decode()
    assert ">Accept every GPU type</button>" in html
    assert "The job then also accepts A100." in html
    html = bob.post(f"{url}remedy/", {"code": "every_type"}, follow=True).content.decode()
    assert "nebula has been changed." in html
    job.refresh_from_db()
    assert job.generation_ids == []
    html = bob.post(f"{url}remedy/", {"code": "every_type"}, follow=True).content.decode()
    assert "The job&#x27;s situation has changed" in html
    assert browser_of(scene.people.charlie).post(f"{url}remedy/", {"code": "every_type"}).status_code == 404


@pytest.mark.parametrize(
    ("who", "reason", "expected"),
    [
        ("bob", Reason.NEVER_TOO_LARGE, "workers=2&gpus_per_worker=2"),
        ("alice", Reason.SHARE_IN_USE, "/team/astro/ask/"),
        ("alice", Reason.HOURS_SPENT, "/team/astro/ask/"),
        ("alice", Reason.OWNER_MAY_NOT, "/team/astro/"),
        ("ada", Reason.OWNER_MAY_NOT, "/admin/tenants/astro/"),
        ("olga", Reason.CLUSTER_PAUSED, "/admin/nodes/"),
    ],
)
def test_links_lead_to_pages_that_their_reader_may_open(
    scene: Scene, browser_of, who: str, reason: Reason, expected: str
) -> None:
    job = waiting(scene, reason, workers=3, gpus=2)
    reader = browser_of(getattr(scene.people, who))
    part = reader.get(f"/jobs/{job.pk}/").content.decode().split('class="remedies"')[1].split("</ul>")[0]
    [link] = [unescape(link) for link in re.findall('href="([^"]+)"', part)]
    assert expected in link
    assert reader.get(link).status_code == 200


def test_links_lead_to_the_session_and_service_that_hold_the_share(scene: Scene, browser_of) -> None:
    bob = scene.people.bob
    for job in (scene.waiting, scene.other):
        cancel_job(actor=scene.people.ada, job=job)
    scene.world.carry_out()
    session = start_session(
        actor=bob,
        tenant=scene.people.astro,
        cluster=scene.world.cluster,
        spec=JobSpec(name="notes", command="serve", port=8000),
    ).job
    step_service(service_id=scene.service.pk)
    scene.world.fill()
    scene.world.carry_out()
    holding = Lease.objects.filter(state__in=Lease.HOLDING)
    assert set(holding.values_list("job__kind", flat=True)) >= {Job.Kind.SESSION, Job.Kind.REPLICA}
    ShareBalance.objects.filter(user=bob).update(share=0)
    job = waiting(scene, Reason.SHARE_IN_USE)
    page = browser_of(bob).get(f"/jobs/{job.pk}/").content.decode()
    for url, label in (
        (f"/sessions/{session.pk}/", "Stop session"),
        (f"/services/{scene.service.pk}/#scale", "Scale service"),
    ):
        assert f'href="{url}">{label} “' in page
        assert browser_of(bob).get(url.partition("#")[0]).status_code == 200
    assert 'id="scale"' in browser_of(bob).get(f"/services/{scene.service.pk}/").content.decode()


def test_the_link_to_a_smaller_clone_fills_the_form(scene: Scene, browser_of) -> None:
    job = waiting(scene, Reason.SHARE_IN_USE, gpus=2)
    html = (
        browser_of(scene.people.bob)
        .get(f"/submit/?clone={job.pk}&workers=2&gpus_per_worker=1")
        .content.decode()
    )
    assert "workers: 2" in html
    assert "gpus_per_worker" not in html.split('id="yaml"')[1].split("</textarea>")[0]


def test_the_api_lists_what_its_caller_can_do(scene: Scene, browser_of) -> None:
    job = waiting(scene, Reason.SHARE_IN_USE, generations=["V100"])
    url = f"/api/v1/jobs/{job.pk}"
    [remedy] = browser_of(scene.people.bob).get(f"{url}/scheduling").json()["remedies"]
    assert (remedy["code"], remedy["kind"], remedy["changes"]) == (
        "every_type",
        "change",
        {"generations": []},
    )
    codes = [
        one["code"] for one in browser_of(scene.people.alice).get(f"{url}/scheduling").json()["remedies"]
    ]
    assert codes == ["every_type", "ask_for_tickets"]
    assert (
        browser_of(scene.people.bob).get(f"/api/v1/jobs/{scene.job.pk}/scheduling").json()["remedies"] == []
    )


def test_the_page_of_a_running_job_does_not_promise_what_its_program_may_not_do(
    scene: Scene, browser_of
) -> None:
    bob = browser_of(scene.people.bob)
    html = bob.get(f"/jobs/{scene.job.pk}/").content.decode()
    assert "unless its program reads its own checkpoint" in html
    [link] = re.findall('href="([^"]+)">How to resume</a>', html)
    for page in (html, bob.get("/submit/").content.decode()):
        assert link in page
    page, section = link.split("#")
    assert f'id="{section}"' in bob.get(page).content.decode()


def test_a_job_that_does_its_work_again_says_what_it_cost_and_what_helps(scene: Scene, browser_of) -> None:
    lab, job, bob = scene.world, scene.job, browser_of(scene.people.bob)
    for _ in range(3):
        again(lab, job, steps=50)
    html = bob.get(f"/jobs/{job.pk}/").content.decode()
    assert "The work of 3 attempts was lost: the latest attempt began at step 1" in html
    answer = bob.get(f"/api/v1/jobs/{job.pk}/scheduling").json()
    assert [one["code"] for one in answer["remedies"]] == ["save_checkpoints", "clone_corrected"]
    found = answer["repeated_work"]
    assert (found["attempts"], found["step"], found["reached"]) == (3, 1, 50)
    [(currency, cost)] = found["costs"].items()
    assert currency in html
    assert float(cost) > 0
    part = html.split("The work of 3 attempts")[1].split("</ul>")[0]
    for link in map(unescape, re.findall('href="([^"]+)"', part)):
        assert bob.get(link).status_code == 200
    assert browser_of(scene.people.charlie).get(f"/api/v1/jobs/{job.pk}/scheduling").status_code == 404
