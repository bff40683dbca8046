"""The portal shows, searches and links the documentation, and serves no file outside docs/."""

import re

import pytest
from django.conf import settings
from django.template import Context, Template
from django.test import Client, RequestFactory
from django.urls import get_resolver

from portal.docs import library, markdown, terms
from portal.docs.help import HELP, entry_for, help_address
from tests.portal.every_page.test_every_url import every_name
from tests.portal.scene import Scene

LINK = re.compile(r'(?:href|src)="([^"]*)"')


@pytest.fixture
def reader(scene: Scene, browser_of) -> Client:
    return browser_of(scene.people.charlie)


def test_a_page_shows_its_sections_with_anchors_copyable_samples_and_the_list_of_pages(
    reader: Client,
) -> None:
    html = reader.get("/docs/jobs/").content.decode()
    assert re.search(r'<h2 id="job-specification">.*?<a class="anchor" href="#job-specification"', html)
    assert '<a href="/docs/jobs/" aria-current="page">' in html
    button = re.search(r'data-copies="(sample-\d+)"', html)[1]
    assert f'<code id="{button}">' in html
    assert '<a href="/docs/sessions/">' in html


def test_the_search_finds_sections_by_heading_and_text_and_shows_the_words(reader: Client) -> None:
    html = reader.get("/docs/", {"q": "drain node"}).content.decode()
    first = re.search(r'<article class="docs-hit">.*?</article>', html, re.DOTALL)[0]
    assert 'href="/docs/operate/#drain-a-node"' in first
    assert re.search(r"<mark>(drain|node)</mark>", first, re.IGNORECASE)
    assert "No section contains" in reader.get("/docs/", {"q": "xyzzy"}).content.decode()
    assert "&lt;script&gt;" in reader.get("/docs/", {"q": "<script>"}).content.decode()


@pytest.mark.parametrize(
    "path",
    [
        "/docs/nothing/",
        "/docs/../manage.py",
        "/docs/..%2Fmanage.py/",
        "/docs/pictures/jobs.md",
        "/docs/pictures/..%2F..%2Fmanage.py",
        "/docs/jobs.md/",
    ],
)
def test_nothing_but_the_pages_and_pictures_of_docs_is_served(reader: Client, path: str) -> None:
    assert reader.get(path).status_code == 404


def test_a_picture_is_served_with_its_type(reader: Client) -> None:
    answer = reader.get("/docs/pictures/screenshot.png")
    assert (answer.status_code, answer["Content-Type"]) == (200, "image/png")
    assert answer.content == (settings.BASE_DIR / "docs" / "screenshot.png").read_bytes()


def test_markup_of_a_page_cannot_run_scripts_and_links_out_of_docs_are_plain_text() -> None:
    source = "# T\n\n<script>x</script> [a](javascript:x) [b](../SECURITY.md) ![p](../p.png) [c](https://example.org)\n"
    html = markdown.render(markdown.parse(source, library._address))
    assert "<script" not in html
    assert LINK.findall(html) == ["https://example.org"]
    assert "SECURITY" not in html
    assert " b " in html


def test_every_link_within_the_documentation_leads_to_a_page_section_or_picture() -> None:
    places = {page.address for page in library.pages().values()}
    places |= {section.address for page in library.pages().values() for section in page.sections}
    places |= {f"/docs/pictures/{name}" for name in library.pictures()}
    for page in library.pages().values():
        for target in LINK.findall(page.html):
            address = f"{page.address}{target}" if target.startswith("#") else target
            assert "://" in target or address in places, f"{page.name}: {target}"


def test_the_index_leads_to_every_page() -> None:
    linked = set(LINK.findall(library.pages()["README"].html))
    assert [page.name for page in library.pages().values() if page.address not in linked] == ["README"]


def test_every_entry_of_the_help_table_names_a_page_of_the_portal_and_a_section_that_exists() -> None:
    names = {name.rpartition(":")[2] for name, _ in every_name(get_resolver())}
    assert [
        name for name in HELP if not any(known == name or known.startswith(f"{name}_") for known in names)
    ] == []
    addresses = {page.address for page in library.pages().values()}
    addresses |= {section.address for page in library.pages().values() for section in page.sections}
    assert [name for name in HELP if help_address(name) not in addresses] == []


def test_a_page_without_an_entry_uses_the_one_of_the_page_that_it_belongs_to() -> None:
    assert help_address("admin_node_drain") == "/docs/operate/#drain-a-node"
    assert entry_for("admin_node_return") == entry_for("admin_nodes")
    assert (entry_for("healthz"), help_address("healthz"), help_address(None)) == ("", "/docs/", "/docs/")


def test_every_term_in_a_template_is_in_the_glossary() -> None:
    texts = [path.read_text() for path in (settings.BASE_DIR / "templates").rglob("*.html")]
    named = {name for text in texts for name in re.findall(r'{% term "([^"]+)"', text)}
    assert named >= {"entitlement", "preemptible"}
    for name in named:
        assert len(terms.definition(terms.term(name))) > 20


def test_a_term_is_a_link_that_its_tooltip_describes() -> None:
    request = RequestFactory().get("/")
    html = Template('{% load guide %}{% term "lent" %} {% term "quantum" "quanta" %}').render(
        Context({"request": request})
    )
    assert '<a href="/docs/glossary/#lent" aria-describedby="term-lent-1">lent</a>' in html
    assert '<a href="/docs/glossary/#quantum" aria-describedby="term-quantum-2">quanta</a>' in html
    assert re.findall(r'role="tooltip" class="tooltip" id="([\w-]+)">(\w+)', html) == [
        ("term-lent-1", "GPUs"),
        ("term-quantum-2", "The"),
    ]
