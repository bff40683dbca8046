"""Imports Kubernetes objects that run programs: jobs of Kubernetes and of Kubeflow, Ray, Volcano and JobSet."""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.importers.fields import Fields
from scheduling.importers.kubernetes.kinds import CONVERTERS, convert_object
from scheduling.importers.kubernetes.objects import Objects
from scheduling.importers.reading import Source, Yaml
from scheduling.importers.report import Report, Work


def recognise(source: Source) -> bool:
    """Returns whether a document has the fields apiVersion and kind. Also recognises templates of such documents."""
    if any("apiVersion" in one and "kind" in one for one in source.mappings):
        return True
    broken = source.unreadable is not None
    return broken and source.has_line(r"apiVersion:\s*\S") and source.has_line(r"kind:\s*\S")


def convert(source: Source, report: Report, known: Sequence[str]) -> list[Work]:
    """Returns the works of all objects in all documents and lists."""
    roots = []
    for document in source.documents(Yaml.V1_1):
        root = Fields.of(document, report)
        if root.text("kind").endswith("List") and root.items("items"):
            report.mapped(root.at("apiVersion"), "", "Each object of the list is imported.")
            report.mapped(root.at("kind"), "", "Each object of the list is imported.")
            roots += root.sections("items")
        elif root:
            roots.append(root)
        else:
            report.dropped(document.path, "This document has no fields.")
    objects = Objects.of(roots, known)
    works = [work for root in roots for work in convert_object(root, objects)]
    kinds = sorted({root.text("kind") for root in roots})
    if not works and not report.refused:
        report.refused_at(
            "kind",
            f"There is nothing to run in objects of the kinds {', '.join(kinds)[:200]}. Fairlot imports"
            f" {', '.join(sorted(CONVERTERS))}.",
        )
    return works
