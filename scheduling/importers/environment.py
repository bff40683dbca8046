"""Takes over environment variables, which foreign texts write as mappings, as lists of NAME=value or as lists of
names with values."""

from __future__ import annotations

import re

from scheduling.importers import credentials
from scheduling.importers.draft import GIVEN, JobDraft
from scheduling.importers.fields import Fields
from scheduling.importers.reading import parameter_in, step
from scheduling.importers.report import Fate
from scheduling.spec.job_spec import RESERVED_VARIABLES, VARIABLE_NAME

# A value that only refers to a variable of the person who submits: $HF_TOKEN, ${HF_TOKEN}, ${{ env.HF_TOKEN }}.
ONLY_A_REFERENCE = re.compile(r"\s*\$(?:\w+|\{\s*\w+\s*(?:[:?][^}]*)?\}|\{\{\s*[\w.]+\s*\}\})\s*")
DEVICES = "Fairlot gives a worker its GPUs. A program sees no others."


def put_variables(draft: JobDraft, fields: Fields, name: str) -> None:
    """Sets the variables in the field `name`, in any of the usual forms."""
    if isinstance(fields.get(name), dict):
        inner = fields.section(name)
        for key in inner:
            put_variable(draft, key, inner.get(key) is not None, inner.text(key), inner.at(key))
        return
    for at, one in enumerate(fields.items(name)):
        path = step(fields.at(name), at)
        if isinstance(one, dict) and "name" in one:
            item = Fields(one, path, fields.document, fields.report)
            put_variable(draft, item.text("name"), "value" in item, item.text("value"), path)
        elif isinstance(one, dict):
            item = Fields(one, path, fields.document, fields.report)
            for key in item:
                put_variable(draft, key, item.get(key) is not None, item.text(key), item.at(key))
        elif isinstance(one, list):
            fields.report.refused_at(path, "Here NAME=value is expected, not a list.")
        else:
            key, equals, value = fields.written(path, one).partition("=")
            put_variable(draft, key.strip(), bool(equals), value, path)


def put_variable(draft: JobDraft, name: str, has_value: bool, value: str, source: str) -> None:
    """Sets a variable. A variable without a value, which the submitting person would give, becomes a reference to a
    secret or is left out."""
    if name in RESERVED_VARIABLES or name.startswith("FAIRLOT_"):
        text = DEVICES if name.endswith("_VISIBLE_DEVICES") else GIVEN
        draft.report.dropped(source, text)
    elif has_value and not ONLY_A_REFERENCE.fullmatch(value):
        draft.variable(name, value, source)
        if (parameter := parameter_in(value)) and name in draft.spec.get("variables", {}):
            draft.report.remark(
                Fate.APPROXIMATED, source, f"variables.{name}",
                f"The value contains {parameter[:60]}. It stays as it is: nothing fills it in.",
            )  # fmt: skip
    elif not VARIABLE_NAME.fullmatch(name):
        draft.report.dropped(source, "The name of the variable has characters that Fairlot does not accept.")
    elif credentials.is_credential_name(name):
        secret = credentials.secret_name(name)
        draft.secret(
            name, secret, source,
            f"The text has no value. Store it as the secret {secret}, which the job reads.", Fate.APPROXIMATED,
        )  # fmt: skip
    else:
        draft.report.dropped(
            source,
            f"The text has no value for {name[:60]}. Add it to the field variables if the program needs it.",
        )
