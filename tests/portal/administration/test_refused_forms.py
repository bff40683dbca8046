"""A refusal is shown in the form that was sent, or in a message that names this form. The tests send every form with
invalid values."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from django.test import Client

from tests.portal.every_page.test_every_url import walk
from tests.portal.scene import Scene, with_a_session

VOID = {"input", "br", "img", "meta", "link", "hr", "use", "path", "rect", "line", "circle", "col"}
NEVER_SHOWN = {"value", "lines", "kubeconfig"}  # fields whose value a page never shows again
UNTYPED = {"checkbox", "radio", "password", "file", "submit"}
# These forms sign the user out, or delete objects that the test still needs.
LEFT_OUT = re.compile(r"/logout/|/password/|/revoke")


class Page(HTMLParser):
    """Parses a page, and collects its POST forms with their fields and values, and the messages about these forms."""

    def __init__(self, html: str, own: str = "") -> None:
        super().__init__()
        self.forms: dict[str, dict[str, str]] = {}
        self.told: dict[
            str, list[str]
        ] = {}  # by action of the form: "refusal" inside the form, or "answer" elsewhere
        self.typed: dict[str, set[str]] = {}  # by action of the form: values of visible fields
        self.hidden: dict[str, set[str]] = {}  # by action of the form: names of hidden fields
        self.failed: set[str] = set()  # actions that a message refuses
        self.invalid: set[str] = set()  # ids of messages that describe invalid fields
        self.ids: list[str] = []
        self.own, self._inside, self._select = own, "", ""
        self.dialogs: dict[str, str] = {}  # by action of the form: id of its dialog
        self.openers: set[str] = set()
        self._dialog, self._is_area = "", False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in attrs}
        self.ids += [has["id"]] if "id" in has else []
        self.openers |= {has["data-opens"]} if "data-opens" in has else set()
        if tag == "dialog":
            self._dialog = has.get("id", "")
        if tag == "form" and has.get("method", "").lower() == "post":
            self._inside = has.get("action") or self.own
            self.forms.setdefault(self._inside, {})
            if self._dialog:
                self.dialogs[self._inside] = self._dialog
        if tag == "input" and self._inside and has.get("type") == "hidden":
            self.hidden.setdefault(self._inside, set()).add(has.get("name", ""))
        elif tag == "input" and self._inside and has.get("type", "text") not in UNTYPED:
            self.typed.setdefault(self._inside, set()).add(has.get("value", ""))
        self._is_area = tag == "textarea" and has.get("name") not in NEVER_SHOWN
        if "note-bad" in has.get("class", "") and "data-answers" in has:
            self.failed.add(has["data-answers"])
        if "data-answers" in has:
            self.told.setdefault(has["data-answers"], []).append("answer")
        if has.get("role") == "alert" or "field-error" in has.get("class", ""):
            self.told.setdefault(self._inside, []).append("refusal")
        if has.get("aria-invalid") == "true":
            self.invalid |= set(has.get("aria-describedby", "nothing").split())
        name = has.get("name")
        is_field = tag in {"input", "textarea", "select"} and has.get("type") not in {"checkbox", "radio"}
        if is_field and self._inside and name and name != "csrfmiddlewaretoken":
            self.forms[self._inside].setdefault(name, has.get("value", ""))

    def handle_data(self, data: str) -> None:
        if self._is_area and self._inside:
            self.typed.setdefault(self._inside, set()).add(data.strip())

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._inside = ""
        elif tag == "dialog":
            self._dialog = ""


@pytest.fixture
def scene(scene: Scene) -> Scene:
    return with_a_session(scene)


def test_a_refusal_is_shown_in_the_form_that_was_sent(scene: Scene, browser_of) -> None:
    people, tried, silent = scene.people, set(), []
    for who in (people.ada, people.alice):
        browser = browser_of(who)
        for _, url in list(walk(scene)):
            if url.startswith(("/api/", "/live")):
                continue
            answer = browser.get(url)
            if answer.status_code != 200 or answer.streaming or "html" not in answer["Content-Type"]:
                continue
            page = Page(answer.content.decode(), url.partition("?")[0])
            for action, fields in page.forms.items():
                wrong = {name: value if name == "report" else "²" for name, value in fields.items()}
                if action in tried or LEFT_OUT.search(action) or not any(v == "²" for v in wrong.values()):
                    continue
                tried.add(action)
                if problem := what_is_missing(browser, action, wrong):
                    silent.append((url, problem))
                as_typed = wrong | {
                    name: fields[name] for name in fields if name in page.hidden.get(action, ())
                }
                if action in page.typed and what_is_lost(browser, action, as_typed):
                    silent.append((url, f"{action}: what was typed is lost"))
    assert not silent, "\n".join(f"{url}: {problem}" for url, problem in silent)
    assert len(tried) > 30


def what_is_missing(browser: Client, action: str, wrong: dict[str, str]) -> str:
    """Sends a form with invalid values. Returns "" if the page shows a refusal at the form, or if the form was
    accepted.

    Otherwise returns what is wrong.
    """
    answer = browser.post(action, wrong, follow=True)
    if answer.status_code not in {200, 422} or "html" not in answer["Content-Type"]:
        return f"{action}: {answer.status_code}"
    page = Page(answer.content.decode(), answer.request["PATH_INFO"])
    if lost := page.invalid - set(page.ids):
        return f"{action}: a field is described by {lost}, which is not there"
    if not page.told:
        return "" if answer.status_code == 200 else f"{action}: refused without a word"
    beside = page.dialogs.get(action) in {None, *page.openers}
    if answer.redirect_chain:  # a message on the next page names the form, which must be on that page
        return "" if action in page.told and beside else f"{action}: {page.told}"
    return "" if {action, ""} & page.told.keys() else f"{action}: {page.told}"


def what_is_lost(browser: Client, action: str, wrong: dict[str, str]) -> bool:
    """Sends a form with invalid values. Returns whether the values are missing from the page that shows the refusal."""
    answer = browser.post(action, wrong, follow=True)
    page = Page(answer.content.decode(), answer.request["PATH_INFO"])
    if answer.status_code == 200:
        return action in page.failed
    if action not in page.forms:  # an earlier request was accepted, and the page no longer has the form
        return False
    return not any("²" in values for form, values in page.typed.items() if form in {action, page.own})
