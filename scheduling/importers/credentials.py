"""Recognises credentials in foreign texts. They become references to secrets; no result and no report contains them."""

from __future__ import annotations

import re

NAMES = re.compile(
    r"(?:.*_)?(?:TOKEN|PASSWORD|PASSWD|PASSPHRASE|SECRET|SECRETS|CREDENTIALS?|APIKEY|API_?KEY|ACCESS_?KEY(?:_ID)?|"
    r"SECRET_?KEY|PRIVATE_?KEY|ENCRYPTION_?KEY|SIGNING_?KEY|AUTH_?KEY|SSH_?KEY|LICENSE_?KEY|ACCOUNT_?KEY|"
    r"CONNECTION_?STRING|WEBHOOK_?URL)",
    re.IGNORECASE,
)  # fmt: skip
IN_CAPITALS = re.compile(r"(?:[A-Z0-9_]*_)?(?:KEY|PASS)")
# Names that look like these and are none.
HARMLESS = re.compile(
    r"(?:.*_)?(?:BOS|EOS|PAD|UNK|CLS|SEP|MASK|STOP|START|IMAGE|AUDIO|SPECIAL|SORT|PRIMARY|FOREIGN|PARTITION|PUBLIC|CACHE"
    r"|GROUP|JOIN|INDEX|LABEL|TEXT|INPUT|OUTPUT|DATA|MAX|MIN|NUM)_(?:TOKENS?|KEY)",
    re.IGNORECASE,
)
VALUES = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY|\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|"
    r"sk-[A-Za-z0-9_-]{20,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}|AKIA[A-Z0-9]{16}|ASIA[A-Z0-9]{16}|AIza[\w-]{30,}|"
    r"nvapi-[\w-]{20,}|dckr_pat_[\w-]{16,}|eyJ[\w-]{15,}\.eyJ[\w-]{10,}\.[\w-]+)",
    re.ASCII,
)
IN_URL = re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@'\"$<{]*:([^\s/@'\"]+)@", re.IGNORECASE | re.ASCII)
LEAST_TOKEN, LEAST_PASSWORD = 8, 1
# An assignment or an option in a script, whose value is no reference to a variable.
ASSIGNED = re.compile(
    r"(?:^|[\s;&|(])(?:export\s+|set\s+|--?)?([A-Za-z_][\w-]*)(?:=|\s+(?=[A-Za-z0-9]{24,}\b))(\"[^\"\n]*\"|'[^'\n]*'|[^\s;&|)]+)",
    re.MULTILINE | re.ASCII,
)
LOGIN = re.compile(
    r"\bwandb\s+login\s+(?:--\S+\s+)*([A-Za-z0-9]{32,})|\s--password[ =]([^\s$'\"<]\S*)", re.ASCII
)
PLACEHOLDER = re.compile(
    r"|<.*|\[.*\]|\{.*\}|\$.*|%.*%|x{3,}|\*{2,}|\.{3,}|…|null|none|true|false|change[_-]?me.*|todo|\d{1,6}|"
    r"(?:your|my|insert|enter|replace|put|add)[-_ ].*|.*[-_ ](?:here|goes[-_ ]here)",
    re.IGNORECASE | re.ASCII,
)  # fmt: skip


def is_credential_name(name: str) -> bool:
    """Returns whether a variable of this name usually holds a credential, such as HF_TOKEN."""
    return bool(NAMES.fullmatch(name) or IN_CAPITALS.fullmatch(name)) and not HARMLESS.fullmatch(name)


def is_placeholder(value: str) -> bool:
    """Returns whether the text stands for a credential that the user has to fill in, such as <your token>, or refers to
    a variable."""
    return bool(PLACEHOLDER.fullmatch(value.strip().strip("'\"")))


def has_credential(value: str) -> bool:
    """Returns whether the text contains a credential: a known kind of token, a private key, or a URL with a
    password."""
    if VALUES.search(value):
        return True
    return any(not is_placeholder(found[1]) for found in IN_URL.finditer(value))


def found_in(text: str) -> list[tuple[str, int]]:
    """Returns the credentials in a text, each with the number of characters that already give a part of it away."""
    tokens = [(found[0], LEAST_TOKEN) for found in VALUES.finditer(text)]
    urls = [(found[0], found.start(1) - found.start() + LEAST_PASSWORD) for found in IN_URL.finditer(text)
            if not is_placeholder(found[1])]  # fmt: skip
    return [*tokens, *urls]


def values_in(text: str) -> list[str]:
    """Returns the tokens in a text, and the passwords in its URLs if they are too long to be part of other words."""
    passwords = [found[1] for found in IN_URL.finditer(text) if not is_placeholder(found[1])]
    return [*VALUES.findall(text), *(one for one in passwords if len(one) >= LEAST_TOKEN)]


def redacted(text: str) -> str:
    """Returns the text with "…" in place of tokens, private keys and passwords in URLs."""
    text = VALUES.sub("…", text)
    return IN_URL.sub(lambda found: found[0] if is_placeholder(found[1]) else "…@", text)


def credential_in_script(script: str) -> str:
    """Returns what in a script contains a credential: the name of the variable or option, or "a value". Returns "" if
    nothing does."""
    for found in ASSIGNED.finditer(script):
        name, value = found[1].replace("-", "_"), found[2].strip("'\"")
        if is_credential_name(name) and not is_placeholder(value) and "$" not in value and "`" not in value:
            return found[1]
    if any(not is_placeholder(found[1] or found[2]) for found in LOGIN.finditer(script)):
        return "a login"
    return "a value" if has_credential(script) else ""


def secret_name(variable: str) -> str:
    """Returns the name of the secret that is proposed for a variable: hf-token for HF_TOKEN."""
    return re.sub(r"[^a-z0-9]+", "-", variable.lower()).strip("-")[:63].strip("-") or "secret"
