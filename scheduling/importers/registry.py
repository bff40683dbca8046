"""The formats that can be imported. Finds the format of a text and converts the text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scheduling.importers import (
    armada,
    chronos,
    compose,
    determined,
    dstack,
    ffdl,
    kubernetes,
    last_check,
    marathon,
    openpai,
    polyaxon,
    ray,
    skypilot,
    slurm,
)
from scheduling.importers.credentials import has_credential, redacted, values_in
from scheduling.importers.reading import Source, Unreadable, Yaml, check_text, leaves
from scheduling.importers.redaction import without_parts
from scheduling.importers.report import Conversion, Line, Report, Work
from scheduling.spec.job_spec import NEW_NAMES, JobSpec

MOST_WORKS = 200
UNKNOWN = (
    "The format of this text was not recognised. Fairlot imports {formats}. A job specification of Fairlot needs at"
    " least the fields name and command."
)


@dataclass(frozen=True)
class Format:
    """A foreign format.

    `recognise` returns whether a text is in the format; it also recognises texts with mistakes. `convert` returns the
    works, and adds a line to the report for what became of the fields. It may raise Unreadable.

    If `version` is a version of YAML, each field of the documents that no line covers gets a line that says that it is
    dropped. Other formats do this themselves. `fills_templates` is whether `convert` fills in the format's templates.
    """

    name: str
    label: str
    recognise: Callable[[Source], bool]
    convert: Callable[[Source, Report, Sequence[str]], list[Work]]
    version: Yaml | None = None
    fills_templates: bool = False


# In the order in which they are tried.
FORMATS: tuple[Format, ...] = (
    Format("slurm", "Slurm batch script", slurm.recognise, slurm.convert),
    Format("kubernetes", "Kubernetes objects", kubernetes.recognise, kubernetes.convert, Yaml.V1_1),
    Format("skypilot", "SkyPilot task", skypilot.recognise, skypilot.convert, Yaml.V1_2),
    Format("compose", "Docker Compose file", compose.recognise, compose.convert, Yaml.V1_2),
    Format("dstack", "dstack configuration", dstack.recognise, dstack.convert, Yaml.V1_2),
    Format("determined", "Determined configuration", determined.recognise, determined.convert, Yaml.V1_2),
    Format("openpai", "OpenPAI job", openpai.recognise, openpai.convert, Yaml.V1_2, True),
    Format("marathon", "Marathon app or group", marathon.recognise, marathon.convert, Yaml.V1_2),
    Format("chronos", "Chronos job", chronos.recognise, chronos.convert, Yaml.V1_2),
    Format("polyaxon", "Polyaxonfile", polyaxon.recognise, polyaxon.convert, Yaml.V1_2, True),
    Format("armada", "Armada job file", armada.recognise, armada.convert, Yaml.V1_1),
    Format("ffdl", "FfDL manifest", ffdl.recognise, ffdl.convert, Yaml.V1_2),
    Format("ray", "Ray job or cluster", ray.recognise, ray.convert, Yaml.V1_2),
)


def recognise(text: str) -> Format | None:
    """Returns the format of a foreign text. Returns None for a specification of Fairlot and for an unknown format."""
    try:
        check_text(text)
    except Unreadable:
        return None
    source = Source(text)
    if is_own(source):
        return None
    return next((one for one in FORMATS if one.recognise(source)), None)


def why_unreadable(text: str) -> Unreadable | None:
    """Returns why a text is neither a script nor YAML; None if it is."""
    try:
        check_text(text)
    except Unreadable as error:
        return error
    source = Source(text)
    return None if source.text.lstrip().startswith("#!") else source.unreadable


def convert(text: str, *, name: str = "", known_generations: Sequence[str] = ()) -> Conversion:
    """Converts a foreign text to jobs, services, schedules, sweeps and pipelines. Never raises.

    `name` is the name of the format; if it is "", the format is recognised. `known_generations` has the GPU types of
    the cluster, if they are known.
    """
    report = Report()
    found = next((one for one in FORMATS if one.name == name), None) if name else recognise(text)
    if found is None and not name and (error := why_unreadable(text)):
        report.refused_at(error.where, str(error))
        return Conversion(name, "", (), without_parts(map(_redacted, report.lines), text))
    if found is None:
        labels = ", ".join(one.label for one in FORMATS)
        report.refused_at("", UNKNOWN.format(formats=labels))
        return Conversion(name, "", (), report.lines)
    works: list[Work] = []
    try:
        check_text(text)
        source = Source(text)
        works = found.convert(source, report, known_generations)
        for document in source.documents(found.version) if found.version else ():
            last_check.check(report, document, fills_templates=found.fills_templates)
            report.drop_the_rest(leaves(document.data, document.path))
    except Unreadable as error:
        report.refused_at(error.where, str(error))
    if len(works) > MOST_WORKS:
        report.refused_at(
            "",
            f"The text describes {len(works)} jobs. At most {MOST_WORKS} are imported at once. Import a part of it.",
        )
    if not works and not report.refused:
        report.refused_at("", "The text contains nothing that Fairlot can run.")
    _refuse_credentials(works, report, text)
    lines = without_parts(map(_redacted, report.lines), text)
    return Conversion(found.name, found.label, () if report.refused else tuple(works), lines)


def _redacted(line: Line) -> Line:
    return Line(line.fate, redacted(line.source), redacted(line.target), redacted(line.text))


def _refuse_credentials(works: Sequence[Work], report: Report, text: str) -> None:
    """Adds a refused line for each field of a specification that contains a credential, wherever it came from.

    A converter may have taken the value apart, so credentials of the text are also looked for by themselves.
    """
    known = values_in(text)
    for work in works:
        for name, value in [*work.spec.items(), *work.options.items()]:
            written = json.dumps(value, default=str, ensure_ascii=False)
            if has_credential(written) or any(one in written for one in known):
                report.refused_at(
                    "",
                    f"The field {name} would contain a credential. Store it as a secret, and name the secret.",
                    name,
                )


def is_own(source: Source) -> bool:
    """Returns whether the text is a specification of Fairlot: it has a command, and only fields of a specification."""
    own = JobSpec.model_fields.keys() | NEW_NAMES.keys()
    return len(source.mappings) == 1 and "command" in source.top and source.top.keys() <= own
