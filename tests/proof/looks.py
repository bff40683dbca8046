"""Checks what a browser shows of a page: nothing is cut off or too wide, and axe-core finds no violation."""

from __future__ import annotations

from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page


def what_is_too_wide(page: Page) -> list[str]:
    """Returns the elements that make the page scroll sideways; [] if the page fits."""
    found: list[str] = page.evaluate(
        """() => {
            const width = document.documentElement.scrollWidth;
            if (width <= window.innerWidth) return [];
            const right = (element) => element.getBoundingClientRect().right;
            const out = [...document.body.querySelectorAll("*")].filter((e) => right(e) > window.innerWidth);
            return [`the page: ${width}`, ...out.slice(0, 9).map((e) => `${e.cloneNode().outerHTML}: ${right(e)}`)];
        }"""
    )
    return found


def tables_that_are_cut(page: Page) -> list[str]:
    """Returns the captions of the tables that are cut off because they are wider than the box around them.

    A table is not cut off if its box scrolls, shows a shadow as a hint, and can be reached by keyboard.
    """
    found: list[str] = page.evaluate(
        """() => [...document.querySelectorAll("table")].filter((table) => {
            const box = table.closest(".table-wrap") ?? table.parentElement;
            if (table.offsetWidth <= box.clientWidth + 1) return false;
            const style = getComputedStyle(box);
            return style.overflowX !== "auto" || box.tabIndex !== 0 || !box.getAttribute("aria-label")
                || style.backgroundAttachment.split(",").length !== 4;
        }).map((table) => `cut: ${table.caption?.textContent}`)"""
    )
    return found


def what_the_keyboard_misses(page: Page) -> list[str]:
    """Returns the links, buttons and fields that Tab does not reach, or not in the order of the page.

    Of the marks of a chart Tab reaches one, from which arrow keys lead to the others.
    """
    found: list[str] = page.evaluate(
        """() => {
            const usable = "a[href], button, input:not([type=hidden]), select, textarea, summary";
            const acting = "[data-opens], [data-closes], [data-copies], [data-dismiss]";
            const all = [...document.querySelectorAll(`${usable}, ${acting}`)];
            const missed = all.filter((one) => one.checkVisibility() && !one.disabled && one.tabIndex !== 0);
            const groups = [...document.querySelectorAll(".chart-marks:has([data-mark])")];
            return [
                ...missed.filter((one) => !one.matches("[data-mark]")),
                ...groups.filter((one) => one.querySelectorAll('[data-mark][tabindex="0"]').length !== 1),
            ].map((one) => `not reached by Tab: ${one.cloneNode().outerHTML}`);
        }"""
    )
    return found


def what_axe_says(page: Page, *rules: str) -> list[str]:
    """Returns the violations of the rules `rules` of the accessibility checker axe-core.

    By default checks its standard rules, and also that an element's accessible name contains its visible label.
    """
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = {"type": "rule", "values": rules}
    else:
        options["rules"] = {"label-content-name-mismatch": {"enabled": True}}
    found = Axe().run(page, options=options).response["violations"]
    return [f"{one['id']}: {node['html']}" for one in found for node in one["nodes"]]
