"""One middleware refuses values that no column can store, on every page and API call, and names the parameter."""

import json
import re

import pytest
from django.test import Client
from django.urls import reverse

from portal.submit.fields import digest
from scheduling.models import Job
from tests.portal.scene import Scene

SPEC = {"name": "ok", "command": "true"}


@pytest.fixture
def admin(scene: Scene, browser_of) -> Client:
    return browser_of(scene.people.ada)


@pytest.fixture
def alice(scene: Scene, browser_of) -> Client:
    return browser_of(scene.people.alice)


def sent(client: Client, path: str, body: str | bytes, method: str = "POST"):
    return client.generic(method, path, body, content_type="application/json")


def test_a_page_says_which_parameter_has_a_zero_byte(admin: Client) -> None:
    for address in (
        "admin/users/?q=%00",
        "admin/audit/?actor=%00&verb=%00",
        "jobs/?q=a%00b",
        "usage/?team=%00",
    ):
        answer = admin.get(f"/{address}")
        assert answer.status_code == 400
        name = address.partition("?")[2].partition("=")[0]
        assert f"{name}: must not contain zero bytes" in answer.content.decode()


@pytest.mark.parametrize(
    ("path", "field", "form"),
    [
        ("/admin/tenants/new/create/", "name", {"tickets": "17", "parent": "top"}),
        ("/admin/users/create/", "first_name", {"username": "dora17", "portal_role": "user"}),
        ("/team/astro/ask/tickets/", "reason", {"tickets": "17"}),
        ("/submit/", "name", {"command": "echo 17", "workers": "1", "gpus_per_worker": "1"}),
        ("/submit/", "command", {"name": "my 17", "workers": "1", "gpus_per_worker": "1"}),
        ("/schedules/new/", "name", {"command": "echo 17", "workers": "1", "gpus_per_worker": "1"}),
        ("/services/new/", "name", {"command": "echo 17", "workers": "1", "gpus_per_worker": "1"}),
        ("/sessions/new/", "name", {"command": "echo 17", "workers": "1", "gpus_per_worker": "1"}),
    ],
)
def test_a_form_with_a_zero_byte_is_refused_beside_the_field_and_keeps_the_rest(
    scene: Scene, browser_of, path: str, field: str, form: dict[str, str]
) -> None:
    own = {"tenant": str(scene.people.astro.pk), "cluster": str(scene.world.cluster.pk)}
    own |= {"yaml": "", "agreed": digest("")}  # the digest says that the form was edited and the YAML was not
    browser = browser_of(scene.people.ada if path.startswith("/admin/") else scene.people.alice)
    answer = browser.post(path, own | form | {field: "a\0b"})
    html = answer.content.decode()
    assert answer.status_code == 422
    assert re.search(rf'name="{field}"[^>]*aria-invalid="true"', html)
    assert "ust not contain zero bytes" in html
    assert "17" in html


def test_a_form_that_cannot_show_its_refusal_names_the_field(admin: Client) -> None:
    answer = admin.post("/account/preferences/", {"theme": "dark", "time_zone": "a\0b"})
    assert answer.status_code == 400
    assert "time_zone: must not contain zero bytes" in answer.content.decode()


BODIES = [  # path, body with "%" in place of the wrong text, name of the wrong field
    ("/api/v1/jobs", {"spec": SPEC, "team": "%"}, "team"),
    ("/api/v1/jobs", {"spec": SPEC | {"name": "%"}}, "spec.name"),
    ("/api/v1/jobs", {"spec": SPEC | {"variables": {"A": "%"}}}, "spec.variables.A"),
    ("/api/v1/jobs", {"spec": SPEC | {"variables": {"%": "a"}}}, "spec.variables"),
    ("/api/v1/requests", {"team": "astro", "kind": "team", "reason": "%", "name": "x"}, "reason"),
    ("/api/v1/requests", {"team": "astro", "kind": "team", "reason": "y", "name": "%"}, "name"),
    ("/api/v1/secrets", {"name": "a", "values": {"k": "%"}}, "values.k"),
]


def test_the_api_names_the_field_with_a_zero_byte_or_half_a_character(alice: Client) -> None:
    for text in ("\\u0000", "\\ud800", "x\\udfffy"):
        for path, body, field in BODIES:
            answer = sent(alice, path, json.dumps(body).replace("%", text))
            assert answer.status_code == 422
            assert list(answer.json()["problems"]) == [field]


def test_yaml_escapes_make_no_text_that_cannot_be_stored(alice: Client) -> None:
    """A YAML escape of a forbidden character is refused, and no job is stored.

    The middleware cannot find this character in the JSON body, because only the YAML parser decodes the escape.
    """
    for escape in ("\\0", "\\ud800", "\\udcff"):
        for spec in (f'name: "a{escape}"\ncommand: x', f'name: a\ncommand: x\nvariables: {{A: "{escape}"}}'):
            answer = sent(alice, "/api/v1/jobs", json.dumps({"spec": spec, "team": "astro"}))
            assert answer.status_code == 422
            assert set(answer.json()["problems"]) <= {"name", "variables.A", "yaml"}
            page = alice.post(reverse("submit"), {"source": "yaml", "yaml": spec, "team": "astro"})
            assert page.status_code in {200, 422}
    assert not Job.objects.filter(name__startswith="a").exists()


def test_a_body_that_is_no_data_is_refused_in_words(alice: Client) -> None:
    for body, status, word in [
        (b"{", 400, "line 1, column 2"),
        (b'{"spec": "\xff"}', 400, "UTF-8"),
        (b'{"spec": "\xed\xa0\x80"}', 422, "lone surrogates"),
        (b"[" * 100_000, 400, "nested"),
        (b'{"spec": ' + b"[" * 500 + b"]" * 500 + b"}", 422, "nested"),
        (b'{"spec": {"workers": NaN}}', 422, "NaN"),
        (b'{"spec": {"workers": 1e400}}', 422, "finite"),
        (b'{"spec": {"workers": 99999999999999999999}}', 422, "9223372036854775807"),
        (b'{"spec": {"workers": ' + b"9" * 5000 + b"}}", 400, "JSON"),
    ]:
        answer = sent(alice, "/api/v1/preflight", body)
        assert answer.status_code == status
        assert answer["Content-Type"] == "application/problem+json"
        assert word in answer.content.decode()


def test_an_address_with_an_impossible_key_is_not_found(admin: Client) -> None:
    for digits in (*map(str, (2**31, 2**63 - 1, 2**63, 2**64, 10**30)), "9" * 5000):
        for address in ("jobs/{}/", "admin/users/{}/", "api/v1/jobs/{}", "requests/{}/"):
            assert admin.get(f"/{address.format(digits)}").status_code == 404
        assert admin.post(f"/api/v1/jobs/{digits}/cancel").status_code == 404
        assert admin.delete(f"/api/v1/idle-rules/{digits}").status_code == 404
    assert admin.get("/api/v1/clusters/a%00b").status_code == 404


def test_an_invalid_cookie_signs_no_user_in(scene: Scene) -> None:
    client = Client()
    client.cookies.load('fairlot_session="\\000aaaaaaaaaaaaaaaaaaaa"')
    assert client.get("/jobs/").status_code == 302


def test_a_body_in_another_charset_is_refused(admin: Client) -> None:
    for charset in ("utf-16", "unicode_escape", "latin-1"):
        form = f"application/x-www-form-urlencoded; charset={charset}"
        answers = [
            admin.generic("POST", "/admin/users/new/", "username=a", content_type=form),
            admin.generic("POST", "/api/v1/jobs", "{}", content_type=f"application/json; charset={charset}"),
        ]
        assert [answer.status_code for answer in answers] == [400, 400]
