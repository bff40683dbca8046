"""The refusal of a form is shown in that form, or names it. The test sends every form with invalid values."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from django.test import Client

from tests.portal.every_page.test_every_url import walk
from tests.portal.scene import Scene, with_a_session

VOID = {"input", "br", "img", "meta", "link", "hr", "use", "path", "rect", "line", "circle", "col"}
NEVER_SHOWN = {"value", "lines", "kubeconfig"}  # never shown again once sent
UNTYPED = {"checkbox", "radio", "password", "file", "submit"}
# Sending these changes who is signed in, or deletes what the walk needs.
LEFT_OUT = re.compile(r"/logout/|/password/|/revoke")


class Page(HTMLParser):
    """A page's forms with method POST: their fields, messages in them, and messages about them elsewhere."""

    def __init__(self, html: str, own: str = "") -> None:
        super().__init__()
        self.forms: dict[str, dict[str, str]] = {}
        self.told: dict[str, list[str]] = {}  # by address: refusals inside the form, or answers to it
        self.typed: dict[str, set[str]] = {}  # by address: the values shown in its visible fields
        self.hidden: dict[str, set[str]] = {}  # by address: names of hidden fields
        self.failed: set[str] = set()  # addresses that an answer refuses
        self.invalid: set[str] = set()  # ids of messages about invalid fields
        self.ids: list[str] = []
        self.own, self._inside, self._select = own, "", ""
        self.dialogs: dict[str, str] = {}  # by address of its form, the dialog
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
    """Returns why the refusal is not visible at the form; empty if it is, or if the form was accepted."""
    answer = browser.post(action, wrong, follow=True)
    if answer.status_code not in {200, 422} or "html" not in answer["Content-Type"]:
        return f"{action}: {answer.status_code}"
    page = Page(answer.content.decode(), answer.request["PATH_INFO"])
    if lost := page.invalid - set(page.ids):
        return f"{action}: a field is described by {lost}, which is not there"
    if not page.told:
        return "" if answer.status_code == 200 else f"{action}: refused without a word"
    beside = page.dialogs.get(action) in {None, *page.openers}
    if answer.redirect_chain:  # the answer names its form, which is on the page
        return "" if action in page.told and beside else f"{action}: {page.told}"
    return "" if {action, ""} & page.told.keys() else f"{action}: {page.told}"


def what_is_lost(browser: Client, action: str, wrong: dict[str, str]) -> bool:
    """Returns whether a refused user has to type the values again."""
    answer = browser.post(action, wrong, follow=True)
    page = Page(answer.content.decode(), answer.request["PATH_INFO"])
    if answer.status_code == 200:
        return action in page.failed
    if action not in page.forms:  # it was accepted before, and is no longer offered
        return False
    return not any("²" in values for form, values in page.typed.items() if form in {action, page.own})
