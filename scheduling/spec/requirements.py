"""The field `requirements` of a job spec: Python packages that pip installs before the command starts."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from scheduling.spec.refused_values import RefusedAt

LONGEST = 65_536
MOST_BYTES = 120_000  # the text becomes one argument of a program, for which Linux has a limit
# Options that neither read files nor change where packages come from.
OPTIONS = ("--hash", "--no-binary", "--only-binary", "--pre", "--prefer-binary", "--require-hashes")
OPTION = re.compile(r"(?:^|\s)(-{1,2}[A-Za-z][-A-Za-z]*)", re.ASCII)
# A path or file URL: pip would read files of the machine, and the same text would not name the same packages.
A_PATH = re.compile(r"(?:^|@\s*|\s)(?:\.{0,2}/|\.\.?(?:$|\s|\[)|~|file:)", re.IGNORECASE | re.ASCII)


def _only_packages(text: str) -> str:
    """Raises RefusedAt, with the number of the line, for an option that is not accepted and for a path."""
    if len(text.encode()) > MOST_BYTES:
        raise RefusedAt((), f"has more than {MOST_BYTES} bytes")
    for number, line in enumerate(text.split("\n"), start=1):
        plain = re.sub(r"(^|\s)#.*", "", line, flags=re.ASCII)
        if "\0" in plain or any(ord(char) < 32 and char != "\t" for char in plain.rstrip("\r")):
            raise RefusedAt((), f"line {number} contains control characters")
        for option in OPTION.findall(plain):
            if option not in OPTIONS:
                raise RefusedAt(
                    (), f"line {number}: the option {option} is not accepted (accepted: {', '.join(OPTIONS)})"
                )
        if "${" in plain:
            raise RefusedAt((), f"line {number} contains a variable; write the value")
        if A_PATH.search(plain):
            raise RefusedAt((), f"line {number} is a path; install it in the command, with pip install")
    return text


Requirements = Annotated[str, Field(max_length=LONGEST), AfterValidator(_only_packages)]
