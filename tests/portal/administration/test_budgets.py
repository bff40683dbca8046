"""Budgets on a team's pages and in the API: admins set and remove budgets, and the team's managers see what is
spent."""

from __future__ import annotations

import html as html_module

import pytest

from accounting.actions import set_budget
from accounting.models import AuditEvent, Budget
from tests.portal.scene import Scene

FORM = {
    "budget_period": "quarter",
    "amount": "500",
    "percentages": "50, 90",
    "by_forecast": "on",
    "webhook_url": "",
}


def shown(response) -> str:
    return " ".join(html_module.unescape(response.content.decode()).split())


def test_an_admin_sets_a_budget_and_managers_see_how_it_stands(scene: Scene, browser_of) -> None:
    ada = browser_of(scene.people.ada)
    assert ada.post("/admin/tenants/astro/budgets/set/", FORM).status_code == 302
    budget = Budget.objects.get()
    assert (budget.percentages, budget.by_forecast, budget.period) == ([50, 90], True, "quarter")
    for page in (
        shown(ada.get("/admin/tenants/astro/budgets/")),
        shown(browser_of(scene.people.alice).get("/team/astro/budgets/")),
    ):
        assert "of 500 EUR spent (" in page
    assert ada.post(f"/admin/tenants/astro/budgets/{budget.pk}/remove/").status_code == 302
    assert list(AuditEvent.objects.values_list("verb", flat=True)[:2]) == ["budget.remove", "budget.set"]


def test_an_invalid_budget_is_refused_and_stays_in_the_form(scene: Scene, browser_of) -> None:
    ada = browser_of(scene.people.ada)
    for wrong, said in (
        ({"percentages": "lots"}, "whole numbers of percent, separated by commas"),
        ({"amount": "-1"}, "greater than 0"),
        ({"webhook_url": "http://example.org"}, "must begin with https://"),
    ):
        got = ada.post("/admin/tenants/astro/budgets/set/", FORM | wrong)
        assert got.status_code == 422
        assert said in shown(got)
        assert f'value="{next(iter(wrong.values()))}"' in got.content.decode()
    assert not Budget.objects.exists()


def test_for_others_it_does_not_exist(scene: Scene, browser_of) -> None:
    cast = scene.people
    new = {"team": "astro", "amount": "5"}
    for user in (cast.bob, cast.charlie, cast.olga):
        client = browser_of(user)
        assert client.post("/admin/tenants/astro/budgets/set/", FORM).status_code == 404
        assert client.put("/api/v1/budgets", new, content_type="application/json").status_code == 404
        assert client.delete("/api/v1/budgets/1").status_code == 404


def test_the_api_sets_reads_and_removes(scene: Scene, browser_of) -> None:
    ada = browser_of(scene.people.ada)
    new = {"team": "astro", "amount": "5", "webhook_url": "https://example.org/hook"}
    made = ada.put("/api/v1/budgets", new, content_type="application/json").json()
    assert made["signing_key"] == Budget.objects.get(pk=made["id"]).signing_key()
    [one] = browser_of(scene.people.alice).get("/api/v1/budgets?team=astro").json()
    assert (one["amount"], one["percentages"], one["team"]) == ("5.00", [80, 100], "astro")
    assert "signing_key" not in one
    wrong = ada.put("/api/v1/budgets", new | {"amount": "0"}, content_type="application/json")
    assert (wrong.status_code, list(wrong.json()["problems"])) == (409, ["amount"])
    assert ada.delete(f"/api/v1/budgets/{made['id']}").status_code == 204
    assert ada.delete(f"/api/v1/budgets/{made['id']}").status_code == 404
    assert ada.get("/api/v1/budgets?team=astro").json() == []


def test_another_amount_keeps_what_is_not_given(scene: Scene, browser_of) -> None:
    cast = scene.people
    url = "https://example.org/hook"
    set_budget(
        actor=cast.ada,
        tenant=cast.astro,
        amount=500,
        percentages=[50, 90],
        by_forecast=False,
        webhook_url=url,
    )
    alice = browser_of(cast.alice)
    [form] = [
        part
        for part in alice.get("/team/astro/budgets/").content.decode().split("<form")
        if 'value="month"' in part and "budgets/set/" in part
    ]
    for shown_again in ('value="500"', 'value="50, 90"', f'value="{url}"'):
        assert shown_again in form
    assert "checked" not in form
    got = alice.put("/api/v1/budgets", {"team": "astro", "amount": "7"}, content_type="application/json")
    assert got.status_code == 200
    budget = Budget.objects.get()
    assert (budget.amount, budget.percentages, budget.by_forecast) == (7, [50, 90], False)
    assert budget.webhook_url == url


@pytest.mark.parametrize(("host", "ways"), [("", "by the bell, as"), ("mail", "by the bell and by mail, as")])
def test_the_page_says_how_managers_are_warned(
    scene: Scene, browser_of, settings, host: str, ways: str
) -> None:
    settings.EMAIL_HOST = host
    page = browser_of(scene.people.alice).get("/team/astro/budgets/").content.decode()
    assert f"Fairlot sends its warnings to the team&#x27;s managers {ways}".replace("&#x27;", "'") in page
    assert ("no mail server is configured" in page) is (not host)


def test_the_key_is_shown_to_admins_and_to_the_user_who_set_the_address(scene: Scene, browser_of) -> None:
    cast = scene.people
    made = set_budget(actor=cast.ada, tenant=cast.astro, amount=5, webhook_url="https://example.org/a")
    alice, new = browser_of(cast.alice), {"team": "astro", "amount": "5"}
    put = alice.put("/api/v1/budgets", new, content_type="application/json")
    assert put.json()["signing_key"] is None
    assert made.signing_key() not in shown(alice.get("/team/astro/budgets/"))
    assert made.signing_key() in shown(browser_of(cast.ada).get("/admin/tenants/astro/budgets/"))
    changed = alice.put(
        "/api/v1/budgets", new | {"webhook_url": "https://example.org/b"}, content_type="application/json"
    )
    key = Budget.objects.get().signing_key()
    assert key != made.signing_key()
    assert changed.json()["signing_key"] == key
    assert key in shown(alice.get("/team/astro/budgets/"))


def test_managers_choose_no_address_while_private_networks_may_be_called(
    scene: Scene, browser_of, settings
) -> None:
    settings.FAIRLOT_WEBHOOKS_TO_PRIVATE = True
    inside = {"team": "astro", "amount": "5", "webhook_url": "http://10.0.0.1/hook"}
    alice, ada = browser_of(scene.people.alice), browser_of(scene.people.ada)
    refused = alice.put("/api/v1/budgets", inside, content_type="application/json")
    assert (refused.status_code, list(refused.json()["problems"])) == (409, ["webhook_url"])
    assert ada.put("/api/v1/budgets", inside, content_type="application/json").status_code == 200
    assert (
        alice.put("/api/v1/budgets", inside | {"amount": "6"}, content_type="application/json").status_code
        == 200
    )


def test_a_box_that_was_not_ticked_stays_so_where_the_amount_is_refused(scene: Scene, browser_of) -> None:
    form = {name: value for name, value in FORM.items() if name != "by_forecast"} | {"amount": "much"}
    got = browser_of(scene.people.ada).post("/admin/tenants/astro/budgets/set/", form)
    [asked] = [
        part
        for part in got.content.decode().split("<form")
        if 'value="quarter"' in part and "budgets/set/" in part
    ]
    assert 'value="much"' in asked
    assert "checked" not in asked
