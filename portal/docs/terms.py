"""The terms of docs/glossary.md, which tooltips show."""

from __future__ import annotations

from portal.docs import library
from portal.docs.markdown import anchor_of


def term(name: str) -> library.Section:
    """Returns the glossary's section for a term. Raises KeyError for an unknown term."""
    return {section.anchor: section for section in library.page("glossary").sections}[anchor_of(name)]


def definition(section: library.Section) -> str:
    """Returns the first sentence of a term's section."""
    return section.text.partition(". ")[0].removesuffix(".") + "."
