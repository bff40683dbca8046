"""The field `requirements` of a job spec: Python packages that pip installs before the command starts."""

from __future__ import annotations

import re
from collections.abc import Iterator
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
COMMENT = re.compile(r"(^|\s)#.*", re.ASCII)


def _only_packages(text: str) -> str:
    """Raises RefusedAt, with the number of the line, for an option that is not accepted and for a path."""
    if len(text.encode()) > MOST_BYTES:
        raise RefusedAt((), f"has more than {MOST_BYTES} bytes")
    for number, plain in _lines(text):
        if "\0" in plain or any(ord(char) < 32 and char != "\t" for char in plain):
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


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields the lines as pip reads them: without comments, and with a line that ends with a backslash joined to the
    next one. Each comes with the number of its first line in the text."""
    first, parts = 1, list[str]()
    for number, line in enumerate(text.split("\n"), start=1):
        plain = line.rstrip("\r")
        is_comment = COMMENT.match(plain) is not None
        first = first if parts else number
        parts.append(f" {plain}" if is_comment else plain.removesuffix("\\"))
        if is_comment or not plain.endswith("\\"):
            yield first, COMMENT.sub("", "".join(parts))
            parts = []
    if parts:
        yield first, COMMENT.sub("", "".join(parts))


def normalised(text: str) -> str:
    """Returns the requirements without comments, empty lines, needless spaces and repetitions, in a fixed order.

    Texts that ask pip for the same become the same text.
    """
    lines = {" ".join(plain.split()) for _, plain in _lines(text)} - {""}
    return "".join(f"{line}\n" for line in sorted(lines))


Requirements = Annotated[str, Field(max_length=LONGEST), AfterValidator(_only_packages)]
