"""Decides which addresses Fairlot may call on behalf of users.

Only public addresses may be called, unless a setting allows private networks.
"""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import SplitResult, urlsplit

# Metadata services give the machine's credentials to any client, so they are refused even if private networks are
# allowed. AWS, Azure, GCP, OpenStack and others use 169.254.169.254, which is link-local; these are the other
# addresses.
METADATA = {
    IPv4Address("168.63.129.16"),  # Azure; looks public
    IPv4Address("100.100.100.200"),  # Alibaba
    IPv4Address("192.0.0.192"),  # Oracle
    IPv6Address("fd20:ce::254"),  # GCP
    IPv6Address("fd00:42::42"),  # Scaleway
}
# Special-purpose networks (IANA registries) that some versions of Python's ipaddress module do not know.
SPECIAL: list[IPv4Network | IPv6Network] = [
    *map(IPv4Network, ("0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15")),
    *map(IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20")),
]
GLOBAL_UNICAST = IPv6Network("2000::/3")  # everything that IANA has allocated
NAT64 = IPv6Network("64:ff9b::/96")
LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")
METADATA_NETWORK = IPv6Network("fd00:ec2::/32")  # AWS's metadata services for instances and for pods
ISATAP = {
    0x00005EFE,
    0x02005EFE,
}  # upper half of an interface identifier; its lower half is an IPv4 address

ACCEPTED = "Accepted: an address such as https://hooks.example.org/fairlot."
LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.IGNORECASE)
NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*", re.IGNORECASE)
LOCAL_ENDINGS = {
    "localhost",
    "local",
    "internal",
    "intranet",
    "lan",
    "home",
    "corp",
    "localdomain",
    "svc",
    "arpa",
}


class WrongAddress(ValueError):
    """Raised for an address that Fairlot may not call. `str(error)` says what is wrong and which addresses are
    accepted."""


def read_url(url: str, *, to_private: bool) -> SplitResult:
    """Parses a URL and returns its parts. Raises WrongAddress if Fairlot may not call it. Makes no DNS look-up.

    `to_private`: if false, the URL must use https, and its host must not be a private name or address. If true, http
    and private hosts are also accepted.

    Rejects everything that two programs might parse differently: spaces, backslashes, user names, and IPv4 addresses
    that are not in the form a.b.c.d.
    """
    if not url.isascii() or not url.isprintable() or any(char in url for char in ' \\"<>^`{|}'):
        raise WrongAddress(
            "An address must not contain spaces, backslashes, quotation marks or non-ASCII characters. Write a"
            " host name with non-ASCII letters in Punycode (xn--…). Outside the host name, write such characters"
            f" as %XX. {ACCEPTED}"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise WrongAddress(f"This is not a valid address. {ACCEPTED}") from None
    schemes = {"https", "http"} if to_private else {"https"}
    if parts.scheme not in schemes or not parts.hostname:
        raise WrongAddress(f"An address must begin with https:// and a host name. {ACCEPTED}")
    if port == 0 or parts.netloc.endswith(":"):
        raise WrongAddress(f"The port must be a number from 1 to 65535. {ACCEPTED}")
    if "@" in parts.netloc:
        raise WrongAddress(f"An address must not contain a user name or password. {ACCEPTED}")
    _check_host(parts.hostname, bracketed=parts.netloc.startswith("["), to_private=to_private)
    return parts


def why_not_callable(address: str, *, to_private: bool) -> str:
    """Returns the reason why Fairlot may not call an IP address; an empty string if it may.

    `to_private`: whether addresses in private networks are allowed.
    """
    ip = ip_address(address.partition("%")[0])
    for one in (ip, *within(ip)):
        if one in METADATA or one in METADATA_NETWORK or one.is_link_local:
            return "is a link-local or cloud metadata address, which Fairlot never calls"
        if one.is_multicast or one.is_unspecified:
            return "is a multicast or unspecified address, which Fairlot never calls"
        if not (to_private or _is_public(one)):
            return "is in a private network"
    return ""


def within(ip: IPv4Address | IPv6Address) -> list[IPv4Address]:
    """Returns the IPv4 addresses that calls to an IPv6 address may reach, through translation (NAT64) or a tunnel.

    Returns an empty list for an IPv4 address.
    """
    if isinstance(ip, IPv4Address):
        return []
    last, found = int(ip) & 0xFFFF_FFFF, [ip.sixtofour, *(ip.teredo or ())]
    upper = int(ip) >> 32
    # IPv4-mapped (::ffff:a.b.c.d), IPv4-translated (::ffff:0:a.b.c.d), IPv4-compatible (::a.b.c.d), NAT64 and ISATAP.
    if upper in {0xFFFF, 0xFFFF_0000, 0} or ip in NAT64 or upper & 0xFFFF_FFFF in ISATAP:
        found.append(IPv4Address(last))
    if ip in LOCAL_NAT64:  # only the local network knows the length of the prefix
        maybe = (_behind(ip, prefix) for prefix in (48, 56, 64, 96))
        found += [one for one in maybe if not (one.is_unspecified or one.is_multicast)]
    return [one for one in found if one is not None]


def _behind(ip: IPv6Address, prefix: int) -> IPv4Address:
    """Returns the IPv4 address after a NAT64 prefix of `prefix` bits in an IPv6 address (RFC 6052, section 2.2)."""
    content = ip.packed
    if prefix < 96:  # octet 8 is reserved and not part of the IPv4 address
        content = content[:8] + content[9:]
    return IPv4Address(content[prefix // 8 : prefix // 8 + 4])


def _is_public(ip: IPv4Address | IPv6Address) -> bool:
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped or ip in NAT64:
            return True  # within() yields the embedded IPv4 address, which is checked, too
        if ip not in GLOBAL_UNICAST or ip.is_site_local:
            return False
    special = any(ip in network for network in SPECIAL)  # networks of the other IP version never contain it
    return ip.is_global and not (ip.is_private or ip.is_reserved or ip.is_loopback or special)


def _check_host(host: str, *, bracketed: bool, to_private: bool) -> None:
    if bracketed:
        _check_literal(_ipv6(host), to_private)
        return
    labels = host.split(".")
    if NUMERIC.fullmatch(
        labels[-1] or "x"
    ):  # browsers read a host that ends with a number as an IPv4 address
        _check_literal(_ipv4(host), to_private)
        return
    if len(host) > 253 or not all(LABEL.fullmatch(label) for label in labels):
        raise WrongAddress(
            f"{host} is not a valid host name. Its parts must consist of letters, digits and hyphens,"
            f" with one dot between two parts. {ACCEPTED}"
        )
    if not to_private and (len(labels) == 1 or labels[-1].lower() in LOCAL_ENDINGS):
        raise WrongAddress(f"{host} is in a private network. Fairlot calls only public hosts. {ACCEPTED}")


def _check_literal(ip: IPv4Address | IPv6Address, to_private: bool) -> None:
    if why := why_not_callable(str(ip), to_private=to_private):
        raise WrongAddress(f"{ip} {why}. Fairlot calls only public hosts. {ACCEPTED}")


def _ipv4(host: str) -> IPv4Address:
    try:
        return IPv4Address(host)
    except AddressValueError:
        raise WrongAddress(
            f"{host} is not a valid IPv4 address. Write four decimal numbers without leading zeros. {ACCEPTED}"
        ) from None


def _ipv6(host: str) -> IPv6Address:
    try:
        if "%" in host:
            raise AddressValueError
        return IPv6Address(host)
    except AddressValueError:
        raise WrongAddress(
            f"{host} is not a valid IPv6 address. Write the address without a zone (the part from % on). {ACCEPTED}"
        ) from None
