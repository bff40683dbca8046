"""Samples of foreign formats, in one folder for each format, and what must be true of every conversion."""

from __future__ import annotations

from pathlib import Path

from scheduling.importers.reading import Unreadable, Yaml, leaves, read_documents
from scheduling.importers.report import Conversion, Fate, WorkKind, containers_of
from scheduling.spec.job_spec import JobSpec

FOLDER = Path(__file__).parent / "samples"
# Each sample by "format/name". Each credential in a sample contains CONFIDENTIAL.
SAMPLES = {f"{path.parent.name}/{path.name}": path.read_text() for path in sorted(FOLDER.glob("*/*.*"))}
CONFIDENTIAL = "abcdef0123456789"


def check(text: str, found: Conversion) -> None:
    """Fails unless the conversion keeps the promises of every import."""
    assert found.refused == any(line.fate is Fate.REFUSED for line in found.report)
    assert not (found.refused and found.works)
    assert found.report, "an import without a report"
    assert CONFIDENTIAL not in repr(found)
    for work in found.works:
        spec = JobSpec.parse(dict(work.spec))
        assert work.kind is WorkKind.JOB or not spec.problems_of_endless() or work.kind is WorkKind.SCHEDULE
        assert work.kind is not WorkKind.SERVICE or spec.port
    assert unreported(text, found) == []


def unreported(text: str, found: Conversion) -> list[str]:
    """Returns the paths of the fields of the text about which the report says nothing."""
    try:
        documents = read_documents(text, Yaml.V1_2)
    except Unreadable:
        return []
    if any(not line.source for line in found.report if line.fate is Fate.REFUSED):
        return []  # the text as a whole is refused
    covered = {line.source for line in found.report}
    paths = [
        path
        for at, document in enumerate(documents, 1)
        for path in leaves(document.data, f"document {at}" if len(documents) > 1 else "")
    ]
    return [path for path in paths if not covered.intersection((path, *containers_of(path)))]
