"""Each page of the portal shows the commands that do the same, and the command line accepts them."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from django.http import QueryDict
from django.urls import get_resolver
from hypothesis import given
from hypothesis import strategies as st

from portal.docs.commands import BY_QUERY, COMMANDS, commands_for
from tests.clients.parsing import parsed
from tests.portal.conftest import browser_of  # noqa: F401 - a fixture
from tests.portal.scene import Scene

PLACES = {"pk": 17, "slug": "astro"}


@pytest.mark.parametrize("name", sorted({*COMMANDS, *BY_QUERY}))
def test_the_commands_of_each_page_are_accepted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("job.yaml", "parameters.yaml", "pipeline.yaml"):
        Path(file).write_text("name: test\n")
    found = commands_for(
        name, PLACES, QueryDict("state=running&owner=me&team=astro&q=a"), portal="https://portal"
    )
    assert found
    for command in found:
        parsed(command)


def test_each_page_exists() -> None:
    assert {*COMMANDS, *BY_QUERY} <= {*get_resolver().reverse_dict}


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=220)


@given(team=TEXT, q=TEXT, label=TEXT, state=st.sampled_from(["running", "active", "moon", ""]))
def test_values_of_the_address_arrive_unchanged_or_are_left_out(
    team: str, q: str, label: str, state: str
) -> None:
    query = {"team": team, "q": q, "label": label, "state": state}
    path, options = parsed(commands_for("jobs", {}, query, portal="")[0])
    assert path == "fairlot list"
    assert options["state"] == ("running" if state == "running" else None)
    for name in ("team", "q", "label"):
        assert options[name] in {None, query[name].strip()[:200]}
        assert (options[name] is None) == (
            not query[name].strip()[:200].isprintable() or not query[name].strip()
        )


@given(slug=TEXT.filter(bool))
def test_values_of_the_path_stay_one_word(slug: str) -> None:
    command = commands_for("team", {"slug": slug}, {}, portal="")[0]
    if not slug.startswith("-"):  # no slug does
        assert parsed(command)[1]["name"] == slug


def shown_at(page: str) -> list[str]:
    return [unescape(text) for text in re.findall(r'<code id="command-\d+">(.*?)</code>', page)]


def test_pages_show_the_commands_for_what_they_show(scene: Scene, browser_of) -> None:  # noqa: F811
    browser = browser_of(scene.people.bob)
    job = scene.job.pk
    for address, expected in {
        f"/jobs/{job}/": [
            f"fairlot {verb} {job}" for verb in ("show", "why", "logs -f", "cancel", "notify follow")
        ],
        f"/jobs/{job}/log/": [f"fairlot logs {how} {job}" for how in ("-f", "--all", "--grep TEXT -C 3")],
        "/jobs/?state=running&owner=me&q=a%22%3Cb": ["fairlot list --state running --mine --search 'a\"<b'"],
        "/share/?team=astro": ["fairlot share --team astro"],
        "/account/tokens/": ["fairlot login http://testserver"],
        "/account/preferences/": [],
    }.items():
        page = browser.get(address)
        assert page.status_code == 200, address
        assert shown_at(page.content.decode()) == expected
