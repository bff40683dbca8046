"""Tests that Fairlot's calls on behalf of users never reach private addresses, in whatever form an address is
written."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from accounting import actions
from accounting.core.errors import Refused
from accounting.models import Budget
from accounting.notifications.addresses import why_not_callable
from accounting.notifications.safe_http import NotReachable, check_url
from tests.make import Cast

ROOT = Path(__file__).parents[3]
REFUSED = (
    # private and special-purpose addresses
    "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "169.254.170.2", "100.64.0.1",
    "100.100.100.200", "168.63.129.16", "192.0.0.192", "192.0.0.8", "192.0.2.1", "198.18.0.1", "198.51.100.1",
    "203.0.113.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "0.0.0.0", "0.1.2.3", "192.88.99.1",  # noqa: S104
    "[::]", "[::1]", "[fe80::1]", "[fec0::1]", "[fc00::1]", "[fd00:ec2::254]", "[ff02::1]", "[2001:db8::1]",
    "[3fff::1]", "[100::1]", "[5f00::1]", "[2001:2::1]", "[2001:20::1]", "[4000::1]",
    # IPv4 inside IPv6
    "[::127.0.0.1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::ffff:0:7f00:1]", "[::ffff:0:8.8.8.8]", "[::8.8.8.8]",
    "[64:ff9b::7f00:1]", "[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::7f00:1]", "[64:ff9b:1::808:808]", "[2002:7f00:1::1]",
    "[2002:a9fe:a9fe::1]", "[2001:0:7f00:1::1]", "[2606:4700::5efe:7f00:1]", "[2606:4700::200:5efe:a00:1]",
    # IPv4 in forms that only some programs accept
    "127.1", "127.0.1", "0x7f.0.0.1", "0x7f000001", "2130706433", "017700000001", "0177.0.0.1", "127.0.0.01",
    "1.2.3.4.5", "256.1.1.1", "8.8.8.08", "0x8.8.8.8", "8.8.8.8.", "127.0.0.1.", "x.0x7f",
    # host names
    "localhost", "LOCALHOST", "a.localhost", "intranet", "db.internal", "metadata.google.internal", "printer.local",
    "example.org.", ".example.org", "a..example.org", "-a.example.org", "a-.example.org", "ex%61mple.org",
    "127.0.0.1%2f@example.org", "１２７.0.0.1", "exa\u00admple.org", "éxample.org", "ⓔxample.org", "例え.jp",
    # URLs that programs parse differently
    "user@example.org", "user:word@example.org", "@example.org", "a@b@example.org", "example.org:0", "example.org:",
    "example.org:65536", "example.org:http", "example.org:８０", "[::1%25eth0]", "[fe80::1%eth0]", "[v1.x]", "[::1", "",
    "a b", "exam ple.org", "example.org\\@127.0.0.1", "example.org\t", "example.org\n", "\u3000example.org", "a\x00b",
    "exa<mple.org", 'example.org"',
)  # fmt: skip
ACCEPTED = (
    "https://example.org", "https://hooks.example.org:8443/a/b?c=d&e=%20#f", "https://8.8.8.8/", "https://EXAMPLE.org/x",
    "https://[2606:4700::1111]/", "https://[::ffff:8.8.8.8]/", "https://[64:ff9b::808:808]/", "https://a_b.example.org/",
    "https://xn--r8jz45g.jp/", "HTTPS://example.org/",
)  # fmt: skip


def test_each_form_of_an_address_that_is_not_public_is_refused_in_words() -> None:
    assert [host for host in REFUSED if not _refused(f"https://{host}/hook")] == []


def _refused(url: str) -> bool:
    try:
        check_url(url, to_private=False)
    except NotReachable as error:
        return "Accepted: an address such as https://" in str(error)
    return False


def test_other_schemes_are_refused() -> None:
    for url in ("http://example.org/", "ftp://example.org/", "file:///etc/passwd", "//example.org/", "example.org",
                "https:/example.org", "https:example.org", "https:///example.org", " https://example.org/",
                "javascript:alert(1)", "gopher://example.org:70/_x"):  # fmt: skip
        with pytest.raises(NotReachable):
            check_url(url, to_private=False)


@pytest.mark.parametrize("url", ACCEPTED)
def test_public_addresses_are_accepted(url: str) -> None:
    assert check_url(url, to_private=False).hostname


def test_where_private_networks_may_be_called_metadata_may_not() -> None:
    for host in (
        "localhost:8000",
        "10.0.0.1",
        "[fd00::1]",
        "[64:ff9b:1::a00:1]",
        "[fd00:ec3::254]",
        "prometheus",
        "[::1]:9090",
    ):
        assert check_url(f"http://{host}/", to_private=True)
    for address in (
        "169.254.169.254",
        "168.63.129.16",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd00:ec2:ffff:ffff:ffff:ffff:ffff:ffff",
        # 169.254.169.254 behind local NAT64 prefixes of 48, 56, 64 and 96 bits (RFC 6052)
        "64:ff9b:1:a9fe:a9:fe00::",
        "64:ff9b:1:aa9:fe:a9fe::",
        "64:ff9b:1:abcd:a9:fea9:fe00:0",
        "64:ff9b:1:abcd::a9fe:a9fe",
        "::ffff:169.254.169.254",
        "fe80::1%eth0",
    ):
        assert why_not_callable(address, to_private=True)


def test_a_budget_keeps_no_webhook_that_will_not_be_called(cast: Cast) -> None:
    for url in (
        "https://127.0.0.1/",
        "https://a b/",
        "https://192.0.0.192/",
        "https://[fec0::1]/",
        "https://0x7f.1/",
    ):
        with pytest.raises(Refused, match="Accepted: an address such as") as refused:
            actions.set_budget(actor=cast.ada, tenant=cast.astro, amount=5, webhook_url=url)
        assert refused.value.field == "webhook_url"
    assert not Budget.objects.exists()


def test_a_name_server_that_changes_its_answer_leads_nowhere_private() -> None:
    """Proves that a name server cannot lead a call to a private address by changing its answer.

    The test makes real DNS look-ups and connections in a separate network namespace.
    """
    unshare = [shutil.which("unshare") or "unshare", "--mount", "--net", "--map-root-user", "--"]
    try:
        subprocess.run([*unshare, "true"], check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("this machine lets nobody make a network namespace (unshare --net --map-root-user)")
    program = [*unshare, sys.executable, "-m", "tests.accounting.name_server"]
    ran = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    flips, again = told.pop("flips.example.org"), told.pop("flips again")
    assert flips["connected"] == ["93.184.216.34:443"]
    assert told.pop("look-ups of flips") == 2  # one per call: none between check and connection
    assert "private network (127.0.0.1)" in again["said"]
    redirects = told.pop("redirects")
    assert redirects["connected"] == ["93.184.216.34:80"]
    assert "302, a redirect, which Fairlot does not follow" in redirects["said"]
    for label, one in ({"flips again": again} | told).items():
        assert one["connected"] == [], label
        assert any(word in one["said"] for word in ("private network", "never calls")), (label, one)
