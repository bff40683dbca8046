"""The cards of the home page show each role what waits for it, and nobody what the user may not see."""

from __future__ import annotations

import re
from datetime import timedelta

from django.test import Client
from django.utils.timezone import now

from accounting.actions import set_budget
from accounting.models import Invitation, Membership, Notification, NotificationEvent, User
from accounting.models.notifications import EventKind
from portal.home.cards import groups_for
from scheduling.models import Cluster, GpuUse, JobForecast, Node, SharingAnalysis, SharingAnomaly, SharingPart
from tests.portal.administration.test_clusters import text_of
from tests.portal.scene import Scene, secrets_in


def cards(user: User) -> dict[str, dict[str, tuple[int, list[str]]]]:
    """Returns the number and the texts of the rows of each card that is shown, by group and title."""
    found = groups_for(User.objects.get(pk=user.pk), list(Cluster.objects.attached()))
    return {
        group.title: {card.title: (card.number, [row.text for row in card.rows]) for card in group.filled}
        for group in found
    }


def failed(scene: Scene, user: User, number: int) -> Notification:
    event = NotificationEvent.objects.create(
        key=f"failed {number}",
        kind=EventKind.JOB_FAILED,
        tenant=scene.people.astro,
        job_id=scene.job.pk,
        title=f"Job supernova-{number} failed",
        path=f"/jobs/{scene.job.pk}/",
    )
    return Notification.objects.create(event=event, user=user)


def test_a_person_with_several_roles_sees_them_in_order(scene: Scene) -> None:
    cast = scene.people
    assert list(cards(cast.bob)) == ["For you"]
    assert list(cards(cast.alice)) == ["For you", "Your teams"]
    assert list(cards(cast.olga)) == ["For you", "Operations"]
    Membership.objects.create(user=cast.olga, tenant=cast.bio, role=Membership.Role.MANAGER)
    assert list(cards(cast.olga)) == ["For you", "Your teams", "Operations"]


def test_failures_leave_the_card_when_they_are_read(scene: Scene, browser_of) -> None:
    bob = scene.people.bob
    kept = [failed(scene, bob, number) for number in range(5)]
    title = "Failed since you last looked"
    number, rows = cards(bob)["For you"][title]
    assert (number, len(rows), rows[0]) == (5, 3, "Job supernova-4 failed")
    browser: Client = browser_of(bob)
    opened = browser.post(f"/notifications/{kept[4].pk}/open/")
    assert opened["Location"] == f"/jobs/{scene.job.pk}/"
    assert cards(bob)["For you"][title][0] == 4
    Notification.objects.update(read_at=now())
    assert title not in cards(bob)["For you"]
    assert "No new failures, no drafts, no invitations." in text_of(browser.get("/"))


def test_an_invitation_to_the_users_address_waits_until_it_is_answered(scene: Scene) -> None:
    cast = scene.people
    User.objects.filter(pk=cast.charlie.pk).update(email="Charlie@uni.example")
    made = {"tenant": cast.astro, "expires_at": now() + timedelta(days=1)}
    invitation = Invitation.objects.create(email="charlie@uni.example", **made)
    Invitation.objects.create(email="somebody@uni.example", **made)
    Invitation.objects.create(**made)
    title = "Invitations to answer"
    assert cards(cast.charlie)["For you"][title] == (1, ["Astro"])
    for changed in ({"barred": [cast.charlie.pk]}, {"uses": 1}, {"expires_at": now() - timedelta(days=1)}):
        kept = {name: getattr(invitation, name) for name in changed}
        Invitation.objects.filter(pk=invitation.pk).update(**changed)
        assert title not in cards(cast.charlie)["For you"], changed
        Invitation.objects.filter(pk=invitation.pk).update(**kept)
    assert title in cards(cast.charlie)["For you"]
    Membership.objects.create(user=cast.charlie, tenant=cast.astro)
    assert title not in cards(cast.charlie)["For you"]


def test_a_manager_sees_budgets_people_and_requests_of_the_own_teams_only(scene: Scene) -> None:
    cast = scene.people
    set_budget(actor=cast.ada, tenant=cast.astro, amount=100, percentages=[80])
    shown = cards(cast.alice)["Your teams"]
    assert shown == {
        "Budgets": (1, ["Astro"]),
        "People with GPUs now": (1, ["bob"]),
        "Open requests of your teams": (1, ["Tickets for Astro"]),
    }
    Membership.objects.filter(user=cast.charlie).update(role=Membership.Role.MANAGER)
    assert cards(cast.charlie)["Your teams"] == {"People with GPUs now": (1, ["charlie"])}


def test_an_operator_sees_idle_gpus_teams_nodes_requests_and_anomalies(scene: Scene) -> None:
    olga, moment = scene.people.olga, now()
    usual = {"Teams with GPUs now": (2, ["Astro", "Bio"]), "Open requests": (1, ["Tickets for Astro"])}
    assert cards(olga)["Operations"] == usual
    GpuUse.objects.create(
        job=scene.job,
        lease=scene.world.lease(scene.job),
        measured_until=moment,
        measure="gpu",
        percent=0,
        idle_since=moment,
        idle_for=timedelta(0),
    )
    for state, name in (("down", "broken"), ("drained", "empty"), ("closed", "shut")):
        Node.objects.create(
            cluster=scene.world.cluster, name=name, generation=scene.people.v100, gpus=1, state=state
        )
    for days in (2, 1):
        analysis = SharingAnalysis.objects.create(
            cluster=scene.world.cluster,
            begins=moment - timedelta(days=days + 1),
            ends=moment - timedelta(days=days),
            finished_at=moment,
        )
        part = SharingPart.objects.create(analysis=analysis, tenant=scene.people.bio, done_at=moment)
        SharingAnomaly.objects.create(
            part=part,
            job=scene.other,
            cause=SharingAnomaly.Cause.PRIORITY,
            late_seconds=900,
            at_end=False,
            private_started_at=moment,
        )
    assert cards(olga)["Operations"] == usual | {
        "Idle GPUs": (4, ["supernova"]),
        "Nodes in trouble": (2, ["shut", "broken"]),
        "Anomalies in the last analysis": (1, ["genome"]),
    }


def test_the_page_has_the_cards_with_links_that_lead_somewhere(scene: Scene, browser_of) -> None:
    failed(scene, scene.people.bob, 1)
    for who in ("alice", "bob", "charlie", "olga", "ada"):
        browser: Client = browser_of(getattr(scene.people, who))
        html = browser.get("/").content.decode()
        part = html[html.index('id="home-cards"') : html.index('id="home-body"')]
        for address in re.findall(r'href="([^"]+)"', part):
            assert browser.get(address.replace("&amp;", "&")).status_code == 200, (who, address)
        if who == "charlie":
            assert secrets_in(html) == []
        only = browser.get("/", headers={"HX-Request": "true", "HX-Target": "div#home-cards"})
        assert 'id="home-body"' not in only.content.decode()
        assert 'id="home-cards"' in only.content.decode()


def test_an_operator_without_jobs_sees_whose_the_jobs_are(scene: Scene, browser_of) -> None:
    said = f"{scene.job.owner.username}, {scene.job.tenant.name} · "
    assert said in browser_of(scene.people.olga).get("/").content.decode()
    assert said not in browser_of(scene.job.owner).get("/").content.decode()


def test_a_waiting_job_on_the_page_says_when_it_is_expected_to_start(scene: Scene, browser_of) -> None:
    alice = browser_of(scene.people.alice)
    assert "starts in" not in text_of(alice.get("/"))
    moment = now()
    JobForecast.objects.update_or_create(
        job=scene.waiting,
        defaults={
            "at": moment,
            "earliest": moment + timedelta(hours=2, minutes=1),
            "starts_by": moment + timedelta(hours=5, minutes=1),
        },
    )
    assert re.search(r"starts in 2 h ?, at the latest in 5 h", text_of(alice.get("/")))
