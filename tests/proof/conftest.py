"""Fixtures: a whole running portal, which all tests of a module share because it starts slowly, and browsers."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests import branch_coverage
from tests.proof.browser import CHROMIUM_ARGUMENTS, People, chromium
from tests.proof.portal import ROOT, RunningPortal, running_portal

FAILED = pytest.StashKey[bool]()


@pytest.fixture(scope="module")
def portal() -> Iterator[RunningPortal]:
    with running_portal() as portal:
        yield portal


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with branch_coverage.paused(), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def people(portal: RunningPortal, chrome: Browser, request: pytest.FixtureRequest) -> Iterator[People]:
    """Yields an object that signs in the demo's users, each in a browser session.

    After the test: if it failed, stores screenshots of all open pages. If it passed, fails when the console of a page
    contains warnings or errors.
    """
    people = People(portal, chrome)
    try:
        yield people
        if request.node.stash.get(FAILED, False):
            people.keep_pictures(ROOT / "artifacts", request.node.name)
        else:
            assert people.complaints == []
    finally:
        people.leave()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report
