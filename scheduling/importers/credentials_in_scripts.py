"""Finds credentials in scripts: in assignments, headers, and the options of programs that log in somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scheduling.importers.credentials import (
    OF_PASSWORDS,
    has_credential,
    has_file_of_credentials,
    is_confidential,
    is_credential_name,
    is_literal,
    is_placeholder,
    looks_random,
)

# An assignment or an option, whose value is no reference to a variable.
ASSIGNED = re.compile(
    r"(?:^|[\s;&|(,'\"])(?:export\s+|set\s+|--?)?([A-Za-z_][\w.-]*)(?:=|\s+(?=[A-Za-z0-9]{24,}\b))"
    r"(\"[^\"\n]*\"|'[^'\n]*'|[^\s;&|)]+)",
    re.MULTILINE | re.ASCII,
)
HEADER = re.compile(
    r"\b(?:(?:Proxy-)?Authorization|X-[\w-]{0,40}(?:Token|Key|Secret)|(?:Api|Private|Access|Job)-?(?:Key|Token)|Cookie)"
    r"\\?[\"']?\s{0,9}[:=]\s{0,9}f?\\?[\"']?((?:Bearer|Basic|Token|Digest|ApiKey|Key)\s{1,9})?([^\s\"'\\]+)",
    re.IGNORECASE | re.ASCII,
)
LOGIN = re.compile(r"\bwandb\s+login\s+(?:--\S+\s+)*([A-Za-z0-9]{32,})", re.ASCII)
PIPED = re.compile(
    r"\becho\s{1,9}(?:-\w\s{1,9})?([^\s|;&]{1,300})\s{0,9}\|[^|;\n]{0,200}--password-stdin", re.ASCII
)
COMMANDS = re.compile(r"\n|;|\|\||&&|\||&")
# What Python evaluates: a name, a call, a subscript.
EXPRESSION = re.compile(r"[A-Za-z_][\w.]*[\[(].*|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+", re.ASCII | re.DOTALL)
REGISTRIES = (
    "docker",
    "podman",
    "nerdctl",
    "buildah",
    "skopeo",
    "helm",
    "oras",
    "crane",
    "az",
    "oc",
    "apptainer",
)
# By program, its options with a user and a password, with what is between them.
PAIRS = {
    **dict.fromkeys(("curl",), (("-u", "--user", "-U", "--proxy-user"), ":")),
    **dict.fromkeys(("http", "https", "xh"), (("-a", "--auth"), ":")),
    "lftp": (("-u", "--user"), ","),
    "smbclient": (("-U", "--user"), "%"),
}
# By program, its options with a password.
PASSWORDS = {
    "sshpass": ("-p",), "redis-cli": ("-a", "--pass"), "mongo": ("-p",), "mongosh": ("-p",), "mongodump": ("-p",),
    "mongorestore": ("-p",), "ldapsearch": ("-w",), "ldapadd": ("-w",), "ldapmodify": ("-w",),
}  # fmt: skip
OF_MYSQL = re.compile(r"(?:mysql|mariadb)(?:dump|admin|import|check|show|sh|-dump|-admin|-import)?")


def credential_in_script(script: str) -> str:
    """Returns what in a script contains a credential: the name of the variable or option, or "a value". Returns "" if
    nothing does."""
    script = script.replace("\\\n", " ")
    for found in ASSIGNED.finditer(script):
        if _is_assigned(found[1].rpartition(".")[2], found[2]):
            return found[1]
    for found in HEADER.finditer(script):
        if is_literal(found[2]) and not _is_word(found[2]) and (found[1] or looks_random(found[2])):
            return "a header"
    if any(is_literal(found[1]) for pattern in (LOGIN, PIPED) for found in pattern.finditer(script)):
        return "a login"
    for command in COMMANDS.split(script):
        if found_here := _in_command(command):
            return found_here
    return "a value" if has_credential(script) or has_file_of_credentials(script) else ""


def _is_assigned(name: str, written: str) -> bool:
    """Returns whether a script gives a variable or an option a credential itself."""
    plain, value = name.replace("-", "_"), written.strip("'\"")
    if "$" in value or "`" in value or is_placeholder(value) or _is_expression(written):
        return False
    return is_confidential(plain, value)


def _is_expression(written: str) -> bool:
    plain = written.rstrip(",]}")
    return bool(EXPRESSION.fullmatch(plain)) or _is_word(plain)


def _is_word(value: str) -> bool:
    """Returns whether the value is itself the name of a variable that holds a credential, such as api_key."""
    return bool(re.fullmatch(r"[a-z_]+", value)) and is_credential_name(value)


def _in_command(command: str) -> str:
    """Returns the program or the option of one command that is given a credential; "" if none is."""
    words = [word.strip("'\"()") for word in command.split()]
    program = ""
    for at, word in enumerate(words):
        name = word.rpartition("/")[2]
        following = words[at + 1] if at + 1 < len(words) else ""
        if name in PAIRS or name in PASSWORDS or name in REGISTRIES or OF_MYSQL.fullmatch(name):
            program = name
        elif word.startswith("-"):
            if program and any(map(is_literal, _passwords(program, word, following, words))):
                return f"an option of {program}"
            if _is_option(word, following):
                return word.lstrip("-")
    return ""


def _passwords(program: str, word: str, following: str, words: list[str]) -> Iterator[str]:
    """Yields the passwords that an option gives to a program."""
    if program in PAIRS:
        options, between = PAIRS[program]
        for value in _values(options, word, following):
            _, has, password = value.partition(between)
            if has and password:
                yield password
    elif program in PASSWORDS:
        yield from _values(PASSWORDS[program], word, following)
    elif program in REGISTRIES:
        if "login" in words:
            yield from _values(("-p", "--password"), word, following)
    elif word.startswith("-p") and not re.fullmatch(r"-p[\d:]*|-port.*", word, re.ASCII):
        yield word[2:]


def _values(options: tuple[str, ...], word: str, following: str) -> Iterator[str]:
    for option in options:
        if option.startswith("--"):
            if word == option:
                yield following
            elif word.startswith(f"{option}="):
                yield word[len(option) + 1 :]
            continue
        found = None if word.startswith("--") else re.match(rf"-[A-Za-z]*?{option[1]}(.*)", word)
        if found and (found[1] or not following.startswith("-")):
            yield found[1] or following


def _is_option(word: str, following: str) -> bool:
    """Returns whether the word is an option such as --password, and the next one is a credential."""
    name = word.lstrip("-").rpartition(".")[2].replace("-", "_")
    if "=" in word or not word.startswith("--") or following.startswith("-") or not is_credential_name(name):
        return False
    if not is_literal(following) or _is_expression(following) or following.startswith(("/", ".", "~", "@")):
        return False
    return bool(OF_PASSWORDS.fullmatch(name)) or looks_random(following)
