"""Secrets are created, replaced, deleted and offered to jobs, on pages and in the API. Their values are never shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from accounting.core.encryption import unseal
from accounting.models import AuditEvent, User
from portal.submit.fields import Fields
from scheduling.jobs.secrets import create_secret
from scheduling.models import Job, Secret
from scheduling.spec.job_spec import JobSpec
from tests.portal.scene import Scene
from tests.query_counts import queries_of

TEXT = "hf_dontTellAnybody"


def held(name: str) -> Any:
    return json.loads(unseal(bytes(Secret.objects.get(name=name).sealed)))


def everywhere(browser: Client) -> str:
    """Returns the text of all pages that could contain the value of a secret."""
    pages = [reverse(name) for name in ("secrets", "submit", "api-1:secrets", "jobs", "teams")]
    pages += [reverse("secret", args=[one.pk]) for one in Secret.objects.all()]
    pages += [reverse("job_spec", args=[one.pk]) for one in Job.objects.all()]
    return "".join(browser.get(page, follow=True).content.decode() for page in pages)


def test_stored_secrets_are_listed_and_never_shown(scene: Scene, browser_of: Any) -> None:
    browser = browser_of(scene.people.alice)
    form = {"name": "hf-token", "value": f"{TEXT}\r\nsecond line", "team": "astro"}
    shown = browser.post(reverse("secrets"), form, follow=True).content.decode()
    assert "The secret hf-token has been saved." in shown
    assert held("hf-token") == {"value": f"{TEXT}\nsecond line"}
    assert "hf-token" in everywhere(browser)
    assert TEXT not in everywhere(browser) + shown
    assert TEXT not in str(list(AuditEvent.objects.values()))


def test_several_texts_are_lines(scene: Scene, browser_of: Any) -> None:
    browser = browser_of(scene.people.bob)
    browser.post(reverse("secrets"), {"name": "s3", "lines": f'id=me\r\nkey="{TEXT}\\n"'})
    assert held("s3") == {"id": "me", "key": f"{TEXT}\n"}


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"name": "", "value": TEXT}, "lower-case letters"),
        ({"name": "x", "value": ""}, "needs a value"),
        ({"name": "x", "value": TEXT, "lines": f"a={TEXT}"}, "either one value or several values"),
        ({"name": "x", "lines": f"{TEXT}"}, "has no “=”"),
        ({"name": "x", "lines": f'a="{TEXT}'}, "must end with one"),
        ({"name": "x", "lines": f"{TEXT} and=x"}, "Key 1 has an invalid name"),
        ({"name": "x", "lines": f"{TEXT}=a\n{TEXT}=b"}, "line 2 names a key a second time"),
        ({"name": "x", "lines": f"a=b\n{TEXT}=="}, "key 2 contains only the character ="),
        (
            {"name": "x", "value": TEXT, "team": "astro"},
            "Choose an option from the list",
        ),  # Bob is not a manager
    ],
)
def test_a_wrong_form_says_why_and_repeats_nothing(
    scene: Scene, browser_of: Any, form: dict[str, str], said: str
) -> None:
    response = browser_of(scene.people.bob).post(reverse("secrets"), form)
    assert response.status_code == 422
    assert said in response.content.decode()
    assert TEXT not in response.content.decode()


def test_a_manager_replaces_and_deletes_a_teams(scene: Scene, browser_of: Any) -> None:
    browser = browser_of(scene.people.alice)
    url = reverse("secret", args=[scene.team_secret.pk])
    assert "Replace supernova-key" in browser.get(url).content.decode()
    refused = browser.post(url, {"value": "", "lines": ""})
    assert (refused.status_code, "needs a value" in refused.content.decode()) == (422, True)
    browser.post(url, {"value": TEXT})
    assert held("supernova-key") == {"value": TEXT}
    browser.post(reverse("secret_delete", args=[scene.team_secret.pk]))
    assert not Secret.objects.exists()
    verbs = AuditEvent.objects.filter(target_type="secret").order_by("pk").values_list("verb", flat=True)
    assert list(verbs) == ["secret.create", "secret.replace", "secret.delete"]


def test_one_in_use_is_not_deleted_and_the_page_says_why(scene: Scene, browser_of: Any) -> None:
    cast = scene.people
    job = scene.world.submit(cast.bob, cast.astro, name="nova", secrets={"T": "supernova-key"})
    response = browser_of(cast.alice).post(reverse("secret_delete", args=[scene.team_secret.pk]))
    assert response.status_code == 422
    assert f"supernova-key: nova ({job.pk})." in response.content.decode()


def test_members_and_strangers_change_nothing(scene: Scene, browser_of: Any) -> None:
    for who in (scene.people.bob, scene.people.charlie, scene.people.olga):
        browser = browser_of(who)
        for name in ("secret", "secret_delete"):
            assert browser.post(reverse(name, args=[scene.team_secret.pk]), {"value": "x"}).status_code == 404
        assert ("supernova-key" in everywhere(browser)) is (who == scene.people.bob)


def api(browser: Client, method: str, path: str, **body: Any) -> Any:
    return browser.generic(method, f"/api/v1{path}", json.dumps(body), content_type="application/json")


def test_the_api_does_the_same(scene: Scene, browser_of: Any) -> None:
    browser = browser_of(scene.people.alice)
    made = api(browser, "POST", "/secrets", name="hf-token", value=TEXT, team="astro")
    assert made.status_code == 201
    assert made.json() | {"created_at": 0, "changed_at": 0, "version": ""} == {
        "id": made.json()["id"], "name": "hf-token", "team": "astro", "keys": ["value"],
        "created_at": 0, "changed_at": 0, "version": "",
    }  # fmt: skip
    one = f"/secrets/{made.json()['id']}"
    replaced = api(browser, "PUT", one, values={"id": "me", "key": TEXT})
    assert (replaced.status_code, replaced.json()["keys"]) == (200, ["id", "key"])
    for who, code in ((scene.people.bob, 404), (scene.people.charlie, 404)):
        assert api(browser_of(who), "PUT", one, value="x").status_code == code
        assert api(browser_of(who), "DELETE", one).status_code == code
        assert api(browser_of(who), "POST", "/secrets", name="x", value="x", team="astro").status_code == 404
    wrong = api(browser, "PUT", one, values={"a/b": TEXT})
    both = api(browser, "PUT", one, value=TEXT, values={"key": TEXT})
    assert (both.status_code, "cannot both be set" in both.json()["detail"]) == (409, True)
    odd = api(browser, "PUT", one, value=[TEXT])
    assert (wrong.status_code, odd.status_code) == (409, 422)
    assert api(browser, "DELETE", one).status_code == 204
    assert api(browser, "GET", "/secrets").json()[0]["name"] == "supernova-key"
    assert TEXT not in "".join(answer.content.decode() for answer in (made, replaced, wrong, odd))


def test_the_form_names_them_and_says_which_there_are(scene: Scene, browser_of: Any) -> None:
    browser = browser_of(scene.people.bob)
    assert "<option>supernova-key</option>" in browser.get(reverse("submit")).content.decode()
    cluster = str(scene.world.cluster.pk)
    fields = Fields(
        name="uses it", command="true", secrets="T=supernova-key", secret_files="supernova-key=/secrets/key"
    )
    form = {**fields.__dict__, "yaml": fields.to_yaml(), "cluster": cluster, "agreed": ""}
    assert browser.post(reverse("submit"), form).status_code == 302
    spec = JobSpec.parse(Job.objects.get(name="uses it").spec)
    assert spec.secrets == {"T": "supernova-key"}
    assert [one.place for one in spec.secret_files] == ["/secrets/key"]
    wrong = Fields(name="x", command="true", secrets="T=no-such")
    form = {**wrong.__dict__, "yaml": wrong.to_yaml(), "cluster": cluster, "agreed": ""}
    response = browser.post(reverse("submit"), form)
    assert response.status_code == 422
    assert "Neither you nor Astro has a secret named no-such" in response.content.decode()


def test_the_number_of_queries_does_not_grow(scene: Scene, browser_of: Any) -> None:

    def make(who: User, count: int) -> None:
        for number in range(count):
            create_secret(actor=who, name=f"key-{Secret.objects.count()}-{number}", values={"value": "x"})

    browser = browser_of(scene.people.bob)
    make(scene.people.bob, 1)
    for _ in range(2):
        with queries_of("the list of secrets"):
            browser.get(reverse("secrets"))
        make(scene.people.bob, 5)
