r"""Text for the names and paths of a job's files. Each name has one printable text, from which it can be recovered.

A file name on Linux is any bytes without NUL and "/". In the text, a backslash is written as \\, and each byte of a
character that is not printable or not UTF-8 as \xNN. Thus no name breaks a line, a header or a JSON document.
"""

from __future__ import annotations

import os
import re

LONGEST_NAME = 255  # bytes; no file system of Linux has longer names
LONGEST_PATH = 4096  # characters of a path's text
MOST_FOLDERS = 100  # folders in a path
_ESCAPE = re.compile(r"\\(?:\\|x[0-9a-f]{2})|[^\\]+|\\", re.ASCII)


class BadPath(ValueError):
    """Raised for a text that is not the path of a file in a job's folder."""


def text_of(name: str) -> str:
    """Returns the text of a file name. `name` is in Python's form: undecodable bytes are surrogates (PEP 383)."""
    if name.isprintable() and "\\" not in name:
        return name
    return "".join(_character(each) for each in name)


def _character(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))


def name_of(text: str) -> str:
    """Returns the file name that `text_of` writes as `text`, in Python's form. Raises BadPath if there is none."""
    try:
        name = b"".join(map(_bytes, _ESCAPE.findall(text)))
    except UnicodeEncodeError:
        raise BadPath("A file name must consist of Unicode characters.") from None
    if name in {b"", b".", b".."} or b"/" in name or b"\0" in name:
        raise BadPath("A file name must not be empty, “.” or “..”, and must not contain “/” or NUL.")
    if len(name) > LONGEST_NAME:
        raise BadPath(f"A file name must have at most {LONGEST_NAME} bytes.")
    return os.fsdecode(name)


def _bytes(part: str) -> bytes:
    if part == "\\\\":
        return b"\\"
    if part == "\\":
        raise BadPath("A backslash in a file name must be written as “\\\\”, or “\\xNN” for a byte.")
    return bytes.fromhex(part[2:]) if part.startswith("\\x") else part.encode()


def names_of(path: str) -> list[str]:
    """Returns the file names in the text of a path, whose parts are separated by "/". The empty path has none.

    Raises BadPath for an absolute path, a path with an empty part, "." or "..", and a path that is too long.
    """
    if len(path) > LONGEST_PATH:
        raise BadPath(f"A path must have at most {LONGEST_PATH} characters.")
    parts = path.split("/") if path else []
    if len(parts) > MOST_FOLDERS:
        raise BadPath(f"A path must have at most {MOST_FOLDERS} parts.")
    return [name_of(part) for part in parts]
