"""Filters the HTTP headers that pass through the proxy between the browser and the program of a session or service."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from django.conf import settings

Headers = Iterable[tuple[bytes, bytes]]

# Headers that are valid for one connection only (RFC 9110, section 7.6.1, and those that proxies usually treat alike).
HOP_BY_HOP = {
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"trailer", b"transfer-encoding", b"upgrade",
}  # fmt: skip
# Headers with the portal's credentials, or with a client's claims about its address.
NOT_TO_PROGRAMS = {b"authorization", b"cookie", b"expect", b"forwarded", b"x-real-ip"}
OF_WEBSOCKETS = b"sec-websocket-"
# Headers that would affect the browser beyond this session, or redirect the browser.
NOT_TO_BROWSERS = {b"alt-svc", b"clear-site-data", b"public-key-pins", b"strict-transport-security"}
OURS: Sequence[tuple[bytes, bytes]] = (
    # A program may send its own policy too, since a second policy can only restrict further. No other site may frame
    # the program's pages.
    (b"content-security-policy", b"frame-ancestors 'self'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"same-origin"),
)
REPLACED = {b"cross-origin-resource-policy", b"referrer-policy"}
# Limits on all header lines of a request or an answer together, as in most servers and browsers.
MOST_BYTES, MOST_LINES = 64 * 1024, 500
VISIT_COOKIE = "fairlot_visit"
# Cookies in which programs want their token: openvscode-server and `code serve-web`, and code-server, whose hashed
# password it is.
TOKEN_COOKIES = {"vscode-tkn", "code-server-session"}


def cookie_name(*, secure: bool) -> str:
    """Returns the name of the cookie that gives access to the host of a session or service.

    With `secure`, the name has the prefix `__Host-`, so that browsers do not accept this cookie from other hosts.
    """
    return f"__Host-{VISIT_COOKIE}" if secure else VISIT_COOKIE


def are_too_large(headers: Headers) -> bool:
    sizes = [len(name) + len(value) + len(": \r\n") for name, value in headers]
    return sum(sizes) > MOST_BYTES or len(sizes) > MOST_LINES


def values_of(headers: Headers, name: bytes) -> list[bytes]:
    return [value for found, value in headers if found.lower() == name]


def cookie_of(headers: Headers, name: str) -> str:
    """Returns the value of the first cookie with this name, or "" if there is none."""
    for found, value in _cookies(headers):
        if found == name:
            return value
    return ""


def to_program(
    headers: Sequence[tuple[bytes, bytes]], *, token: str, scheme: str, in_cookies: bool = False
) -> list[tuple[str, str]]:
    """Returns the request's headers as the program gets them: without the portal's credentials, with the program's
    token.

    `token` is "" if the program has no token. With `in_cookies`, TOKEN_COOKIES have it, too, whatever the browser sent.
    `scheme` (http or https) becomes the header X-Forwarded-Proto.
    """
    own = {cookie_name(secure=False), cookie_name(secure=True)}
    own |= {settings.SESSION_COOKIE_NAME, settings.CSRF_COOKIE_NAME}
    passed = [
        (name, value)
        for name, value in _end_to_end(headers)
        if name not in NOT_TO_PROGRAMS and not name.startswith((OF_WEBSOCKETS, b"x-forwarded-"))
    ]
    given = dict.fromkeys(sorted(TOKEN_COOKIES), token) if in_cookies else {}
    kept = [(name, value) for name, value in _cookies(headers) if name not in own | given.keys()]
    cookies = "; ".join(f"{name}={value}" for name, value in [*kept, *given.items()])
    texts = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in passed]
    texts += [("cookie", cookies)] if cookies else []
    texts += [("authorization", f"token {token}")] if token else []
    return [*texts, ("x-forwarded-proto", scheme)]


def to_browser(headers: Sequence[tuple[bytes, bytes]], *, base: str) -> list[tuple[bytes, bytes]]:
    """Returns the response's headers as the browser gets them, with the portal's security headers added.

    Cookies of the program get a path at or below `base`, the URL path under which the proxy serves the program.
    """
    passed = []
    for name, value in _end_to_end(headers):
        if name == b"set-cookie":
            if kept := kept_to_path(value.decode("latin-1"), base):
                passed.append((name, kept.encode("latin-1")))
        elif name not in NOT_TO_BROWSERS | REPLACED:
            passed.append((name, value))
    return [*passed, *OURS]


def kept_to_path(cookie: str, base: str) -> str:
    """Returns the program's Set-Cookie header `cookie` without Domain, and with a Path at or below `base`.

    `base` is the URL path under which the proxy serves the program. Returns "" if the cookie has the same name as the
    cookie that gives access to the host.
    """
    pair, *attributes = (part.strip() for part in cookie.split(";"))
    name = pair.partition("=")[0].strip()
    if name.removeprefix("__Host-").removeprefix("__Secure-") == VISIT_COOKIE:
        return ""
    path, rest = base, []
    for attribute in attributes:
        what, _, value = attribute.partition("=")
        if what.strip().lower() == "path":
            path = value.strip() if value.strip().startswith(base) else base
        elif what.strip().lower() != "domain":
            rest.append(attribute)
    return "; ".join([pair, f"Path={path}", *rest])


def is_from_itself(headers: Headers, origin: str) -> bool:
    """Returns whether a page on the session's own host sent the request.

    The Origin header decides, because scripts cannot set this header.
    """
    return values_of(headers, b"origin") == [origin.encode()]


def comes_from_elsewhere(headers: Headers, method: str) -> bool:
    """Returns whether a page on another host sent the request, according to the Fetch Metadata headers.

    Returns False if the user followed a link from another host, because this only opens a page.
    """
    site = b"".join(values_of(headers, b"sec-fetch-site"))
    if site in {b"", b"none", b"same-origin"}:
        return False
    mode, to = (b"".join(values_of(headers, name)) for name in (b"sec-fetch-mode", b"sec-fetch-dest"))
    return not (method == "GET" and mode == b"navigate" and to == b"document")


def _end_to_end(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    lower = [(name.lower(), value) for name, value in headers]
    named = {word.strip().lower() for value in values_of(lower, b"connection") for word in value.split(b",")}
    return [(name, value) for name, value in lower if name not in HOP_BY_HOP | named]


def _cookies(headers: Headers) -> list[tuple[str, str]]:
    found = []
    for line in values_of(headers, b"cookie"):
        for pair in line.decode("latin-1").split(";"):
            name, _, value = pair.strip().partition("=")
            if name:
                found.append((name, value))
    return found
