"""The users of the demo, each with a browser session."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect

from tests import waiting
from tests.proof.portal import RunningPortal

CHROMIUM_ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
]  # fmt: skip
PATIENCE = waiting.PATIENCE * 1000  # milliseconds
expect.set_options(timeout=PATIENCE)


def chromium() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert found, "the browser tests need Chromium: apt-get install chromium"
    return found


@dataclass
class Person:
    """A signed-in user, with a browser page and with access to the REST API in the same browser session."""

    name: str
    context: BrowserContext
    page: Page

    def get(self, path: str) -> Any:
        """Returns the JSON response to GET /api/v1/`path`. Fails unless the HTTP status is a success."""
        answer = self.context.request.get(f"/api/v1/{path}")
        assert answer.ok, answer.text()
        return answer.json()

    def post(self, path: str, data: object = None) -> Any:
        token = self.page.locator("input[name=csrfmiddlewaretoken]").first.get_attribute("value")
        answer = self.context.request.post(f"/api/v1/{path}", data=data, headers={"X-CSRFToken": token or ""})
        assert answer.ok, answer.text()
        return answer.json()

    def submit(self, **spec: Any) -> int:
        """Submits a job through the REST API; returns the job's id."""
        return int(self.post("jobs", {"spec": spec})["id"])

    def cancel_all(self) -> None:
        for job in self.get(f"jobs?owner={self.name}&limit=200")["items"]:
            if not job["ended_at"]:
                self.post(f"jobs/{job['id']}/cancel")


@dataclass
class People:
    """Opens browser sessions. `complaints` collects the warnings and errors in the consoles of all pages."""

    portal: RunningPortal
    chrome: Browser
    complaints: list[str] = field(default_factory=list)
    contexts: list[BrowserContext] = field(default_factory=list)

    def stranger(self, **options: Any) -> Page:
        """Opens a page in a new browser session in which nobody is signed in."""
        context = self.chrome.new_context(
            base_url=self.portal.url, **{"viewport": {"width": 1280, "height": 800}} | options
        )
        context.set_default_timeout(PATIENCE)
        self.contexts.append(context)
        context.on("console", self._listen)
        context.on("weberror", lambda error: self.complaints.append(str(error.error)))
        return context.new_page()

    def sign_in(self, name: str, **options: Any) -> Person:
        """Signs a demo user in through the login page, in a new browser session."""
        page = self.stranger(**options)
        page.goto("/")
        page.get_by_label("Username").fill(name)
        page.get_by_label("Password").fill(self.portal.passwords[name])
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("summary", has_text=f"Your account, {name}")).to_be_visible()
        return Person(name, page.context, page)

    def keep_pictures(self, folder: Path, name: str) -> None:
        folder.mkdir(exist_ok=True)
        pages = [page for context in self.contexts for page in context.pages]
        for number, page in enumerate(pages):
            page.screenshot(path=folder / f"{re.sub(r'[^a-z0-9]+', '-', name)}-{number}.png", full_page=True)

    def leave(self) -> None:
        for context in self.contexts:
            context.close()

    def _listen(self, message: ConsoleMessage) -> None:
        # The browser logs this message when a connection is lost or an answer is an HTTP error, which some tests cause.
        if (
            not superseded(message)
            and message.type in ("error", "warning")
            and not message.text.startswith("Failed to load resource:")
        ):
            self.complaints.append(f"{message.page and message.page.url}: {message.text}")


def superseded(message: ConsoleMessage) -> bool:
    """Returns whether the console message is htmx's report that it aborted a request because a newer one replaced it.
    This is no fault of the page."""
    return "htmx:error" in message.text and "AbortError" in message.text
