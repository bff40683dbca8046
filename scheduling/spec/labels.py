"""Labels of jobs, in the syntax of Kubernetes labels. Users search jobs and group reports by labels."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from scheduling.spec.refused_values import RefusedAt

MOST = 10
LONGEST_KEY, LONGEST_VALUE = 317, 63
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_PART = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
NAME = re.compile(_NAME)
PREFIX = re.compile(rf"(?=.{{1,253}}\Z){_PART}(?:\.{_PART})*")


def check_labels(labels: dict[str, str]) -> dict[str, str]:
    """Returns the labels unchanged. Raises RefusedAt if Kubernetes would not accept a key or value. Values may be
    empty."""
    for key, value in labels.items():
        prefix, slash, name = key.rpartition("/")
        if not NAME.fullmatch(name) or (slash and not PREFIX.fullmatch(prefix)):
            raise RefusedAt(
                (key,),
                f"{key!r} is not a label key: use 1 to 63 letters, digits, - _ and ., with a letter or digit at"
                " both ends; a domain and a / may come before them",
            )
        if value and not NAME.fullmatch(value):
            raise RefusedAt(
                (key,),
                f"{value!r} is not a label value: use at most 63 letters, digits, - _ and ., with a letter or"
                " digit at both ends",
            )
    return labels


Labels = Annotated[dict[str, str], Field(max_length=MOST), AfterValidator(check_labels)]
