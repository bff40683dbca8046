"""Takes over environment variables, which foreign texts write as mappings, as lists of NAME=value or as lists of
names with values."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scheduling.importers import credentials
from scheduling.importers.documents import shown
from scheduling.importers.draft import GIVEN, JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.reading import parameter_in, step
from scheduling.importers.report import Fate
from scheduling.spec.job_spec import RESERVED_VARIABLES, VARIABLE_NAME

# A value that only refers to a variable of the person who submits: $HF_TOKEN, ${HF_TOKEN}, ${{ env.HF_TOKEN }}.
ONLY_A_REFERENCE = re.compile(r"\s*\$(?:\w+|\{\s*\w+\s*(?:[:?][^}]*)?\}|\{\{\s*[\w.]+\s*\}\})\s*", re.ASCII)
CONFIDENTIAL_NAME = "The name of this variable is confidential, so it is left out."
DEVICES = "Fairlot gives a worker its GPUs. A program sees no others."


Pair = tuple[str, str | None, str]


def put_variables(draft: JobDraft, fields: Fields, name: str) -> None:
    """Sets the variables in the field `name`, in any of the usual forms."""
    for key, value, path in pairs_of(fields, name):
        put_variable(draft, key, value is not None, value or "", path)


def pairs_of(fields: Fields, name: str) -> Iterator[Pair]:
    """Returns (variable, value, path) for each variable in the field `name`. The value is None if there is none."""
    if isinstance(fields.get(name), dict):
        yield from _in_mapping(fields.section(name))
        return
    for at, one in enumerate(fields.items(name)):
        path = step(fields.at(name), at)
        if isinstance(one, dict):
            item = Fields(one, path, fields.document, fields.report)
            if "name" in one:
                yield item.text("name"), item.text("value") if "value" in item else None, path
            else:
                yield from _in_mapping(item)
        elif isinstance(one, list):
            fields.report.refused_at(path, "Here NAME=value is expected, not a list.")
        else:
            key, equals, value = fields.written(path, one).partition("=")
            yield key.strip(), value if equals else None, path


def _in_mapping(fields: Fields) -> Iterator[Pair]:
    for key in fields:
        yield key, fields.text(key) if key in fields else None, fields.at(key)


def put_variable(draft: JobDraft, name: str, has_value: bool, value: str, source: str) -> None:
    """Sets a variable. A variable without a value, which the submitting person would give, becomes a reference to a
    secret or is left out."""
    if name in RESERVED_VARIABLES or name.startswith("FAIRLOT_"):
        text = DEVICES if name.endswith("_VISIBLE_DEVICES") else GIVEN
        draft.report.dropped(source, text)
    elif name == "PORT" and "port" in draft:
        draft.report.dropped(source, GIVEN)
    elif credentials.has_credential(name):
        draft.report.dropped(source, CONFIDENTIAL_NAME)
    elif has_value and not ONLY_A_REFERENCE.fullmatch(value):
        draft.variable(name, value, source)
        if (parameter := parameter_in(value)) and name in draft.spec.get("variables", {}):
            draft.report.remark(
                Fate.APPROXIMATED, source, f"variables.{name}",
                f"The value contains {shown(parameter)}. It stays as it is: nothing fills it in.",
            )  # fmt: skip
    elif not VARIABLE_NAME.fullmatch(name):
        draft.report.dropped(source, "The name of the variable has characters that Fairlot does not accept.")
    elif credentials.is_credential_name(name):
        put_secret(draft, name, source, "The text has no value.")
    else:
        draft.report.dropped(
            source,
            f"The text has no value for {shown(name)}. Add it to the field variables if the program needs it.",
        )


def put_secret(draft: JobDraft, name: str, source: str, text: str = "") -> None:
    """Lets the secret with a name like that of the variable set the variable."""
    secret = credentials.secret_name(name)
    if credentials.has_credential(name):
        draft.report.dropped(source, CONFIDENTIAL_NAME)
    else:
        draft.secret(
            name, secret, source, f"{text} Store the value as the secret {secret}, which the job reads.".strip(),
            Fate.APPROXIMATED,
        )  # fmt: skip
