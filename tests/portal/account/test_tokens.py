"""API tokens are shown once, stored as a digest, may be read-only, expire, and can be revoked."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.db.models.functions import Now
from django.test import Client

from accounting import actions
from accounting.core.errors import NotAllowed, Refused
from accounting.models import AuditEvent, NotificationEvent, User
from portal.models import ApiToken, Scope
from portal.tokens.actions import create_token, find_token, reset_password, revoke_token
from tests.portal.scene import Scene


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def test_a_token_is_shown_once_and_kept_as_a_digest(scene: Scene, browser_of) -> None:
    browser = browser_of(scene.people.alice)
    html = browser.post(
        "/account/tokens/", {"name": "ci", "days": "30", "scopes": ["work", "team"]}
    ).content.decode()
    secret = re.search(r"fairlot_\w+_[\w-]+", html)[0]
    token = ApiToken.objects.get(name="ci")
    assert find_token(secret) == token
    assert token.scopes == ["work", "team"]
    assert secret.split("_", 2)[2] not in f"{token.digest} {token.prefix}"
    assert secret not in browser.get("/account/tokens/").content.decode()
    assert AuditEvent.objects.filter(verb="token.create", actor=scene.people.alice).exists()


@pytest.mark.parametrize(
    ("form", "said"),
    [({"name": "", "days": "30"}, "needs a name"), ({"name": "x", "days": "9999"}, "1 to 366 days"),
     ({"name": "x", "days": "soon"}, "a lifetime from the list")],
)  # fmt: skip
def test_a_wrong_form_says_what_is_accepted(scene: Scene, browser_of, form, said) -> None:
    response = browser_of(scene.people.alice).post("/account/tokens/", form)
    assert response.status_code == 422
    assert said in response.content.decode()


def test_a_token_opens_the_api_and_notes_its_use(scene: Scene) -> None:
    response = Client().get("/api/v1/me", headers=bearer(scene.secret))
    assert response.json()["username"] == "bob"
    scene.token.refresh_from_db()
    assert scene.token.last_used_at is not None
    used = scene.token.last_used_at
    Client().get("/api/v1/me", headers=bearer(scene.secret))
    scene.token.refresh_from_db()
    assert scene.token.last_used_at == used  # `last_used_at` is updated only at intervals


@pytest.mark.parametrize(
    "text", ["", "x", "fairlot_", "fairlot_{prefix}_wrong", "fairlot_{prefix}_", "other_{prefix}_x"]
)
def test_a_wrong_token_opens_nothing(scene: Scene, text: str) -> None:
    response = Client().get("/api/v1/me", headers=bearer(text.format(prefix=scene.token.prefix)))
    assert response.status_code == 401
    assert response["Content-Type"] == "application/problem+json"


def test_a_wrong_token_is_not_helped_by_a_session(scene: Scene, browser_of) -> None:
    assert browser_of(scene.people.bob).get("/api/v1/me", headers=bearer("no")).status_code == 401


def test_an_expired_token_is_useless(scene: Scene) -> None:
    ApiToken.objects.update(expires_at=Now() - timedelta(seconds=1))
    assert Client().get("/api/v1/me", headers=bearer(scene.secret)).status_code == 401


def test_a_revoked_token_is_useless(scene: Scene, browser_of) -> None:
    browser_of(scene.people.bob).post(f"/account/tokens/{scene.token.pk}/revoke/")
    assert Client().get("/api/v1/me", headers=bearer(scene.secret)).status_code == 401
    assert AuditEvent.objects.filter(verb="token.revoke").count() == 1


def test_the_token_of_a_deactivated_user_is_useless(scene: Scene) -> None:
    actions.deactivate_user(actor=scene.people.ada, user=scene.people.bob)
    assert Client().get("/api/v1/me", headers=bearer(scene.secret)).status_code == 401


def test_users_revoke_only_their_own_tokens(scene: Scene, browser_of) -> None:
    people = scene.people
    for other in (people.alice, people.olga):
        assert browser_of(other).post(f"/account/tokens/{scene.token.pk}/revoke/").status_code == 404
        with pytest.raises(NotAllowed):
            revoke_token(actor=other, token=scene.token)
    at = f"/admin/users/{people.bob.pk}/tokens/{scene.token.pk}/revoke/"
    assert browser_of(people.olga).post(at).status_code == 404
    assert find_token(scene.secret)


def test_an_admin_sees_and_revokes_the_token_of_a_user_who_is_notified(scene: Scene, browser_of) -> None:
    people, token = scene.people, scene.token
    browser, page = browser_of(people.ada), f"/admin/users/{people.bob.pk}/"
    html = browser.get(page).content.decode()
    assert f"{token.prefix}…" in html
    assert token.digest not in html
    other = f"/admin/users/{people.alice.pk}/tokens/{token.pk}/revoke/"
    assert browser.post(other).status_code == 404  # the token is not Alice's
    for _ in range(2):  # again, as after a lost answer
        done = browser.post(f"{page}tokens/{token.pk}/revoke/", follow=True).content.decode()
        assert f"The token {token.name} of the user bob has been revoked." in done
    assert find_token(scene.secret) is None
    event = AuditEvent.objects.get(verb="token.revoke")
    assert (event.actor, event.before) == (people.ada, {"prefix": token.prefix, "user": "bob"})
    notice = NotificationEvent.objects.get(kind="token.revoked")
    assert notice.concerns == [people.bob.pk]
    assert notice.may_be_seen_by(people.bob)
    assert not notice.may_be_seen_by(people.alice)


def test_who_revokes_an_own_token_is_not_notified(scene: Scene) -> None:
    revoke_token(actor=scene.people.bob, token=scene.token)
    assert not NotificationEvent.objects.filter(kind="token.revoked").exists()


def test_a_password_that_an_admin_resets_takes_the_tokens_along(scene: Scene, browser_of) -> None:
    people = scene.people
    create_token(actor=people.bob, name="second", scopes=(), days=None)
    create_token(actor=people.alice, name="hers", scopes=(), days=None)
    old, _ = create_token(actor=people.bob, name="expired", scopes=(), days=1)
    ApiToken.objects.filter(pk=old.pk).update(expires_at=Now() - timedelta(seconds=1))
    html = browser_of(people.ada).post(f"/admin/users/{people.bob.pk}/password/").content.decode()
    assert "2 API tokens of bob were revoked." in html
    assert Client().get("/api/v1/me", headers=bearer(scene.secret)).status_code == 401
    assert not ApiToken.objects.of(people.bob).standing().exists()
    assert ApiToken.objects.of(people.alice).standing().count() == 1
    event = AuditEvent.objects.get(verb="user.reset_password")
    assert event.after == {"tokens_revoked": 2}


def test_the_tokens_of_a_deactivated_user_end_with_the_password_too(scene: Scene) -> None:
    ada, bob = scene.people.ada, scene.people.bob
    actions.deactivate_user(actor=ada, user=bob)
    assert reset_password(actor=ada, user=bob).ended == {"tokens_revoked": 1}
    actions.reactivate_user(actor=ada, user=bob)
    assert find_token(scene.secret) is None


def test_a_session_from_before_a_reset_makes_no_token_after_it(scene: Scene) -> None:
    before = User.objects.get(pk=scene.people.bob.pk)
    reset_password(actor=scene.people.ada, user=scene.people.bob)
    with pytest.raises(NotAllowed):
        create_token(actor=before, name="late", scopes=Scope.values, days=None)


def test_a_password_change_keeps_tokens_and_offers_to_revoke_them(scene: Scene, browser_of) -> None:
    bob = scene.people.bob
    bob.set_password("correct horse battery staple")
    bob.save(update_fields=["password"])
    browser = browser_of(bob)
    form = {
        "old_password": "correct horse battery staple",
        "new_password1": "staple battery horse correct",
        "new_password2": "staple battery horse correct",
    }
    html = browser.post("/account/password/", form, follow=True).content.decode()
    assert "Your password has been changed." in html
    assert "1 active <a" in html
    assert "Changing your password does not revoke API tokens." in html
    assert find_token(scene.secret)
    assert browser.get("/account/tokens/revoke/").status_code == 405
    done = browser.post("/account/tokens/revoke/", follow=True).content.decode()
    assert "1 API token has been revoked." in done
    assert "Revoke API token" not in done
    assert find_token(scene.secret) is None
    event = AuditEvent.objects.get(verb="token.revoke_all")
    assert (event.actor, event.after) == (bob, {"tokens_revoked": 1})
    assert (
        "You had no token to revoke" in browser.post("/account/tokens/revoke/", follow=True).content.decode()
    )
    assert AuditEvent.objects.filter(verb="token.revoke_all").count() == 1


def test_a_read_only_token_reads_and_cannot_write(scene: Scene) -> None:
    _, secret = create_token(actor=scene.people.bob, name="reader", scopes=(), days=None)
    client = Client()
    assert client.get("/api/v1/jobs", headers=bearer(secret)).status_code == 200
    for path in ("/api/v1/jobs", f"/api/v1/jobs/{scene.job.pk}/cancel"):
        response = client.post(path, {"spec": {}}, "application/json", headers=bearer(secret))
        assert response.status_code == 403
        assert response.json()["detail"].startswith("This token may only read.")
    asked = client.post(
        "/api/v1/preflight", {"spec": "name: a\ncommand: b"}, "application/json", headers=bearer(secret)
    )
    assert asked.status_code == 200  # pre-flight is allowed because it changes nothing


CALLS = [
    ("post", "/jobs", Scope.WORK),
    ("post", "/jobs/{job}/snooze", Scope.WORK),
    ("put", "/idle-rules", Scope.TEAM),
    ("post", "/limits", Scope.TEAM),
    ("post", "/clusters/main/check", Scope.CLUSTER),
    ("post", "/convert", None),
    ("post", "/limits/preview", None),
]


@pytest.mark.parametrize(("method", "path", "needed"), CALLS)
def test_a_token_changes_only_what_its_scopes_name(
    scene: Scene, method: str, path: str, needed: Scope | None
) -> None:
    for scope in (None, *Scope):
        scopes = [scope] if scope else []
        _, secret = create_token(actor=scene.people.bob, name="ci", scopes=scopes, days=1)
        answer = getattr(Client(), method)(
            f"/api/v1{path.format(job=scene.job.pk)}", {}, "application/json", headers=bearer(secret)
        )
        refused = answer.status_code == 403 and "The call needs the scope" in answer.json()["detail"]
        assert refused == (needed is not None and scope != needed), (scope, answer.content)


def test_an_unknown_scope_is_refused(scene: Scene) -> None:
    with pytest.raises(Refused, match="There is no scope admin"):
        create_token(actor=scene.people.bob, name="ci", scopes=["work", "admin"], days=1)
