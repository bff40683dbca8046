"""The documentation in the portal: the pages of docs/, their sections, and the search.

The portal reads the list of files in docs/ once, and serves no other file. The path in a request is never used as a
file path.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from django.conf import settings
from django.urls import get_script_prefix, reverse
from django.utils.safestring import SafeString
from markdown_it.token import Token

from portal.docs import markdown

INDEX = "README"
PICTURES = {".png": "image/png", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class Section:
    """A section of a page: a heading, and the text up to the next heading."""

    page: str
    page_title: str
    anchor: str
    title: str
    level: int
    text: str

    @property
    def address(self) -> str:
        return f"{address_of_page(self.page)}#{self.anchor}"


@dataclass(frozen=True)
class Page:
    name: str
    title: str
    html: SafeString
    sections: tuple[Section, ...]

    @property
    def address(self) -> str:
        return address_of_page(self.name)


@dataclass(frozen=True)
class Hit:
    """A search result: a section that matches the query, with the first match and the text around it."""

    section: Section
    before: str
    match: str
    after: str


def address_of_page(name: str) -> str:
    return reverse("docs") if name == INDEX else reverse("docs_page", args=[name])


def pages() -> dict[str, Page]:
    """Returns all pages by name. The index comes first, then pages in the order of the index's links, then all others
    by name."""
    return {name: page(name) for name in _files()}


def page(name: str) -> Page:
    """Returns the page named `name`. Raises KeyError for an unknown name."""
    return _page(_files()[name], get_script_prefix())


@cache
def _files() -> dict[str, Path]:
    folder: Path = settings.BASE_DIR / "docs"
    found = {path.stem: path for path in folder.glob("*.md")}
    index = found[INDEX].read_text()
    order = {name: index.find(f"({name}.md") % (len(index) + 1) for name in found}
    return {name: found[name] for name in sorted(found, key=lambda name: (name != INDEX, order[name], name))}


@cache
def pictures() -> dict[str, Path]:
    """Returns the pictures of docs/ by file name."""
    folder: Path = settings.BASE_DIR / "docs"
    return {path.name: path for path in folder.iterdir() if path.suffix in PICTURES}


def search(query: str, limit: int = 30) -> list[Hit]:
    """Returns at most `limit` sections that contain every word of the query.

    Sections with more of these words in their title come first.
    """
    words = query.casefold().split()
    if not words:
        return []
    ranked = []
    for section in (section for page in pages().values() for section in page.sections):
        title, text = section.title.casefold(), f"{section.page_title} {section.text}".casefold()
        if all(word in title or word in text for word in words):
            ranked.append(
                (-sum(word in title for word in words), -sum(text.count(word) for word in words), section)
            )
    return [_hit(section, words) for *_, section in sorted(ranked, key=lambda entry: entry[:2])[:limit]]


def _hit(section: Section, words: list[str], around: int = 110) -> Hit:
    """Returns a search result for a section, with an excerpt of its text around the earliest match of any of `words`.

    The excerpt has about `around` characters before and after the match. If the text contains none of the words,
    because they are only in titles, the excerpt is the beginning of the text, without a match.
    """
    text = section.text
    places = [(at, len(word)) for word in words if (at := text.lower().find(word)) >= 0]
    at, length = min(places, default=(0, 0))
    start, end = max(0, at - around), at + length + around
    start = text.rfind(" ", 0, start) + 1 if start else 0
    before, after = (
        text[start:at],
        text[at + length : end].rpartition(" ")[0] if end < len(text) else text[at + length :],
    )
    return Hit(
        section,
        f"…{before}" if start else before,
        text[at : at + length],
        f"{after}…" if end < len(text) else after,
    )


@cache
def _page(path: Path, _prefix: str) -> Page:
    """Reads and renders a page of the documentation. The result is cached by the two arguments.

    `_prefix` is the portal's URL prefix. It is only a part of the cache key, because the links in the rendered page
    begin with it.
    """
    tokens = markdown.parse(path.read_text(), _address)
    sections = tuple(_sections(path.stem, tokens))
    return Page(path.stem, sections[0].title, SafeString(markdown.render(tokens)), sections)


def _address(target: str) -> str | None:
    """Converts the target of a link in docs/ to a URL in the portal. Returns None for a file outside docs/."""
    if "://" in target or target.startswith(("#", "mailto:")):
        return target
    name, _, anchor = target.partition("#")
    if name in pictures():
        return reverse("docs_picture", args=[name])
    if "/" in name or not name.endswith(".md"):
        return None
    page = address_of_page(name.removesuffix(".md"))
    return f"{page}#{anchor}" if anchor else page


def _sections(name: str, tokens: list[Token]) -> Iterator[Section]:
    """Yields a Section for each heading of a page, in order. The first heading is the page's title.

    `name` is the file name without ".md". `tokens` are the page's Markdown tokens from `markdown.parse`.
    """
    starts = [place for place, token in enumerate(tokens) if token.type == "heading_open"]
    page_title = markdown.plain_text(tokens[starts[0] + 1])
    for start, end in zip(starts, [*starts[1:], len(tokens)], strict=True):
        texts = (_text(token) for token in tokens[start + 3 : end])
        yield Section(
            page=name,
            page_title=page_title,
            anchor=str(tokens[start].attrs["id"]),
            title=markdown.plain_text(tokens[start + 1]),
            level=int(tokens[start].tag[1:]),
            text=" ".join(" ".join(texts).split()),
        )


def _text(token: Token) -> str:
    return markdown.plain_text(token) if token.type == "inline" else token.content
