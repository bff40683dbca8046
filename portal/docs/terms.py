"""The terms of docs/glossary.md, for tooltips."""

from __future__ import annotations

from portal.docs import library
from portal.docs.markdown import anchor_of


def term(name: str) -> library.Section:
    """Returns the entry of the glossary; raises KeyError for a term that it does not have."""
    return {section.anchor: section for section in library.page("glossary").sections}[anchor_of(name)]


def definition(name: str) -> str:
    """Returns the first sentence of a term's entry."""
    return term(name).text.partition(". ")[0].removesuffix(".") + "."
