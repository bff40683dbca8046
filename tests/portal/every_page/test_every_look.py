"""Opens every page in a browser, small and large, light and dark: it fits, no table is cut off without a cue, and
axe-core finds no violation. The keyboard reaches all that can be pressed or filled in."""

from __future__ import annotations

import mimetypes
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.contrib.staticfiles import finders
from django.test import Client
from playwright.sync_api import Browser, Page, Route, sync_playwright

from accounting.models import User
from tests import branch_coverage
from tests.portal.every_page.test_every_url import ADA, ALICE, EXPECTED, is_page, walk
from tests.portal.scene import Scene, with_a_session
from tests.proof.browser import CHROMIUM_ARGUMENTS, chromium
from tests.proof.looks import tables_that_are_cut, what_axe_says, what_is_too_wide, what_the_keyboard_misses

SITE = "http://fairlot.test"


@pytest.mark.parametrize("who", [ALICE, ADA])
def test_every_page_fits_and_can_be_read(
    scene: Scene, browser_of: Callable[[User], Client], who: str
) -> None:
    """Ada opens the pages that Alice may not see."""
    with_a_session(scene)
    client = browser_of(User.objects.get(username=who))
    mine = [url for key, url in walk(scene) if (EXPECTED[key][ALICE] == 200) == (who == ALICE)]
    pages = {url: answer.content for url in mine if is_page(answer := client.get(url))}
    assert len(pages) >= 20
    # Database connections must not be used while Playwright runs.
    with branch_coverage.paused(), sync_playwright() as playwright:
        chrome = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_ARGUMENTS)
        wrong = what_looks_wrong(chrome, pages)
        chrome.close()
    assert wrong == [], "\n".join(wrong)


def page_with(chrome: Browser, pages: dict[str, bytes]) -> Page:
    """Opens a browser page for a site that has these pages, HTML by URL, and the portal's static files."""

    def answer(route: Route) -> None:
        parts = urlsplit(route.request.url)
        url = f"{parts.path}?{parts.query}" if parts.query else parts.path
        if url in pages and route.request.is_navigation_request():
            route.fulfill(body=pages[url], content_type="text/html; charset=utf-8")
        elif parts.path.startswith(settings.STATIC_URL) and (
            found := finders.find(parts.path.removeprefix(settings.STATIC_URL))
        ):
            route.fulfill(body=Path(found).read_bytes(), content_type=mimetypes.guess_type(found)[0])
        else:  # what a script asks for later
            route.fulfill(status=204)

    page = chrome.new_page(has_touch=True)
    page.route("**/*", answer)
    return page


def what_looks_wrong(chrome: Browser, pages: dict[str, bytes]) -> list[str]:
    """Returns the faults of pages. `pages` is their HTML by URL."""
    wrong, page = [], page_with(chrome, pages)
    for url in pages:
        page.set_viewport_size({"width": 1280, "height": 800})
        page.emulate_media(color_scheme="light", reduced_motion="reduce")
        page.goto(SITE + url)
        for width, look in ((1280, "light"), (1280, "dark"), (380, "dark")):
            page.set_viewport_size({"width": width, "height": 800})
            page.emulate_media(color_scheme=look)
            # A page applies its new size before the next paint, so wait until a frame has been painted.
            page.evaluate(
                "() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))"
            )
            found = [*what_is_too_wide(page), *tables_that_are_cut(page)]
            if (width, look) != (1280, "dark"):  # colours change nothing of it
                found += what_the_keyboard_misses(page)
            if width == 1280:  # of axe's rules only that for contrast depends on colours
                found += what_axe_says(page, *(["color-contrast"] if look == "dark" else []))
            wrong += [f"{url}, {width} pixels, {look}: {fault}" for fault in found]
    return wrong
