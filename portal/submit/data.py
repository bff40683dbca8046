"""The form's lists of volumes and secrets, and their conversion to the lines of text that `Fields` has for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.http import QueryDict

from accounting.core.texts import one_line

if TYPE_CHECKING:
    from scheduling.models import Volume

EMPTY_ROWS = 2  # for further secret variables
MARK = "data_lists"  # posted by forms with lists; others post the lines themselves


@dataclass(frozen=True, slots=True)
class Mountable:
    """A volume or secret in the list: whether the job uses it, and at which path (empty: the usual one)."""

    name: str
    about: str
    is_used: bool
    path: str
    is_known: bool = True  # the user may use it


def volume_list(lines: str, volumes: Sequence[Volume]) -> list[Mountable]:
    """Returns the volumes that the user may mount, and those that `lines` name."""
    known = {}
    for volume in volumes:  # a team's own volume counts before one of the same name for all
        if volume.name not in known or volume.tenant:
            kind = "read-only" if volume.read_only else "read and write"
            known[volume.name] = f"{kind}, of team {volume.tenant.name}" if volume.tenant else kind
    return _listed(lines, known)


def secret_list(lines: str, secrets: Sequence[tuple[str, Sequence[str]]]) -> list[Mountable]:
    """Returns the secrets whose keys can be files, and those that `lines` name.

    `secrets` are pairs of a name and its keys.
    """
    return _listed(lines, {name: ", ".join(keys) for name, keys in secrets})


def references(secrets: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Returns what a variable can be set to: a secret with one text, or one key of a secret with several."""
    found = []
    for name, keys in secrets:
        found += [name] if len(keys) == 1 else [f"{name}/{key}" for key in keys]
    return list(dict.fromkeys(found))


def secret_rows(lines: str) -> list[tuple[str, str]]:
    """Returns the secret variables in `lines` as pairs of variable and secret, and empty rows for more."""
    found = [line.partition("=") for line in lines.split("\n") if line.strip()]
    return [(name.strip(), said.strip()) for name, _, said in found] + [("", "")] * EMPTY_ROWS


def posted_lines(post: QueryDict) -> dict[str, str]:
    """Returns the lines for the fields `volumes`, `secret_files` and `secrets`; empty if the form has no lists."""
    if MARK not in post:
        return {}
    rows = zip(post.getlist("secret_variable"), post.getlist("secret_reference"), strict=False)
    named = [(one_line(name).strip(), one_line(said).strip()) for name, said in rows]
    return {
        "volumes": _mounts(post, "volume"),
        "secret_files": _mounts(post, "secret_file"),
        "secrets": "\n".join(f"{name}={said}" for name, said in named if name or said),
    }


def _listed(lines: str, known: dict[str, str]) -> list[Mountable]:
    parts = [line.partition("=") for line in lines.split("\n") if line.strip()]
    used = {name.strip(): path.strip() for name, _, path in parts}
    found = [Mountable(name, about, name in used, used.get(name, "")) for name, about in known.items()]
    return found + [
        Mountable(name, "", True, path, False) for name, path in used.items() if name not in known
    ]


def _mounts(post: QueryDict, kind: str) -> str:
    lines = []
    for name in map(one_line, post.getlist(f"use_{kind}")):
        path = one_line(post.get(f"{kind}_path.{name}", "")).strip()
        lines.append(f"{name}={path}" if path else name)
    return "\n".join(lines)
