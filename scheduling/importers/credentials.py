"""Recognises credentials in foreign texts. They become references to secrets; no result and no report contains them."""

from __future__ import annotations

import re
from collections.abc import Iterator

CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
NAMES = re.compile(
    r"(?:(?:.*_)?(?:TOKEN|SECRETS?|CREDENTIALS?|AUTH_?KEY|SSH_?KEY|LICENSE_?KEY|ACCOUNT_?KEY|ENCRYPTION_?KEY|SIGNING_?KEY|"
    r"CONNECTION_?STRING|WEBHOOK_?URL|DOCKER_AUTH_CONFIG|DOCKER_?CONFIG_?JSON)|"
    r".*(?:PASSWORD|PASSWD|PASSPHRASE|API_?KEY|SECRET_?KEY|ACCESS_?KEY(?:_ID)?|PRIVATE_?KEY|ACCESS_?TOKEN|AUTH_?TOKEN)|"
    r"(?:GH|GITHUB|GITLAB|HF|WANDB|NPM|SLACK|CI)TOKEN)(?:_JSON|_B(?:ASE)?64|_VALUE)?",
    re.IGNORECASE,
)  # fmt: skip
IN_CAPITALS = re.compile(
    r"(?:[A-Z0-9_]*_)?(?:KEY|PASS)|(?:[A-Z0-9_]*_)?(?:DB|MY|MYSQL|PG|USER|ROOT|ADMIN|SMTP|REDIS)PASS"
)
# Names that often have other values, too: what they hold decides.
DOUBTFUL = re.compile(
    r"(?:.*_)?(?:PAT|NETRC|COOKIES?)|.*PWD|(?P<rarely>(?:.*_)?(?:AUTH|AUTHORIZATION|AUTH_HEADER))",
    re.IGNORECASE,
)
OF_PASSWORDS = re.compile(r".*(?:PASSWORD|PASSWD|PASSPHRASE|PWD|PASS)(?:_VALUE)?", re.IGNORECASE)
# Names that look like these and are none.
HARMLESS = re.compile(
    r"(?:.*_)?(?:BOS|EOS|PAD|UNK|CLS|SEP|MASK|STOP|START|IMAGE|VIDEO|AUDIO|SPECIAL|SORT|PRIMARY|FOREIGN|PARTITION|PUBLIC"
    r"|CACHE|GROUP|JOIN|INDEX|LABEL|TEXT|INPUT|OUTPUT|DATA|MAX|MIN|NUM|INITIALIZER|PLACEHOLDER|TRIGGER|CONCEPT|INSTANCE"
    r"|CLASS|PROMPT|BEGIN|END|FIRST|LAST|NEXT|DECODER|ENCODER|PREFIX|MIDDLE|SUFFIX|FILL|SEPARATOR|DELIMITER|WORD|PER)_?"
    r"(?:TOKENS?|KEY)|(?:OLD|INIT|BASE|SRC|ROOT|ORIG|ORIGINAL|START|CURRENT|CUR|HOME|WORK|SAVED?|LAST|PREV)?_?PWD",
    re.IGNORECASE,
)
VALUES = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY|\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|"
    r"sk-[A-Za-z0-9_-]{20,}|[sr]k_(?:live|test)_[A-Za-z0-9]{16,}|gsk_[A-Za-z0-9]{20,}|r8_[A-Za-z0-9]{30,}|"
    r"glpat-[\w-]{16,}|xox[abeprs]-[\w-]{10,}|xapp-[\w-]{20,}|AKIA[A-Z0-9]{16}|ASIA[A-Z0-9]{16}|AIza[\w-]{30,}|"
    r"ya29\.[\w-]{20,}|nvapi-[\w-]{20,}|dckr_pat_[\w-]{16,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{30,}|dapi[0-9a-f]{32}|"
    r"hvs\.[\w-]{20,}|SG\.[\w-]{16,}\.[\w-]{16,}|eyJ[\w-]{15,}\.eyJ[\w-]{10,}\.[\w-]+)",
    re.ASCII,
)
IN_URL = re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@'\"$<{]*:([^\s/@'\"]+)@", re.IGNORECASE | re.ASCII)
# URLs that are credentials themselves: a key in place of a user, as Sentry has it, and addresses that take messages.
KEY_IN_URL = re.compile(
    r"\bhttps?://(?=[A-Za-z_-]*\d)([A-Za-z0-9_-]{20,200})@|"
    r"\bhttps://hooks\.slack\.com/(?:services|workflows|triggers)/([\w/-]{8,200})|"
    r"\bhttps://(?:\w{1,20}\.)?discord(?:app)?\.com/api/webhooks/(\d{5,30}/[\w-]{8,200})|"
    r"\bhttps://[\w-]{1,60}\.webhook\.office\.com/webhookb2/([\w@/-]{16,300})|"
    r"\bhttps://api\.telegram\.org/bot(\d{5,20}:[\w-]{20,100})",
    re.ASCII | re.IGNORECASE,
)
LEAST_TOKEN, LEAST_PASSWORD = 8, 1
SCHEME = re.compile(r"(?:Basic|Bearer|Token|Digest|ApiKey)\s+(\S+)", re.IGNORECASE | re.ASCII)
IN_JSON = re.compile(r"\\?\"([A-Za-z_][\w-]{0,60})\\?\"\s{0,9}:\s{0,9}\\?\"([^\"\\\n]{1,400})", re.ASCII)
OF_DOCKER = {"auth", "identitytoken"}
NETRC = re.compile(
    r"\bmachine\s{1,9}\S{1,200}\s{1,9}login\s{1,9}\S{1,200}\s{1,9}password\s{1,9}(\S{1,200})", re.ASCII
)
PLACEHOLDER = re.compile(
    r"|<.*|\[.*\]|\{.*\}|\$.*|%.*%|x{3,}|\*{2,}|\.{3,}|…|null|none|true|false|empty|dummy|fake|unused|change[_-]?me.*|todo"
    r"|\d{1,6}|(?:your|my|insert|enter|replace|put|add|no|not)[-_ ].*|.*[-_ ](?:here|goes[-_ ]here|required|needed)",
    re.IGNORECASE | re.ASCII,
)  # fmt: skip
SWITCH = re.compile(r"|true|false|yes|no|on|off|none|null|\d{1,4}", re.IGNORECASE | re.ASCII)
PATH = re.compile(r"(?:~|\.{1,2}|[A-Za-z]:)?[/\\][\w./\\+-]*", re.ASCII)
RANDOM = re.compile(
    r"(?=[^\d]*\d)(?=[^A-Za-z]*[A-Za-z])[\w+/=.~:-]{8,}|(?=.*[a-z][A-Z])[A-Za-z0-9+/=]{8,}", re.ASCII
)


def is_credential_name(name: str) -> bool:
    """Returns whether a variable of this name usually holds a credential, such as HF_TOKEN."""
    doubtful = _doubtful(name)
    return _is_strong(name) or bool(doubtful and not doubtful["rarely"])


def _is_strong(name: str) -> bool:
    plain = CAMEL.sub("_", name)
    return bool(NAMES.fullmatch(plain) or IN_CAPITALS.fullmatch(name)) and not HARMLESS.fullmatch(plain)


def _doubtful(name: str) -> re.Match[str] | None:
    plain = CAMEL.sub("_", name)
    return None if HARMLESS.fullmatch(plain) else DOUBTFUL.fullmatch(plain)


def is_confidential(name: str, value: str) -> bool:
    """Returns whether the value of a variable is a credential, by its name or by what it looks like."""
    if has_credential(value) or has_file_of_credentials(value):
        return True
    if _is_strong(name):
        return not value.isdigit() or bool(OF_PASSWORDS.fullmatch(name))
    return bool(_doubtful(name)) and _is_one_of(name.upper(), value.strip())


def _is_one_of(name: str, value: str) -> bool:
    """Returns whether a doubtful variable has a value that only a credential has."""
    if SWITCH.fullmatch(value) or PATH.fullmatch(value) or not is_literal(value):
        return False
    if name.endswith(("PWD", "NETRC")):
        return True
    if name.endswith(("COOKIE", "COOKIES")):
        return "=" in value or looks_random(value)
    if name.endswith("PAT"):
        return looks_random(value) or len(value) >= 40
    scheme = SCHEME.fullmatch(value)
    said = scheme[1] if scheme else value
    pair = re.fullmatch(r"[\w.@-]{1,100}:([^\s/:]{1,200})", said, re.ASCII)
    return looks_random(said) or bool(pair and not is_placeholder(pair[1]))


def has_file_of_credentials(value: str) -> bool:
    """Returns whether a value is a file of a program with credentials in it: JSON, or the lines of a .netrc."""
    if any(is_literal(found[1]) for found in NETRC.finditer(value)):
        return True
    return any(
        is_literal(said)
        and (
            name in OF_DOCKER
            or (_is_strong(name) and (OF_PASSWORDS.fullmatch(name) or len(said) >= LEAST_TOKEN))
        )
        for name, said in IN_JSON.findall(value)
    )


def is_placeholder(value: str) -> bool:
    """Returns whether the text stands for a credential that the user has to fill in, such as <your token>, or refers to
    a variable."""
    return bool(PLACEHOLDER.fullmatch(value.strip().strip("'\"")))


def is_literal(value: str) -> bool:
    """Returns whether the text is a value itself: no placeholder, and no reference to a variable."""
    plain = value.strip().strip("'\"")
    return "$" not in plain and "`" not in plain and (plain.isdigit() or not is_placeholder(plain))


def looks_random(value: str) -> bool:
    """Returns whether the text looks like a key rather than a word."""
    return bool(RANDOM.fullmatch(value.strip("'\"")))


def has_credential(value: str) -> bool:
    """Returns whether the text contains a credential: a known kind of token, a private key, or a URL with a
    password or a key."""
    return bool(VALUES.search(value)) or any(True for _ in _in_urls(value))


def _in_urls(text: str) -> Iterator[re.Match[str]]:
    """Yields the URLs with credentials. The last group that matched is the confidential part."""
    for pattern in (IN_URL, KEY_IN_URL):
        for found in pattern.finditer(text):
            if not is_placeholder(found[found.lastindex or 0]):
                yield found


def found_in(text: str) -> list[tuple[str, int]]:
    """Returns the credentials in a text, each with the number of characters that already give a part of it away."""
    tokens = [(found[0], LEAST_TOKEN) for found in VALUES.finditer(text)]
    urls = [
        (found[0], found.start(found.lastindex or 0) - found.start() + LEAST_PASSWORD)
        for found in _in_urls(text)
    ]
    return [*tokens, *urls]


def values_in(text: str) -> list[str]:
    """Returns the tokens in a text, and the passwords in its URLs if they are too long to be part of other words."""
    passwords = [found[found.lastindex or 0] for found in _in_urls(text)]
    return [*VALUES.findall(text), *(one for one in passwords if len(one) >= LEAST_TOKEN)]


def redacted(text: str) -> str:
    """Returns the text with "…" in place of tokens, private keys and passwords in URLs."""
    text = KEY_IN_URL.sub("…", VALUES.sub("…", text))
    return IN_URL.sub(lambda found: found[0] if is_placeholder(found[1]) else "…@", text)


def secret_name(variable: str) -> str:
    """Returns the name of the secret that is proposed for a variable: hf-token for HF_TOKEN."""
    return re.sub(r"[^a-z0-9]+", "-", variable.lower()).strip("-")[:63].strip("-") or "secret"
