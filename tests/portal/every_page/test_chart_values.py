"""Charts say their values to mouse and keyboard, and lead to the jobs behind them."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape

from django.test import Client
from playwright.sync_api import expect, sync_playwright

from accounting.models import User
from tests import branch_coverage
from tests.portal.every_page.test_every_look import SITE, page_with
from tests.portal.scene import Scene
from tests.proof.browser import CHROMIUM_ARGUMENTS, chromium

URL = "/share/"


def test_marks_say_their_values_and_lead_to_jobs(scene: Scene, browser_of: Callable[[User], Client]) -> None:
    olga = browser_of(scene.people.olga)
    html = olga.get(URL).content
    links = [unescape(link) for link in re.findall(r'<a data-mark [^>]*href="([^"]*)"', html.decode())]
    jobs = olga.get(links[0])
    assert jobs.status_code == 200
    with branch_coverage.paused(), sync_playwright() as playwright:
        chrome = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_ARGUMENTS)
        page = page_with(chrome, {URL: html, links[0]: jobs.content})
        page.goto(SITE + URL)
        chart = page.locator("[data-marks]").first
        marks, said = chart.locator("[data-mark]"), chart.locator("[data-mark-value]")
        texts = [mark.get_attribute("aria-label") or "" for mark in marks.all()]
        hint = said.inner_text()
        marks.nth(1).hover()
        expect(said).to_have_text(texts[1])
        page.get_by_role("heading", level=1).hover()
        expect(said).to_have_text(hint)

        marks.first.focus()
        expect(said).to_have_text(texts[0])
        for key, place in (
            ("ArrowRight", 1),
            ("End", -1),
            ("ArrowRight", -1),
            ("ArrowLeft", -2),
            ("Home", 0),
        ):
            page.keyboard.press(key)
            expect(said).to_have_text(texts[place])
        page.keyboard.press("Tab")  # the other marks are not in its order
        expect(chart.locator(":focus")).to_have_count(0)
        expect(said).to_have_text(hint)
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Enter")
        expect(page).to_have_url(SITE + links[0])
        expect(page.get_by_text("Held GPUs:")).to_be_attached()
        chrome.close()
