"""Parts of pages refresh themselves. A refreshed part has exactly the HTML that it has in the whole page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from django.test import Client

from tests.portal.every_page.test_every_url import EXPECTED, OLGA, clients, scene, text_of, walk
from tests.portal.scene import Scene

__all__ = ["clients", "scene"]  # imported fixtures
# Text that differs between two requests: times, keys of forms, and growing figures.
CHANGING = re.compile(r"<time .*?</time>|\b[0-9a-f]{32}\b|[0-9]+", re.DOTALL)


class Parts(HTMLParser):
    """Parses a page. Collects (id, URL) of the elements that refresh themselves, and the ids of all top-level
    elements. The bell, which all pages share, has its own address."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self.tops: list[str] = []
        self._open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if "data-live" in named and named.get("hx-get") and named.get("id") != "bell":
            self.found.append((f"{tag}#{named['id']}", str(named["hx-get"])))
        if not self._open:
            self.tops.append(f"{tag}#{named.get('id')}")
        if tag not in {"input", "br", "img", "meta", "link", "hr", "wbr", "use", "path"}:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                continue


def asked(client: Client, address: str, target: str) -> str:
    response = client.get(address, headers={"HX-Request": "true", "HX-Target": target})
    assert response.status_code == 200, (address, target)
    return text_of(response)


def unchanging(html: str) -> str:
    return " ".join(CHANGING.sub("", html).split())


def test_each_part_of_each_page_comes_alone_and_as_the_page_has_it(
    scene: Scene, clients: dict[str, Client]
) -> None:
    walked, wrong, client = set(), [], clients[OLGA]
    for key, path in walk(scene):
        url = f"{path}{'&' if '?' in path else '?'}page=1"
        if EXPECTED[key][OLGA] != 200:
            continue
        page = text_of(client.get(url))
        for target, address in Parts(page).found if "<html" in page else ():
            if address != url:
                wrong.append(f"{key}: {target} asks for {address}")
            part = asked(client, address, target)
            walked.add(target)
            if Parts(part).tops != [target]:
                wrong.append(f"{key}: {target} comes as {Parts(part).tops}")
            elif unchanging(part) not in unchanging(page):
                wrong.append(f"{key}: {target} is not what the page has")
    assert wrong == []
    assert {"header#job-head", "div#job-body", "div#home-body", "section#jobs-table"} <= walked


def test_a_page_without_the_part_puts_nothing_into_the_one_that_asks(
    scene: Scene, clients: dict[str, Client]
) -> None:
    for address in ("/jobs/", "/cluster/", "/admin/nodes/"):
        response = clients[OLGA].get(address, headers={"HX-Request": "true", "HX-Target": "div#elsewhere"})
        assert (response.status_code, response.content) == (204, b"")


def test_a_refused_page_of_a_job_goes_on_refreshing(scene: Scene, clients: dict[str, Client]) -> None:
    refused = clients[OLGA].post(f"/jobs/{scene.job.pk}/snooze/", {"until": ""})
    assert refused.status_code == 422
    parts = Parts(text_of(refused)).found
    assert {target for target, _ in parts} == {"header#job-head", "div#job-body"}
    for target, address in parts:
        got = clients[OLGA].get(address, headers={"HX-Request": "true", "HX-Target": target}, follow=True)
        assert Parts(text_of(got)).tops == [target]
