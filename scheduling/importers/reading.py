"""Reads foreign YAML and JSON: one or more documents, by the rules of YAML 1.1 as Kubernetes applies them, or of YAML
1.2.

The texts come from anywhere, so their size, their depth and the size to which aliases expand are limited. Duplicate
keys are refused, because one of the two values would be lost without a warning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, lru_cache
from math import isfinite
from typing import Any

import yaml

from accounting.core.texts import not_storable
from accounting.core.wording import fixed
from scheduling.spec import yaml_core

LONGEST = 131_072  # characters
DEEPEST = 40
MOST_VALUES = 20_000  # after aliases are expanded
MOST_DOCUMENTS = 100
LONGEST_DIGITS = 300
TAGS = {"str", "int", "float", "bool", "null", "map", "seq", "set", "!"}
SIMPLE_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
LONGEST_KEY = 300
# In a text that cannot be read: a key of the outermost mapping, and how often reading goes on at one.
TOP_KEY = re.compile(r"^[A-Za-z_\"'][^\n:#]{0,100}:(?=\s|$)", re.MULTILINE | re.ASCII)
MOST_RESUMPTIONS = 20
BETWEEN_DOCUMENTS = re.compile(r"^---(?=\s|$)", re.MULTILINE | re.ASCII)
TEMPLATE = re.compile(r"\{\{.{0,300}?\}\}|\{%.{0,300}?%\}|<%.{0,300}?%>", re.DOTALL)
LINE_OF_TEMPLATE = re.compile(rf"^[ \t]*(?:{TEMPLATE.pattern})[ \t]*$", re.DOTALL | re.MULTILINE)
PLAIN_TEMPLATE = re.compile(
    rf"([:-][ \t]+)(?:{TEMPLATE.pattern})(?:[^\n,{{}}\]]|{TEMPLATE.pattern})*|(?:{TEMPLATE.pattern})",
    re.DOTALL,
)
PARAMETER = re.compile(r"\$\{[^}]{0,300}\}|\$[A-Za-z_]\w*", re.ASCII)
# YAML 1.1 as Kubernetes reads it (go-yaml 2): y and n are booleans, and 22:30 is a text.
BOOLS = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
}
INT_1_1 = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|[1-9][0-9_]*|0)", re.ASCII)
FLOAT_1_1 = re.compile(r"[-+]?(?:\.[0-9_]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
# What programs that follow YAML 1.1 to the letter, such as PyYAML, read as a number of base 60.
BASE_60 = re.compile(r"[-+]?[1-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?", re.ASCII)


class Yaml(Enum):
    """The version of YAML that decides which plain scalars are texts."""

    V1_1 = "1.1"
    V1_2 = "1.2"


class Unreadable(ValueError):
    """Raised when a foreign text cannot be read. `where` is the place, such as "line 3". The message is a sentence."""

    def __init__(self, text: str, where: str = "") -> None:
        super().__init__(text)
        self.where = where


@dataclass(frozen=True)
class Doubt:
    """A plain scalar that is read as `value`, and by other programs as `other`."""

    text: str
    value: Any
    other: Any

    @property
    def is_number(self) -> bool:
        return any(
            isinstance(one, int | float) and not isinstance(one, bool) for one in (self.value, self.other)
        )

    @property
    def as_number(self) -> str:
        """Returns the sentence that refuses it as a number."""
        return (
            f"The number {self.text[:40]} is {_in_words(self.value)} to some programs and {_in_words(self.other)} to"
            " others. Write it in plain digits."
        )

    @property
    def as_value(self) -> str:
        """Returns the sentence about it as a value."""
        return (
            f"The value {self.text[:40]} is read as {_in_words(self.value)}. Other programs read it as"
            f" {_in_words(self.other)}. Put it in quotes if you mean the text."
        )

    @property
    def as_text(self) -> str:
        """Returns the sentence about it where a text is expected: then what was written counts."""
        read = dict.fromkeys(_in_words(one) for one in (self.value, self.other) if not isinstance(one, str))
        return (
            f"The text {self.text[:40]} is used as it was written. Without quotes, programs read it as"
            f" {' or '.join(read) or _in_words(self.other)}. Put it in quotes."
        )


@dataclass(frozen=True)
class Document:
    """A document of a foreign text.

    `raw` has the text as it was written for each scalar that is not a text, by path. `lines` has the line of each
    value. `doubtful` has each plain scalar that the other version of YAML reads differently.
    """

    data: Any
    path: str = ""  # of the document itself: "" if it is the only one
    raw: dict[str, str] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    doubtful: dict[str, Doubt] = field(default_factory=dict)


def step(path: str, key: str | int) -> str:
    """Returns the path of the value at `key` in the mapping or list at `path`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if not SIMPLE_KEY.fullmatch(key):
        return f"{path}[{json.dumps(key, ensure_ascii=False)}]"
    return f"{path}.{key}" if path else key


def leaves(data: Any, path: str = "") -> Iterator[str]:
    """Returns the paths of all values in `data` that are neither mappings nor lists with values."""
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from leaves(value, step(path, key))
    elif isinstance(data, list) and data:
        for at, value in enumerate(data):
            yield from leaves(value, step(path, at))
    else:
        yield path


def read_documents(text: str, version: Yaml) -> list[Document]:
    """Returns the documents of a YAML or JSON text. Empty documents are left out.

    Raises Unreadable if the text is neither, or is too large, or has a key twice.
    """
    check_text(text)
    if text.lstrip()[:1] in {"{", "["} and (found := _read_json(text)) is not None:
        return found
    try:
        _check_depth(text)
        nodes = list(yaml.compose_all(text, Loader=_Loader))
    except yaml.YAMLError as error:
        raise _unreadable(error, text) from None
    reader = _Reader(version)
    filled = [node for node in nodes if node is not None and (node.value or getattr(node, "style", "plain"))]
    if len(filled) == 1:
        return [reader.document(filled[0], "")]
    return [reader.document(node, f"document {at}") for at, node in enumerate(filled, 1)]


def check_text(text: str) -> None:
    """Raises Unreadable if the text is too long, or has characters that cannot be stored."""
    if len(text) > LONGEST:
        raise Unreadable(
            f"The text has {fixed(len(text))} characters. At most {fixed(LONGEST)} are accepted."
        )
    if flaw := not_storable({"text": text}):
        raise Unreadable(f"The text cannot be used: it {flaw[1]}.")


def template_in(text: str) -> str:
    """Returns the first template expression in the text, such as {{ .Values.image }}, or "" if there is none."""
    found = TEMPLATE.search(text)
    return found[0] if found else ""


def parameter_in(text: str) -> str:
    """Returns the first reference to a variable in the text, such as ${TAG}, or "" if there is none."""
    found = PARAMETER.search(text)
    return found[0] if found else ""


class _Loader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """Composes nodes, whose scalars have the tag of texts; `_Reader` finds their types."""

    yaml_implicit_resolvers: dict[Any, Any] = {}


def _check_depth(text: str) -> None:
    """Raises Unreadable if the text is nested too deeply or has too many documents, before anything is built of it."""
    depth = documents = values = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        documents += isinstance(event, yaml.DocumentStartEvent)
        values += isinstance(event, yaml.NodeEvent)
        if depth > DEEPEST:
            raise Unreadable(
                f"The text is nested too deeply. At most {DEEPEST} levels are accepted.", _line_of(event)
            )
        if documents > MOST_DOCUMENTS:
            raise Unreadable(
                f"The text has more than {MOST_DOCUMENTS} documents. Import a part of them at a time."
            )
        if values > MOST_VALUES:
            raise Unreadable(f"The text has too many values. At most {fixed(MOST_VALUES)} are accepted.")


def _line_of(event: yaml.Event) -> str:
    mark = event.start_mark
    return f"line {mark.line + 1}" if mark else ""


def _unreadable(error: yaml.YAMLError, text: str) -> Unreadable:
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}" if mark else ""
    if template := _template_before(mark.line if mark else 0, text):
        return Unreadable(templated(template[0]), f"line {_line_at(text, template.start())}")
    why = getattr(error, "problem", None) or "it is not valid YAML"
    return Unreadable(f"The text is not valid YAML: {why}.", where)


def _template_before(line: int, text: str) -> re.Match[str] | None:
    """Returns the template expression that makes a text unreadable at this line, counted from 0: one of this line, or
    the last one before it if the text is readable with words in place of templates. Returns None if none does."""
    before = [one for one in TEMPLATE.finditer(text) if _line_at(text, one.start()) <= line + 1]
    if not before or _line_at(text, before[-1].end()) == line + 1:
        return before[-1] if before else None
    try:
        for _ in yaml.parse(_without_templates(text), Loader=_Loader):
            pass
    except yaml.YAMLError:
        return None
    return before[-1]


def _line_at(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _without_templates(text: str) -> str:
    """Returns the text with a word in place of each template expression, or of the plain value that begins with it.
    Lines of these alone become empty."""
    text = LINE_OF_TEMPLATE.sub("", text)
    return PLAIN_TEMPLATE.sub(r"\1template", text)


def templated(template: str) -> str:
    """Returns the sentence that refuses a template expression."""
    return (
        f"The text is a template: it contains {template[:60]}. Render the template first, for example with helm"
        " template, and import the result."
    )


def _read_json(text: str) -> list[Document] | None:
    """Returns the document of a JSON text; None if the text is not JSON, and perhaps YAML."""
    try:
        data = json.loads(
            text,
            object_pairs_hook=_each_key_once,
            parse_int=_json_int,
            parse_float=_json_float,
            parse_constant=_no_number,
        )
    except _KeyTwice as error:
        raise _at_its_line(error, text) from None
    except Unreadable:
        raise
    except RecursionError:
        raise Unreadable("The text is nested too deeply.") from None
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and text[error.pos] in "{[":
            raise Unreadable(
                "Several JSON values follow each other. Put them into a list, or import one at a time.",
                f"line {error.lineno}",
            ) from None
        return None
    except ValueError:
        return None
    _check_size(data, 0, [0])
    return [Document(data)]


class _KeyTwice(Unreadable):
    """Raised when a mapping of a JSON text has a key twice."""


def _at_its_line(error: _KeyTwice, text: str) -> Unreadable:
    """Returns the error with its line. JSON is also YAML, whose nodes know their lines."""
    try:
        _check_depth(text)
        for node in yaml.compose_all(text, Loader=_Loader):
            _Reader(Yaml.V1_2).document(node, "")
    except Unreadable as located:
        return located
    except yaml.YAMLError:
        pass
    return error


def _json_int(digits: str) -> int:
    if len(digits) > LONGEST_DIGITS:
        raise Unreadable(f"The number {digits[:20]}… is too large.")
    return int(digits)


def _json_float(digits: str) -> float:
    if not isfinite(value := float(digits)):
        raise Unreadable(f"The number {digits[:20]} is too large.")
    return value


def _no_number(name: str) -> float:
    raise Unreadable(f"{name} is not a number in JSON.")


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _KeyTwice(f"The key {twice[:60]!r} occurs twice in one mapping. Remove one of the two.")
    return found


def _check_size(data: Any, depth: int, count: list[int]) -> None:
    count[0] += 1
    if count[0] > MOST_VALUES:
        raise Unreadable(f"The text has too many values. At most {fixed(MOST_VALUES)} are accepted.")
    if depth > DEEPEST:
        raise Unreadable(f"The text is nested too deeply. At most {DEEPEST} levels are accepted.")
    if isinstance(data, dict) and any(len(key) > LONGEST_KEY for key in data):
        raise Unreadable(f"A key is too long. At most {LONGEST_KEY} characters are accepted.")
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    for value in inner:
        _check_size(value, depth + 1, count)


class _Reader:
    """Converts the nodes of documents to data. It counts the values of all documents, with those of aliases."""

    def __init__(self, version: Yaml) -> None:
        self.version = version
        self.count = 0

    def document(self, node: yaml.Node, path: str) -> Document:
        document = Document(None)
        data = self._value(node, path, 0, document)
        return Document(data, path, document.raw, document.lines, document.doubtful)

    def _value(self, node: yaml.Node, path: str, depth: int, document: Document) -> Any:
        self.count += 1
        where = f"line {node.start_mark.line + 1}"
        if self.count > MOST_VALUES:
            raise Unreadable(
                f"The text has too many values, after its aliases are expanded. At most {fixed(MOST_VALUES)} are"
                " accepted.", where,
            )  # fmt: skip
        if depth > DEEPEST:
            raise Unreadable("The text contains itself through an alias, or is nested too deeply.", where)
        document.lines[path] = node.start_mark.line + 1
        tag = str(node.tag).removeprefix(yaml_core.TAG)
        if tag not in TAGS:
            raise Unreadable(f"The YAML tag {node.tag[:60]} is not accepted. Remove it.", where)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth, document)
        if isinstance(node, yaml.SequenceNode):
            return [
                self._value(one, step(path, at), depth + 1, document) for at, one in enumerate(node.value)
            ]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path, document)
        raise Unreadable("This kind of YAML is not accepted.", where)

    def _mapping(self, node: yaml.MappingNode, path: str, depth: int, document: Document) -> dict[str, Any]:
        found: dict[str, Any] = {}
        merged: list[yaml.Node] = []
        for key, value in node.value:
            name, where = self._key(key), f"line {key.start_mark.line + 1}"
            if name == "<<" and not key.style:
                merged.append(value)
            elif name in found:
                raise Unreadable(
                    f"The key {name[:60]!r} occurs twice in one mapping. Remove one of the two.", where
                )
            else:
                found[name] = self._value(value, step(path, name), depth + 1, document)
        for other in merged:
            for name, value in self._merged(other, depth + 1):
                if name not in found:
                    found[name] = self._value(value, step(path, name), depth + 1, document)
        return found

    def _merged(self, node: yaml.Node, depth: int) -> Iterator[tuple[str, yaml.Node]]:
        """Returns the keys and values that the merge key << adds. Of a key that occurs several times, the first
        counts."""
        where = f"line {node.start_mark.line + 1}"
        self.count += 1
        if depth > DEEPEST or self.count > MOST_VALUES:
            raise Unreadable("The merge keys << are nested too deeply.", where)
        if isinstance(node, yaml.SequenceNode):
            for one in node.value:
                yield from self._merged(one, depth + 1)
        elif isinstance(node, yaml.MappingNode):
            further = []
            for key, value in node.value:
                if (name := self._key(key)) == "<<" and not key.style:
                    further.append(value)
                else:
                    yield name, value
            for one in further:
                yield from self._merged(one, depth + 1)
        else:
            raise Unreadable("The merge key << needs a mapping.", where)

    def _key(self, node: yaml.Node) -> str:
        where = f"line {node.start_mark.line + 1}"
        if isinstance(node, yaml.ScalarNode):
            if len(node.value) > LONGEST_KEY:
                raise Unreadable(f"A key is too long. At most {LONGEST_KEY} characters are accepted.", where)
            return str(node.value)
        if isinstance(node, yaml.MappingNode):
            raise Unreadable(templated("{{ … }}"), where)
        raise Unreadable("A key must be a text, not a list.", where)

    def _scalar(self, node: yaml.ScalarNode, path: str, document: Document) -> Any:
        text = node.value
        if node.style or str(node.tag) != yaml_core.TAG + "str":
            return text
        readings = {version: read(text) for version, read in READERS.items()}
        value = readings[self.version]
        if value is not text:
            document.raw[path] = text
        other = readings[Yaml.V1_2 if self.version is Yaml.V1_1 else Yaml.V1_1]
        if self.version is Yaml.V1_2 and BASE_60.fullmatch(text):
            other = "a number of base 60"
        if (type(value), value) != (type(other), other):
            document.doubtful[path] = Doubt(text, value, other)
        return value


def _in_words(value: Any) -> str:
    if isinstance(value, str):
        return value if value.startswith("a number of") else "a text"
    return "nothing" if value is None else json.dumps(value, default=str)


def _read_1_1(text: str) -> Any:
    """Returns the value of a plain scalar, as Kubernetes reads it."""
    if text in {"", "~", "null", "Null", "NULL"}:
        return None
    if text in BOOLS:
        return BOOLS[text]
    if text[0] in "+-.0123456789" and len(text) <= LONGEST_DIGITS:
        plain = text.replace("_", "")
        if INT_1_1.fullmatch(text) and plain.strip("+-"):
            try:
                octal = re.fullmatch(r"([-+]?)0([0-7]+)", plain)
                return int(f"{octal[1]}0o{octal[2]}" if octal else plain, 0)
            except ValueError:
                return text
        if FLOAT_1_1.fullmatch(text) and any(char.isdigit() for char in text):
            return _finite(plain, text)
    return text


def _finite(digits: str, text: str) -> float | str:
    """Returns a number, or the text that stands for it if it is too large or not a number."""
    try:
        return value if isfinite(value := float(digits)) else text
    except ValueError:
        return text


def _read_1_2(text: str) -> Any:
    """Returns the value of a plain scalar by the core schema of YAML 1.2."""
    if len(text) > LONGEST_DIGITS:
        return text
    for kind in yaml_core.SCALARS:
        if yaml_core.PATTERNS[yaml_core.TAG + kind].match(text):
            value = yaml_core.READERS[kind](text)
            return text if isinstance(value, float) and not isfinite(value) else value
    return text


READERS: dict[Yaml, Callable[[str], Any]] = {
    Yaml.V1_1: lru_cache(4096)(_read_1_1),
    Yaml.V1_2: lru_cache(4096)(_read_1_2),
}


def read_roughly(text: str) -> list[Any]:
    """Returns what can be read of the documents of a text that is not valid, to find its format.

    Of a key that occurs twice, the first value counts. Tags are ignored, and templates become words. Where the text is
    no YAML, reading goes on at the next key of the outermost mapping.
    """
    plain, found, left = _without_templates(text[:LONGEST]), [], MOST_RESUMPTIONS
    for part in BETWEEN_DOCUMENTS.split(plain, maxsplit=MOST_DOCUMENTS)[:MOST_DOCUMENTS]:
        data, start = None, 0
        while True:
            rough = _Rough()
            rough.read(part[start:])
            if data is None:
                data = rough.root
            elif isinstance(data, dict) and isinstance(rough.root, dict):
                data = rough.root | data
            after = _start_of_line(part, start, rough.line + 1)
            following = TOP_KEY.search(part, after) if rough.is_broken and after else None
            if following is None or not left:
                break
            start, left = following.start(), left - 1
        if data is not None:
            found.append(data)
    return found


def _start_of_line(text: str, start: int, line: int) -> int:
    """Returns where the line begins, counted from the line at `start`; 0 if there is no such line."""
    for _ in range(line):
        start = text.find("\n", start) + 1
        if not start:
            break
    return start


class _Rough:
    """Builds data of the events of a YAML text, up to the place where it is no YAML."""

    def __init__(self) -> None:
        self.root: Any = None
        self.line = 0  # of the last key of the outermost mapping, counted from 0
        self.is_broken = False
        self._open: list[Any] = []
        self._keys: list[Any] = []  # of each open mapping that waits for the value of a key
        self._values = 0

    def read(self, text: str) -> None:
        try:
            for event in yaml.parse(text, Loader=_Loader):
                if isinstance(event, yaml.CollectionEndEvent):
                    self._open.pop()
                    self._keys.pop()
                elif isinstance(event, yaml.NodeEvent):
                    self._add(event)
                self._values += 1
                if len(self._open) > DEEPEST or self._values > 2 * MOST_VALUES:
                    break
        except yaml.YAMLError:
            self.is_broken = True

    def _add(self, event: yaml.NodeEvent) -> None:
        value: Any = None
        if isinstance(event, yaml.ScalarEvent):
            value = event.value if event.style else READERS[Yaml.V1_2](event.value)
        elif isinstance(event, yaml.CollectionStartEvent):
            value = {} if isinstance(event, yaml.MappingStartEvent) else []
        holder = self._open[-1] if self._open else None
        if holder is None:
            self.root = value if self.root is None else self.root
        elif isinstance(holder, list):
            holder.append(value)
        elif self._keys[-1] is None:
            self._keys[-1] = event.value if isinstance(event, yaml.ScalarEvent) else ""
            if len(self._open) == 1 and event.start_mark:
                self.line = event.start_mark.line
        else:
            holder.setdefault(self._keys[-1], value)
            self._keys[-1] = None
        if isinstance(event, yaml.CollectionStartEvent):
            self._open.append(value)
            self._keys.append(None)


class Source:
    """A foreign text, whose documents are read once for each version of YAML."""

    def __init__(self, text: str) -> None:
        self.text = (
            text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}").replace("\r\n", "\n").replace("\r", "\n")
        )
        self._read: dict[Yaml, list[Document] | Unreadable] = {}

    def documents(self, version: Yaml) -> list[Document]:
        """Returns the documents. Raises Unreadable if the text is not YAML."""
        if version not in self._read:
            try:
                self._read[version] = read_documents(self.text, version)
            except Unreadable as error:
                self._read[version] = error
        found = self._read[version]
        if isinstance(found, Unreadable):
            raise found
        return found

    @cached_property
    def unreadable(self) -> Unreadable | None:
        """Why the text cannot be read by YAML 1.2; None if it can."""
        try:
            self.documents(Yaml.V1_2)
        except Unreadable as error:
            return error
        return None

    @cached_property
    def values(self) -> list[Any]:
        """The documents by YAML 1.2, to find the format; of a text that cannot be read, as far as possible."""
        if self.unreadable:
            return read_roughly(self.text)
        return [document.data for document in self.documents(Yaml.V1_2)]

    @property
    def mappings(self) -> list[dict[str, Any]]:
        """Those of `values` that are mappings."""
        return [one for one in self.values if isinstance(one, dict)]

    @property
    def top(self) -> dict[str, Any]:
        """The first document, if it is a mapping."""
        return self.mappings[0] if self.mappings else {}

    def has_line(self, pattern: str) -> bool:
        """Returns whether a line begins with the pattern. This also works for a text that cannot be read."""
        return bool(re.search(rf"^(?:{pattern})", self.text, re.MULTILINE))
