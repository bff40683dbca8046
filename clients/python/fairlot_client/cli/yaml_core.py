"""Reads and writes YAML 1.2 (core schema), as the portal does: `no` and `1:30` are texts, `010` is ten.

Keys that occur twice, aliases and tags are refused. PyYAML, which implements YAML 1.1, does the parsing.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

import yaml
from yaml.constructor import ConstructorError

TAG = "tag:yaml.org,2002:"
# By type: the pattern of plain scalars, and the characters that they can begin with.
SCALARS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", [*"-+0123456789"]),
    "float": (r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", [*"-+.0123456789"]),
}
PATTERNS = {TAG + kind: re.compile(rf"(?:{pattern})\Z", re.ASCII) for kind, (pattern, _) in SCALARS.items()}


class NotYaml(ValueError):
    """Raised when a text is not valid YAML."""


def read(text: str) -> Any:
    """Returns the data of one YAML document. Raises NotYaml with the line of the error."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - it makes plain data only
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise NotYaml(f"{where}{getattr(error, 'problem', None) or error}") from None
    except (ValueError, RecursionError) as error:
        raise NotYaml(str(error)) from None


def write(data: Any) -> str:
    """Returns the data as YAML, which parsers of YAML 1.1 and 1.2 read in the same way."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**31)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[Any, Any] = {}  # empty: none of the types of version 1.1
    yaml_constructors: ClassVar[dict[Any, Any]] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise ConstructorError(None, None, "aliases (*name) are not accepted", event.start_mark)
        return super().compose_node(parent, index)

    def construct_core(self, node: yaml.Node) -> Any:
        kind = node.tag.removeprefix(TAG)
        match node:
            case yaml.MappingNode() if kind == "map":
                return self._mapping(node)
            case yaml.SequenceNode() if kind == "seq":
                return [self.construct_object(one, deep=True) for one in node.value]
            case yaml.ScalarNode() if kind == "str":
                return node.value
            case yaml.ScalarNode() if kind in SCALARS and PATTERNS[node.tag].match(node.value):
                return _scalar(kind, node.value)
        raise ConstructorError(None, None, f"the tag {node.tag} is not accepted here", node.start_mark)

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != f"{TAG}str":
                raise ConstructorError(None, None, "a key must be a text", key.start_mark)
            if key.value in found:
                raise ConstructorError(None, None, f"the key {key.value!r} occurs twice", key.start_mark)
            found[key.value] = self.construct_object(value, deep=True)
        return found


def _scalar(kind: str, text: str) -> object:
    match kind:
        case "null":
            return None
        case "bool":
            return text.lower() == "true"
        case "int":
            return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    return float(text)


class _Dumper(yaml.SafeDumper):
    """Writes YAML. Texts that a parser would read as another type are quoted, and texts of several lines are blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(f"{TAG}str", text, style="|" if "\n" in text else None)


for _kind in ("map", "seq", "str", *SCALARS):
    _Loader.add_constructor(TAG + _kind, _Loader.construct_core)
_Loader.add_constructor(None, _Loader.construct_core)
_Dumper.add_representer(str, _represent_text)
for _kind, (_, _firsts) in SCALARS.items():
    for _reader in (_Loader, _Dumper):
        _reader.add_implicit_resolver(TAG + _kind, PATTERNS[TAG + _kind], _firsts)
