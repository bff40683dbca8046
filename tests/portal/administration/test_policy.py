"""Admins choose a cluster's policy, preview its effect on shares, and compare it with a shadow policy."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from accounting.models import AuditEvent
from fairshare import codec, policies
from portal.wording import POLICIES
from scheduling.models import Cluster, ShadowRound
from scheduling.rounds.shadow import ask_shadow
from tests.portal.reading import tables_on
from tests.portal.scene import Scene
from tests.scheduling.rounds.test_policies import Counting

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(policies._BY_VERSION, ("counting", 3), Counting)


def address(scene: Scene, *more: str) -> str:
    return "/".join(["/admin/clusters", str(scene.world.cluster.pk), "policy", *more, ""])


def test_an_admin_chooses_the_policy_and_its_options_which_is_audited(scene: Scene, browser_of) -> None:
    ada = browser_of(scene.people.ada)
    assert f'href="{address(scene)}"' in ada.get("/admin/settings/").content.decode()
    page = ada.get(address(scene), {"policy": "counting"}).content.decode()
    assert re.search(r'name="by"[^>]*value="1"', page)
    saved = ada.post(address(scene, "change"), {"policy": "counting", "by": "2.5"})
    assert saved.status_code == 302
    cluster = Cluster.objects.get(pk=scene.world.cluster.pk)
    assert (cluster.policy, cluster.policy_options) == ("counting", {"by": 2.5})
    event = AuditEvent.objects.latest("id")
    assert (event.verb, event.after) == (
        "cluster.update",
        {"policy": "counting", "policy_options": {"by": 2.5}},
    )
    assert re.search(r'name="by"[^>]*value="2.5"', ada.get(address(scene)).content.decode())


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"policy": "counting", "by": "-1"}, "by: must be at least 0, not -1."),
        ({"policy": "counting", "by": "much"}, "A number"),
        ({"policy": "fifo"}, "There is no policy"),
    ],
)
@pytest.mark.parametrize("what", ["change", "preview"])
def test_an_option_that_a_policy_refuses_has_its_error_beside_the_field(
    scene: Scene, browser_of, form: dict[str, str], said: str, what: str
) -> None:
    answer = browser_of(scene.people.ada).post(address(scene, what), form)
    assert answer.status_code == 422
    told = re.search(r'class="field-error"[^>]* role="alert">([^<]*)<', answer.content.decode())
    assert told
    assert said.lower() in told[1].lower()
    assert Cluster.objects.get(pk=scene.world.cluster.pk).policy == policies.DEFAULT


def test_a_preview_shows_shares_before_and_after_and_saves_nothing(
    scene: Scene, browser_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    def halved(self: Counting, view: Any) -> Any:
        return self._inner.divide(view) / 2

    monkeypatch.setattr(Counting, "divide", halved)
    ada, events = browser_of(scene.people.ada), AuditEvent.objects.count()
    page = ada.post(address(scene, "preview"), {"policy": "counting", "by": "2"}).content.decode()
    row = next(row for row in page.split("<tr>") if "Bio" in row and "A100" in row)
    assert 'data-label="Entitlement in GPUs">2 → 2<' in row, "what tickets earn is no policy's to say"
    assert 'data-label="Fair share in GPUs">2 → 1<' in row
    assert "Preview of the policy counting with the options by 2.0. Nothing is saved yet." in page
    assert AuditEvent.objects.count() == events
    form = dict(re.findall(r'type="hidden" name="(policy|by)" value="([^"]*)"', page))
    assert ada.post(address(scene, "change"), form).status_code == 302
    assert Cluster.objects.get(pk=scene.world.cluster.pk).policy_options == {"by": 2.0}


def test_a_shadow_policy_decides_on_the_same_views_and_both_are_shown_side_by_side(
    scene: Scene, browser_of
) -> None:
    ada, lab = browser_of(scene.people.ada), scene.world
    assert ask_shadow(cluster_id=lab.cluster.pk) == 0
    saved = ada.post(address(scene, "shadow"), {"shadow": "counting:3"})
    assert saved.status_code == 302
    assert "has made no decision yet" in ada.get(address(scene)).content.decode()
    for rounds in (1, 1):
        lab.quantum()
        assert ask_shadow(cluster_id=lab.cluster.pk) == rounds
    lab.pass_time(60)
    for _ in range(2):
        lab.quantum()
    assert ask_shadow(cluster_id=lab.cluster.pk) == 2
    assert ask_shadow(cluster_id=lab.cluster.pk) == 0
    rows = list(ShadowRound.objects.order_by("round__number"))
    assert [row.policy for row in rows] == ["counting"] * 4
    assert rows[-1].own_figures == rows[-1].real_figures  # the policy "counting" decides like gandiva_fair
    page = ada.get(address(scene)).content.decode()
    for text in ("4 rounds compared since", "Gangs stopped or moved per hour", "Jobs waiting", "counting 3"):
        assert text in page
    answer = (
        browser_of(scene.people.olga).get(f"/api/v1/clusters/{lab.cluster.name}/policy/comparison").json()
    )
    assert (answer["rounds"], answer["shadow"]) == (4, "counting 3")
    assert {one["team"] for one in answer["shares"]} == {"astro", "bio"}
    assert ada.post(address(scene, "shadow"), {"shadow": ""}).status_code == 302
    assert Cluster.objects.get(pk=lab.cluster.pk).shadow is None
    assert ada.post(address(scene, "shadow"), {"shadow": "counting:4"}).status_code == 422


def test_each_policy_has_a_name_for_people(scene: Scene, browser_of) -> None:
    own = policies._BY_VERSION.values()
    assert set(POLICIES) == {one.name for one in own if one.__module__.startswith("fairshare.")}
    page = browser_of(scene.people.ada).get("/admin/settings/").content.decode()
    assert "Policy: Fair share with trades" in page
    assert "<code>gandiva_fair</code>" in browser_of(scene.people.ada).get(address(scene)).content.decode()


def test_the_market_is_previewed_compared_with_the_default_and_chosen(scene: Scene, browser_of) -> None:
    ada, lab = browser_of(scene.people.ada), scene.world
    page = ada.get(address(scene), {"policy": "market"}).content.decode()
    assert re.findall(r'<input[^>]* name="(memory|least_gain|pricing)"', page) == ["memory"]
    preview = ada.post(address(scene, "preview"), {"policy": "market", "memory": "600"})
    assert (
        "Preview of the policy Market with the options memory 600.0. Nothing is saved yet."
        in preview.content.decode()
    )
    assert ada.post(address(scene, "shadow"), {"shadow": "market:1"}).status_code == 302
    lab.quantum()
    assert ask_shadow(cluster_id=lab.cluster.pk) == 1
    assert "market 1" in ada.get(address(scene)).content.decode()
    assert ada.post(address(scene, "change"), {"policy": "market", "memory": "600"}).status_code == 302
    round_ = lab.quantum()
    assert (round_.policy, round_.policy_version, round_.policy_options["memory"]) == ("market", 1, 600.0)


def test_the_shadow_policy_keeps_its_state_between_rounds(scene: Scene) -> None:
    lab = scene.world
    Cluster.objects.filter(pk=lab.cluster.pk).update(shadow=["counting", 3])
    for _ in range(3):
        lab.quantum()
        ask_shadow(cluster_id=lab.cluster.pk)
        lab.pass_time(60)
    rows = ShadowRound.objects.order_by("round__number")
    known = [codec.decode_state(bytes(row.state))["known"][0] for row in rows]
    assert known == pytest.approx([0, 60, 120], abs=5)


def test_settings_are_saved_only_after_a_preview_of_what_changes(scene: Scene, browser_of) -> None:
    ada, olga, pk = browser_of(scene.people.ada), browser_of(scene.people.olga), scene.world.cluster.pk
    assert f'action="/admin/clusters/{pk}/settings/preview/"' in ada.get("/admin/settings/").content.decode()
    events = AuditEvent.objects.count()
    form = {"ordering": "lottery", "slicing": "checkpoint", "quantum_seconds": "120", "min_hold_seconds": "0",
            "overhead_limit": "5", "trading": "on"}  # fmt: skip
    page = ada.post(f"/admin/clusters/{pk}/settings/preview/", form).content.decode()
    (rows,) = (rows for caption, rows in tables_on(page).items() if caption == "Settings that would change")
    assert [row[:3] for row in rows[1:]] == [
        ["Ordering", "Stride (deterministic)", "Lottery (seeded, verifiable)"],
        ["Quantum", "60 s", "120 s"],
    ]
    assert AuditEvent.objects.count() == events
    sent = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))
    assert ada.post(f"/admin/clusters/{pk}/settings/", sent).status_code == 302
    assert Cluster.objects.get(pk=pk).quantum_seconds == 120
    again = ada.post(f"/admin/clusters/{pk}/settings/preview/", form).content.decode()
    assert "All settings have these values already." in again
    assert (
        ada.post(f"/admin/clusters/{pk}/settings/preview/", form | {"quantum_seconds": "0"}).status_code
        == 422
    )
    assert olga.post(f"/admin/clusters/{pk}/settings/preview/", form).status_code == 404


def test_the_api_says_what_settings_would_change_before_it_changes_them(scene: Scene, browser_of) -> None:
    ada, olga = browser_of(scene.people.ada), browser_of(scene.people.olga)
    url = f"/api/v1/clusters/{scene.world.cluster.name}/settings"

    def patch(who, **body: Any) -> Any:
        return who.patch(url, json.dumps(body), content_type="application/json")

    assert olga.get(url).json()["quantum_seconds"] == 60
    assert patch(olga, quantum_seconds=90).status_code == 404
    proposed = patch(ada, quantum_seconds=90, trading=False, dry_run=True).json()
    assert [(one["name"], one["before"], one["after"]) for one in proposed["changes"]] == [
        ("quantum_seconds", "60 s", "90 s"),
        ("trading", "on", "off"),
    ]
    assert proposed["settings"]["quantum_seconds"] == olga.get(url).json()["quantum_seconds"] == 60
    assert patch(ada, quantum_seconds=90).json()["settings"]["quantum_seconds"] == 90
    assert olga.get(url).json()["trading"] is True
    assert patch(ada, quantum_seconds=None).status_code in {409, 422}
    assert patch(ada, cpu_per_gpu=None).json()["changes"] == []


def test_the_api_sets_previews_and_refuses(scene: Scene, browser_of) -> None:
    ada, olga = browser_of(scene.people.ada), browser_of(scene.people.olga)
    url = f"/api/v1/clusters/{scene.world.cluster.name}/policy"

    def put(who, body: Any) -> Any:
        return who.put(url, json.dumps(body), content_type="application/json")

    body = {"name": "counting", "options": {"by": 2}, "shadow": {"name": "gandiva_fair", "version": 1}}
    assert put(olga, body).status_code == 404
    assert put(ada, body).status_code == 200
    found = olga.get(url).json()
    assert (found["name"], found["version"], found["options"]) == ("counting", 3, {"by": 2.0})
    assert found["shadow"] == {"name": "gandiva_fair", "version": 1}
    assert [one["name"] for one in found["choices"]] == policies.names()
    for wrong in (
        {"name": "fifo"},
        {"name": "counting", "options": {"by": "x"}},
        {"name": "counting", "options": {"ordering": "stride"}},
        {"name": "counting", "shadow": {"name": "counting", "version": 9}},
    ):
        assert put(ada, wrong).status_code in {409, 422}, wrong
    asked = {"name": "gandiva_fair", "options": {}}
    rows = ada.post(f"{url}/preview", json.dumps(asked), content_type="application/json").json()
    assert {row["team"] for row in rows} >= {"astro", "bio"}
