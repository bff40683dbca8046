"""Pages say which features do not work because a mail server, an encryption key or the URL of sessions is not
configured.

The API refuses a subscription by mail with the same sentence.
"""

from accounting.core import encryption
from tests.portal.scene import Scene

NO_MAIL = "This portal cannot send mail, because no mail server is configured."
SUBSCRIBE = 'action="/usage/by-mail/subscribe/"'


def text_of(browser, path: str) -> str:
    return browser.get(path).content.decode()


def test_without_a_mail_server_no_report_is_offered_by_mail(scene: Scene, browser_of, settings) -> None:
    bob = scene.people.bob
    bob.email = "bob@example.org"
    bob.save()
    browser = browser_of(bob)
    settings.EMAIL_HOST = "mail.example.org"
    assert SUBSCRIBE in text_of(browser, "/usage/statement/")
    settings.EMAIL_HOST = ""
    for path in ("/usage/", "/usage/statement/", "/usage/idle/", "/usage/fairness/", "/trades/"):
        html = text_of(browser, path)
        assert SUBSCRIBE not in html, path
        assert NO_MAIL in html, path
    asked = {"report": "statement", "team": "astro", "rhythm": "monthly", "form": "pdf"}
    told = browser.put("/api/v1/subscriptions", asked, content_type="application/json")
    assert told.json()["detail"] == NO_MAIL
    budgets = text_of(browser_of(scene.people.ada), "/admin/tenants/astro/budgets/")
    assert "There is no mail, because no mail server is configured" in budgets


def test_a_user_without_a_mail_address_sees_that_before_subscribing(
    scene: Scene, browser_of, settings
) -> None:
    settings.EMAIL_HOST = "mail.example.org"
    scene.people.bob.email = ""
    scene.people.bob.save()
    html = text_of(browser_of(scene.people.bob), "/usage/statement/")
    assert SUBSCRIBE not in html
    assert "Your account has no e-mail address" in html


def test_without_a_key_no_form_takes_a_secret(scene: Scene, browser_of, settings) -> None:
    settings.FAIRLOT_SEALING_KEYS = []
    alice, ada = browser_of(scene.people.alice), browser_of(scene.people.ada)
    pages = [
        text_of(alice, "/account/secrets/"),
        text_of(alice, f"/account/secrets/{scene.team_secret.pk}/"),
        text_of(ada, "/admin/clusters/"),
    ]
    for html in pages:
        assert encryption.NO_KEY in html
        assert " disabled>" in html


def test_without_host_names_the_form_says_that_sessions_cannot_be_opened(
    scene: Scene, browser_of, settings
) -> None:
    browser = browser_of(scene.people.bob)
    settings.FAIRLOT_SESSIONS_URL = "http://*.localhost:8000"
    assert "Nobody can open sessions" not in text_of(browser, "/sessions/new/")
    settings.FAIRLOT_SESSIONS_URL = ""
    assert "Nobody can open sessions" in text_of(browser, "/sessions/new/")
