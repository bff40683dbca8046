"""Reads and writes YAML 1.2 (core schema): `010` is ten; `yes`, `1:30`, `1_000` and `2026-11-25` are texts.

PyYAML, which implements YAML 1.1, does the parsing; this module defines the types of scalars. It refuses aliases,
because a small document with aliases can expand to a huge one. It also refuses merge keys and all tags outside the core
schema. It refuses duplicate keys, because otherwise one of the two values would be lost without a warning.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

import yaml
from yaml.constructor import ConstructorError

DEEPEST = 50
TABS_AT_END = re.compile(r"\t[ \t]*(?=[#\r\n\0])")
UNICODE_BREAKS = re.compile("[\x85\u2028\u2029]")
TAG = "tag:yaml.org,2002:"
# By tag: the pattern of plain scalars, and the characters that they can begin with.
SCALARS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", [*"-+0123456789"]),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        [*"-+.0123456789"],
    ),
}
PATTERNS = {TAG + kind: re.compile(rf"(?:{pattern})\Z", re.ASCII) for kind, (pattern, _) in SCALARS.items()}
READERS: dict[str, Callable[[str], Any]] = {
    "null": lambda text: None,
    "bool": lambda text: text.lower() == "true",
    "int": lambda text: int(text, {"0o": 8, "0x": 16}.get(text[:2], 10)),
    "float": lambda text: float(text.lower().replace(".inf", "inf").replace(".nan", "nan")),
}


class NotYaml(ValueError):
    """Raised when a text is not valid YAML. `where` is the place of the error, such as " in line 3"; the message
    contains it too."""

    def __init__(self, why: str, where: str = "") -> None:
        super().__init__(f"cannot be read{where}: {why}")
        self.where = where


def read(text: str) -> Any:
    """Returns the data of one YAML document. Raises NotYaml if the text is invalid."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - it makes plain data only
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise NotYaml(getattr(error, "problem", None) or str(error), where) from None
    except ValueError as error:  # for example a number with many thousand digits
        raise NotYaml(str(error)) from None
    except RecursionError:
        raise NotYaml("the document is nested too deeply") from None


def write(data: Any) -> str:
    """Returns the data as YAML. Both `read` and parsers of YAML 1.1 read the same data from it.

    Texts of several lines become block scalars.
    """
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**31)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[Any, Any] = {}  # empty: none of the types of version 1.1
    yaml_constructors: ClassVar[dict[Any, Any]] = {}
    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(
                None, None, "aliases (*name) are not accepted: repeat the value instead", event.start_mark
            )
        self._depth += 1
        if self._depth > DEEPEST:
            raise RecursionError
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def scan_to_next_token(self) -> None:
        """Moves to the next token. Skips what PyYAML skips, and also tabs at the end of a line.

        PyYAML would treat such tabs as the beginning of a token.
        """
        super().scan_to_next_token()
        if blanks := TABS_AT_END.match(self.buffer, self.pointer):
            self.forward(len(blanks[0]))
            super().scan_to_next_token()

    def construct_core(self, node: yaml.Node) -> Any:
        """Converts a node to data according to the node's tag (its YAML type). Raises ConstructorError if the value
        does not fit the tag."""
        kind = node.tag.removeprefix(TAG)
        match kind, node:
            case "map", yaml.MappingNode():
                return self._mapping(node)
            case "seq", yaml.SequenceNode():
                return [self.construct_object(one, deep=True) for one in node.value]
            case "str", yaml.ScalarNode():
                return node.value
            case _, yaml.ScalarNode() if kind in SCALARS and PATTERNS[node.tag].match(node.value):
                return READERS[kind](node.value)
        what = (
            f"the value {node.value!r} is not valid for the YAML type {kind}"
            if isinstance(node, yaml.ScalarNode)
            else f"the value is not valid for the YAML type {kind}"
        )
        raise ConstructorError(None, None, what, node.start_mark)

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in node.value:
            name, why = key.value, ""
            if not isinstance(key, yaml.ScalarNode):
                why = "a key must be a text, not a list or a mapping"
            elif key.tag != TAG + "str":
                why = f"the key {name} must be a text: write '{name}'"
            elif name == "<<" and key.style is None:
                why = (
                    "the merge key << is not accepted: write the merged keys, or '<<' for a key of that name"
                )
            elif name in found:
                why = f"the key {name!r} occurs twice"
            if why:
                raise ConstructorError(None, None, why, key.start_mark)
            found[name] = self.construct_object(value, deep=True)
        return found

    def refuse(self, node: yaml.Node) -> None:
        raise ConstructorError(
            None, None, f"the YAML tag {node.tag} is not accepted: remove the tag", node.start_mark
        )


for _kind in ("map", "seq", "str", *SCALARS):
    _Loader.add_constructor(TAG + _kind, _Loader.construct_core)
_Loader.add_constructor(None, _Loader.refuse)


class _Dumper(yaml.SafeDumper):
    """Writes YAML. Quotes texts that YAML 1.1 or 1.2 would otherwise read as another type, such as a number."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_str(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # In quotes, Unicode line breaks are escaped; in other styles PyYAML would fold them.
    style = '"' if UNICODE_BREAKS.search(text) else "|" if "\n" in text else None
    return dumper.represent_scalar(TAG + "str", text, style=style)


_Dumper.add_representer(str, _represent_str)
for _kind, (_, _firsts) in SCALARS.items():
    for _reader in (_Loader, _Dumper):
        _reader.add_implicit_resolver(TAG + _kind, PATTERNS[TAG + _kind], _firsts)
