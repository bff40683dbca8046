"""Follows every link and sends every form that a user can reach: none may be refused."""

from __future__ import annotations

import html
import re
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urldefrag, urljoin, urlsplit

import pytest
from django.db import transaction
from django.http import HttpResponseBase
from django.test import Client
from django.urls import Resolver404, resolve

from accounting.actions import set_budget
from accounting.models import User
from scheduling.idle.actions import set_idle_rule
from tests.portal.scene import Scene, with_a_session

LINK = re.compile(r'<(?!form)[a-z]+\b[^>]*?\b(?:href|hx-get)="([^"#][^"]*)"')
PART = re.compile(r'<(?:form|div|section|select|input)\b[^>]*?\bhx-post="([^"]+)"')
FORM = re.compile(r"<form\b([^>]*)>(.*?)</form>", re.DOTALL)
HIDDEN = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)"')
# How many pages are visited for each URL name, because they differ only in keys and queries.
OF_A_KIND = 2
TEMPLATES = Path(__file__).resolve().parents[3] / "templates"
CRUMBS = re.compile(r'<nav class="crumbs.*?</nav>', re.DOTALL)
ENDLESS = {"live", "job_log_stream"}
REFUSED = {403, 404, 405}


@pytest.fixture
def scene(scene: Scene) -> Scene:
    """Returns the scene with a session, a budget and a rule for idle GPUs."""
    people = with_a_session(scene).people
    set_budget(actor=people.ada, tenant=people.astro, amount=100)
    set_idle_rule(
        actor=people.ada,
        tenant=people.astro,
        action="warn",
        after_minutes=60,
        grace_minutes=30,
        snooze_hours=24,
    )
    return scene


@dataclass
class Walk:
    """Follows the links of all pages from the home page on.

    Records the refused links, and the forms of each page by their action.
    """

    client: Client
    pages: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    forms: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)

    def run(self) -> None:
        kinds: dict[str, int] = {}
        left = deque([("/", "/")])
        while left:
            address, page = left.popleft()
            kind = kind_of(address)
            if address in self.pages or kind in ENDLESS or kinds.get(kind, 0) == OF_A_KIND:
                continue
            kinds[kind] = kinds.get(kind, 0) + 1
            self.pages.add(address)
            response = self.client.get(address)
            if response.status_code >= 400:
                self.refused.add(f"{address} on {page}: {response.status_code}")
            left += [(target, address) for target in self.read(response, address)]

    def read(self, response: HttpResponseBase, address: str) -> list[str]:
        """Records the POST forms of a page. Returns the URLs of its links, or the target of a redirect."""
        if response.status_code in {301, 302}:
            target = urljoin(address, response["Location"])
            return [target] if target.startswith("/") else []  # another host, such as a service's own
        if response.streaming or "html" not in response.get("Content-Type", ""):
            return []
        text = response.content.decode()
        for attributes, body in FORM.findall(text):
            if 'method="post"' in attributes:
                own = re.findall(r'\baction="([^"]*)"', attributes)
                for target in [*own, *re.findall(r'\bformaction="([^"]*)"', body)]:
                    self.forms.setdefault(urljoin(address, target), (address, dict(HIDDEN.findall(body))))
        for target in PART.findall(text):
            self.forms.setdefault(urljoin(address, target), (address, {}))
        links = (urldefrag(urljoin(address, html.unescape(target))).url for target in LINK.findall(text))
        return [target for target in links if target.startswith("/") and not target.startswith("/static/")]

    def post_all(self) -> None:
        """Sends each recorded form with only its hidden fields, and rolls the changes back."""
        for target, (page, fields) in self.forms.items():
            if kind_of(target) == "logout":
                continue
            before = transaction.savepoint()
            status = self.client.post(target, fields).status_code
            transaction.savepoint_rollback(before)
            if status in REFUSED:
                self.refused.add(f"form to {target} on {page}: {status}")


def kind_of(address: str) -> str:
    try:
        return resolve(urlsplit(address).path).view_name
    except Resolver404:
        return address


@pytest.mark.parametrize(("who", "least"), [("ada", 60), ("olga", 50), ("alice", 45), ("bob", 40)])
def test_no_link_and_no_form_leads_to_what_is_refused(scene: Scene, browser_of, who: str, least: int) -> None:
    """No page offers an admin (ada), operator (olga), manager (alice) or member (bob) a link or form that this user is
    refused."""
    walk = Walk(browser_of(User.objects.get(username=who)))
    walk.run()
    walk.post_all()
    assert walk.refused == set()
    assert len(walk.pages) >= least


def test_no_breadcrumb_ends_in_a_slash() -> None:
    found = [crumbs for path in TEMPLATES.rglob("*.html") for crumbs in CRUMBS.findall(path.read_text())]
    assert found
    assert [one for one in found if re.sub(r"<[^>]*>|\{%.*?%\}", "", one).rstrip().endswith("/")] == []
