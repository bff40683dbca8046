"""Identifies the builds of policy versions: a build is a digest of the policy's source text.

Before a policy version is released, its source may change, so its rounds may be decided by different builds.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import fairshare
from fairshare.policies import policy_type

ROOT = Path(fairshare.__file__).parents[1]
# The digests of the packages of released versions, which never change. Their decisions stay the same even if shared
# modules change.
FROZEN: Mapping[tuple[str, int], str] = {("gandiva_fair", 1): "310f2345a6ef"}


@cache
def build_of(name: str, version: int) -> str:
    """Returns a digest of the source text of a policy and of all `fairshare` modules that the policy imports.

    The digest is the same on every machine. Raises UnknownPolicy if the policy or version does not exist.
    """
    return digest(sources(policy_type(name, version).__module__))


def sources(module: str) -> dict[str, str]:
    """Returns the source text of `module` and of all `fairshare` modules that it imports, also indirectly, by module
    name."""
    found: dict[str, str] = {}
    left = [module]
    while left:
        name = left.pop()
        path = ROOT.joinpath(*name.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if name in found or not path.exists():
            continue
        found[name] = path.read_text(encoding="utf-8")  # text mode translates every line ending to "\n"
        left += [one for one in _imports(found[name]) if one.split(".")[0] == fairshare.__name__]
    return found


def _imports(source: str) -> list[str]:
    """Returns all names that a source text imports and that may be names of modules."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def digest(named: Mapping[str, str]) -> str:
    """Returns the first 12 hexadecimal digits of a SHA-256 digest of the texts and their names."""
    return hashlib.sha256(json.dumps(sorted(named.items())).encode()).hexdigest()[:12]
