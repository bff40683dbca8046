"""The terms of docs/glossary.md. Tooltips show their definitions."""

from __future__ import annotations

from portal.docs import library
from portal.docs.markdown import anchor_of


def term(name: str) -> library.Section:
    """Returns the section of the glossary about a term. Raises KeyError for an unknown term."""
    return {section.anchor: section for section in library.page("glossary").sections}[anchor_of(name)]


def definition(section: library.Section) -> str:
    """Returns the definition of a term: the first sentence of its glossary section."""
    return section.text.partition(". ")[0].removesuffix(".") + "."
