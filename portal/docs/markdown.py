"""Renders Markdown as HTML that complies with the portal's content security policy and uses its styles."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from django.utils.html import escape
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

Tokens = Sequence[Token]


class Renderer(RendererHTML):
    """Renders each code sample with a button that copies it, and each table in a box that can scroll."""

    def fence(self, tokens: Tokens, idx: int, options: Any, env: Any) -> str:
        return _sample(tokens[idx], idx)

    def code_block(self, tokens: Tokens, idx: int, options: Any, env: Any) -> str:
        return _sample(tokens[idx], idx)

    def heading_close(self, tokens: Tokens, idx: int, options: Any, env: Any) -> str:
        heading = tokens[idx - 2]
        title = escape(plain_text(tokens[idx - 1]))
        link = f'<a class="anchor" href="#{heading.attrs["id"]}" aria-label="Link to “{title}”">#</a>'
        return f"{link if heading.tag != 'h1' else ''}</{heading.tag}>\n"

    def table_open(self, tokens: Tokens, idx: int, options: Any, env: Any) -> str:
        return '<div class="table-wrap"><table class="table">\n'

    def table_close(self, tokens: Tokens, idx: int, options: Any, env: Any) -> str:
        return "</table></div>\n"

    def th_open(self, tokens: Tokens, idx: int, options: Any, env: Any) -> str:
        empty = not tokens[idx + 1].content  # an empty heading is rendered as a plain cell
        return "<td>" if empty else '<th scope="col">'

    def th_close(self, tokens: Tokens, idx: int, options: Any, env: Any) -> str:
        return "</td>" if not tokens[idx - 1].content else "</th>\n"


# Raw HTML is shown as text. markdown-it itself refuses links with script schemes.
_parser = MarkdownIt("commonmark", {"html": False}, renderer_cls=Renderer).enable("table")


def parse(text: str, address_of: Callable[[str], str | None]) -> list[Token]:
    """Returns the Markdown tokens of a page. Adds an id to each heading, and replaces the targets of links and pictures
    by URLs.

    `address_of` converts a target to a URL. If it returns None, a link becomes plain text, and a picture is removed.
    """
    tokens = _parser.parse(text)
    used: dict[str, int] = {}
    for place, token in enumerate(tokens):
        if token.type == "heading_open":
            token.attrs["id"] = _unused(anchor_of(plain_text(tokens[place + 1])), used)
        elif token.children:
            token.children = _with_addresses(token.children, address_of)
    return tokens


def render(tokens: Tokens) -> str:
    """Renders the tokens from `parse` as HTML."""
    return str(_parser.renderer.render(tokens, _parser.options, {}))


def plain_text(token: Token) -> str:
    """Returns the text of an inline token without its markup."""
    return "".join(
        " " if child.type == "softbreak" else child.content
        for child in token.children or ()
        if child.type != "image"
    )


def anchor_of(title: str) -> str:
    """Returns the anchor of a heading by GitHub's rule, so that links work both in the portal and on GitHub."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower(), flags=re.ASCII).replace(" ", "-")


def _unused(anchor: str, used: dict[str, int]) -> str:
    """Returns `anchor`, with a number appended if an earlier heading of the page has the same anchor.

    For example, the second heading "Setup" of a page gets "setup-1". `used` records the anchors of the page so far.
    This call updates it.
    """
    count = used[anchor] = used.get(anchor, -1) + 1
    return f"{anchor}-{count}" if count else anchor


def _with_addresses(children: Tokens, address_of: Callable[[str], str | None]) -> list[Token]:
    kept, unlinked = [], False
    for child in children:
        name = {"link_open": "href", "image": "src"}.get(child.type)
        if name:
            address = address_of(str(child.attrs[name]))
            unlinked = address is None and child.type == "link_open"
            if address is None:
                continue
            child.attrs[name] = address
        elif child.type == "link_close" and unlinked:
            unlinked = False
            continue
        kept.append(child)
    return kept


def _sample(token: Token, place: int) -> str:
    return (
        f'<div class="sample"><button type="button" class="button button-small" data-copies="sample-{place}">'
        f'<span>Copy</span></button><pre class="codeblock" tabindex="0"><code id="sample-{place}">'
        f"{escape(token.content)}</code></pre></div>\n"
    )
