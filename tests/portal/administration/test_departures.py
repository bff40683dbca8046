"""An admin who removes or deactivates a user sees the user's jobs and other work, and decides what happens to this
work."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from accounting.core.clock import now_from_database
from accounting.models import AuditEvent, Membership, User
from scheduling.departures.actions import deactivate_user
from scheduling.models import Job, Schedule, Service
from tests import make
from tests.portal.scene import Scene

pytestmark = pytest.mark.django_db
Browser = Callable[..., Client]
# The unfinished work that Bob has in the scene.
HIS = "Unfinished work of this user: 1 running job, 1 service and 1 schedule."


def words(page: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def leaving(scene: Scene) -> str:
    return f"/admin/tenants/astro/members/{scene.membership.pk}"


def test_a_member_is_removed_with_a_choice_for_the_work(scene: Scene, browser_of: Browser) -> None:
    people, ada = scene.people, browser_of(scene.people.ada)
    make.membership(make.user("cora"), people.uni)
    page = ada.get(f"{leaving(scene)}/leaving/").content.decode()
    assert HIS in words(page)
    assert f'<option value="{people.alice.pk}">alice</option>' in page
    assert "charlie" not in page
    form = {"fate": "hand_over", "to": ""}
    refused = ada.post(f"{leaving(scene)}/remove/", form)
    assert (refused.status_code, Membership.objects.filter(pk=scene.membership.pk).exists()) == (422, True)
    assert "Choose the new owner." in refused.content.decode()
    assert ada.post(f"{leaving(scene)}/remove/", form | {"to": str(people.alice.pk)}).status_code == 302
    assert not Membership.objects.filter(pk=scene.membership.pk).exists()
    scene.job.refresh_from_db()
    assert (scene.job.owner, scene.job.state) == (people.alice, Job.State.RUNNING)
    assert Schedule.objects.get(pk=scene.schedule.pk).owner == people.alice


def test_the_last_manager_learns_before_the_press_that_the_team_needs_another(
    scene: Scene, browser_of: Browser
) -> None:
    alice = browser_of(scene.people.alice)
    own = Membership.objects.get(user=scene.people.alice, tenant=scene.people.astro)
    page = f"/team/astro/members/{own.pk}/leaving/"
    html = alice.get(page).content.decode()
    assert "Astro would then have no manager. Make another member a manager first" in words(html)
    assert "Remove alice</button>" not in html
    assert alice.post(f"/team/astro/members/{own.pk}/remove/").status_code == 422
    Membership.objects.filter(pk=scene.membership.pk).update(role="manager")
    assert "Remove alice</button>" in alice.get(page).content.decode()
    Membership.objects.filter(pk=scene.membership.pk).update(role="member")
    as_admin = browser_of(scene.people.ada).get(page.replace("/team/", "/admin/tenants/")).content.decode()
    assert "Remove alice</button>" in as_admin


def test_the_page_of_the_last_admin_offers_no_deactivation(scene: Scene, browser_of: Browser) -> None:
    ada, page = browser_of(scene.people.ada), f"/admin/users/{scene.people.ada.pk}/"
    html = ada.get(page).content.decode()
    assert "ada is the last active admin. Make another user an admin first." in html
    assert "Deactivate ada" not in html
    User.objects.filter(pk=scene.people.olga.pk).update(portal_role="admin")
    assert "Deactivate ada</button>" in ada.get(page).content.decode()


def test_work_of_a_deactivated_user_can_be_settled_later(scene: Scene, browser_of: Browser) -> None:
    people, ada = scene.people, browser_of(scene.people.ada)
    url = f"/admin/users/{people.bob.pk}/"
    assert HIS in words(ada.get(url).content.decode())
    assert ada.post(f"{url}deactivate/", {"fate": "waits"}).status_code == 302
    assert User.objects.get(pk=people.bob.pk).is_active is False
    page = ada.get(url).content.decode()
    assert "Unfinished work" in page
    assert 'value="waits"' not in page
    assert ada.post(f"{url}settle/", {"fate": "cancel"}).status_code == 302
    scene.job.refresh_from_db()
    assert scene.job.state == Job.State.CANCELLING
    assert Service.objects.get(pk=scene.service.pk).stopped_at is not None
    assert Schedule.objects.get(pk=scene.schedule.pk).paused_at is not None


def test_removing_a_user_without_work_needs_no_choice(scene: Scene, browser_of: Browser) -> None:
    ada = browser_of(scene.people.ada)
    page = ada.get(f"/admin/users/{scene.people.olga.pk}/").content.decode()
    assert 'name="fate"' not in page
    assert ada.post(f"/admin/users/{scene.people.olga.pk}/deactivate/").status_code == 302


def test_a_manager_hands_work_over_by_the_api(scene: Scene, browser_of: Browser) -> None:
    people = scene.people

    def post(user: User, **body: Any) -> Any:
        return browser_of(user).post(
            "/api/v1/work/bob/hand-over", {"team": "astro"} | body, content_type="application/json"
        )

    there = browser_of(people.alice).get("/api/v1/work/bob?team=astro").json()
    assert there == {
        "running_jobs": 1,
        "waiting_jobs": 0,
        "sessions": 0,
        "services": 1,
        "schedules": 1,
        "sweeps": 0,
        "pipelines": 0,
    }
    assert browser_of(people.alice).get("/api/v1/work/charlie?team=astro").status_code == 404
    for user in (people.bob, people.charlie, people.olga):
        assert post(user, to="alice").status_code == 404
    make.membership(people.olga, people.astro)
    User.objects.filter(pk=people.olga.pk).update(is_active=False)
    make.membership(make.user("cora"), people.uni)
    for name in ("charlie", "nobody", "olga", "cora"):
        answer = post(people.alice, to=name)
        assert answer.status_code == 409
        assert answer.json()["detail"] == (
            f"{name} may not submit jobs in Astro. Choose a member who may submit jobs there."
        )
    done = post(people.alice, to="alice")
    assert done.json() == {"jobs": 1, "services": 1, "schedules": 1, "sweeps": 0, "pipelines": 0, "kept": []}
    event = AuditEvent.objects.get(verb="member.hand_over")
    assert (event.actor, event.target_name, event.after["owner"]) == (people.alice, "bob", "alice")


def test_the_api_lists_a_former_member_who_left_only_a_service(scene: Scene, browser_of: Browser) -> None:
    people, alice = scene.people, browser_of(scene.people.alice)
    scene.membership.delete()
    for own in (people.bob.jobs, people.bob.schedules):
        own.update(owner=people.alice)
    assert alice.get("/api/v1/work/bob?team=astro").json()["services"] == 1
    people.bob.services.update(owner=people.alice)
    assert alice.get("/api/v1/work/bob?team=astro").status_code == 404


def test_managers_can_choose_among_the_users_they_see(scene: Scene, browser_of: Browser) -> None:
    people, cora = scene.people, make.user("cora")
    make.membership(cora, people.uni)
    team = f"/team/astro/members/{scene.membership.pk}"
    alice, ada = browser_of(people.alice), browser_of(people.ada)
    assert "cora" in ada.get(f"{leaving(scene)}/leaving/").content.decode()
    page = alice.get(f"{team}/leaving/").content.decode()
    assert ("alice" in page, "cora" in page) == (True, False)
    for pk in (cora.pk, people.charlie.pk, 10**6):
        refused = alice.post(f"{team}/remove/", {"fate": "hand_over", "to": str(pk)})
        assert refused.status_code == 422
        assert "Choose an option from the list." in refused.content.decode()


def test_a_refusal_is_shown_though_the_work_has_ended_meanwhile(scene: Scene, browser_of: Browser) -> None:
    people, ada = scene.people, browser_of(scene.people.ada)
    deactivate_user(actor=people.ada, user=people.bob, fate="cancel")
    Job.objects.all().update(state=Job.State.CANCELLED, ended_at=now_from_database())
    Service.objects.all().update(removed_at=now_from_database())
    Schedule.objects.all().update(deleted_at=now_from_database())
    form = {"fate": "hand_over", "to": str(10**6)}
    for url in (f"{leaving(scene)}/remove/", f"/admin/users/{people.bob.pk}/settle/"):
        refused = ada.post(url, form)
        assert refused.status_code == 422
        assert "Choose an option from the list." in refused.content.decode()


@pytest.mark.parametrize(("above", "to"), [(False, "/"), (True, "/team/astro/")])
def test_managers_who_demote_themselves_are_led_to_a_page_they_may_see(
    scene: Scene, browser_of: Browser, above: bool, to: str
) -> None:
    people = scene.people
    own = Membership.objects.get(user=people.alice, tenant=people.astro)
    if above:
        make.membership(people.alice, people.uni, role="manager")
    else:
        Membership.objects.filter(user=people.bob, tenant=people.astro).update(role="manager")
    alice = browser_of(people.alice)
    answer = alice.post(f"/team/astro/members/{own.pk}/change/", {"role": "member", "tickets": "100"})
    assert (answer.status_code, answer["Location"]) == (302, to)
    assert alice.get(to, follow=True).status_code == 200


def test_the_last_manager_is_told_why_she_cannot_leave(scene: Scene, browser_of: Browser) -> None:
    alice, own = browser_of(scene.people.alice), Membership.objects.get(user=scene.people.alice)
    place, told = f"/team/astro/members/{own.pk}", "Astro would then have no manager."
    for url, form in (("change", {"role": "member", "tickets": "100"}), ("remove", {})):
        refused = alice.post(f"{place}/{url}/", form)
        assert (refused.status_code, told in refused.content.decode()) == (422, True), url
    own.refresh_from_db()
    assert own.role == "manager"


def test_a_user_who_leaves_a_team_gets_a_confirmation(scene: Scene, browser_of: Browser) -> None:
    alice, astro = scene.people.alice, scene.people.astro
    Membership.objects.filter(pk=scene.membership.pk).update(role="manager")  # otherwise she could not leave
    for member in Membership.objects.filter(tenant=astro):
        page = browser_of(alice).get(f"/team/astro/members/{member.pk}/leaving/").content.decode()
        assert ("You are removing yourself" in page) is (member.user == alice)
