"""Ledger heads: one signed chain over the seals of all books and of all journals, such as the audit trail.

A book is one cluster's ledger, and a seal is a link of its hash chain. Each seal gets a head. The head contains the
digest of the seal and the digest of the previous head, so it covers everything that was sealed earlier. Anybody who
keeps a head can check later whether the books still contain the same history. The signing key is outside the database
(accounting/ledger/signing.py), so that write access to the database is not enough to make a head.

Sealing stops, and somebody must resume it with a reason, if one of these applies to the last head:

- It is older than a day.
- It is not signed with one of the configured keys.
- It differs from the last published head.
- It names a seal that no longer exists.

So sealing also stops when somebody configures the first signing key, because the last head is unsigned. Resuming makes
a signed head, which also covers the unsigned heads. Until then, the unsigned heads do not count as valid.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from django.conf import settings
from django.db import connection

from accounting.core.errors import Refused
from accounting.ledger import signing
from accounting.ledger.journals import name_of
from accounting.models import AuditEvent, LedgerHead, LedgerSeal, LedgerTransaction
from accounting.notifications import safe_http

logger = logging.getLogger(__name__)

# After a longer time without sealing, somebody must give a reason before sealing continues.
LONGEST_PAUSE = timedelta(days=1)
# If there is nothing to seal, a head is made and published after this time.
IDLE = timedelta(hours=1)
PUBLISH = 600  # seconds
# How many bytes are read from the end of the file of published heads.
TAIL = 2000
# The book number of a head without a seal.
NO_BOOK = 0


class SealingStopped(Refused):
    """Raised when nothing may be added to the ledger's hash chain until somebody resumes the sealing.

    `str(error)` is the reason.
    """


class HeadsFileError(Refused):
    """Raised when FAIRLOT_HEADS_FILE cannot be read or written, or contains no valid head (signed link of the head
    chain).

    `str(error)` is the reason.
    """


@dataclass(frozen=True, slots=True)
class Printed:
    """Represents a ledger head (signed link of the head chain) as text, for statements, files and API calls.

    The format is `head:NUMBER:TIME:DIGEST`, followed by `:SIGNATURE` if the head is signed.
    """

    number: int
    message: str
    signature: str

    @classmethod
    def read(cls, line: str) -> Printed | None:
        """Parses a line such as `head:NUMBER:TIME:DIGEST:SIGNATURE`; returns None if the line does not have this
        format.

        The signature is optional.
        """
        found = _PRINTED.fullmatch(line.strip())
        return cls(int(found[2]), found[1], found[4] or "") if found else None

    @property
    def made(self) -> datetime:
        return datetime.strptime(self.message.split(":")[2], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)

    def is_signed_by(self, key: bytes) -> bool:
        try:
            return signing.is_signed(self.message.encode(), key, bytes.fromhex(self.signature))
        except ValueError:
            return False


_PRINTED = re.compile(r"(head:([0-9]{1,18}):[0-9]{8}T[0-9]{6}Z:[0-9a-f]{64})(:([0-9a-f]{128}))?")


def printed(head: LedgerHead) -> str:
    """Returns a ledger head as one line of text, in the format described at `Printed`."""
    signature = bytes(head.signature).hex()
    return message_of(head) + (f":{signature}" if signature else "")


def message_of(head: LedgerHead) -> str:
    """Returns the text that the signature of a ledger head covers: `head:NUMBER:TIME:DIGEST`."""
    return f"head:{head.number}:{head.at.astimezone(UTC):%Y%m%dT%H%M%SZ}:{bytes(head.digest).hex()}"


def digest_of(head: LedgerHead, before: LedgerHead | None) -> bytes:
    """Returns the digest of a head. It covers the digest and the signature of the previous head, `before`."""
    says = [
        "fairlot ledger head",
        head.number,
        head.at.astimezone(UTC).isoformat(timespec="microseconds"),
        head.book,
        head.seal,
        bytes(head.seal_digest).hex(),
        head.reason,
        bytes(before.digest).hex() if before else "",
        f"{bytes(before.signer).hex()}:{bytes(before.signature).hex()}" if before else "",
    ]
    return hashlib.sha256(json.dumps(says).encode()).digest()


def last_head() -> LedgerHead | None:
    return LedgerHead.objects.order_by("-number").first()


def hold() -> datetime:
    """Locks the chain of heads until the caller's transaction ends. Returns the database's present time."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        cursor.execute("SELECT clock_timestamp()")
        (now,) = cursor.fetchone()
    assert isinstance(now, datetime)  # noqa: S101 - PostgreSQL says so
    return now


def require_end(book: int, last: LedgerSeal | None, now: datetime) -> None:
    """Raises SealingStopped if sealing is stopped, or if seals of the book were deleted or replaced (see `lost_end`).

    `last`: the last stored seal of the book; None if the book has no seal. The caller must hold the lock on heads.
    """
    if why := why_stopped(now) or lost_end(book, last):
        raise SealingStopped(why)


def lost_end(book: int, last: LedgerSeal | None) -> str:
    """Returns a message if the newest head of the book does not name the seal `last`; an empty string if it does.

    `last`: the last stored seal of the book. None means that the book has no seal; it must then have no head either.
    """
    named = LedgerHead.objects.filter(book=book).order_by("-number").first()
    is_last = (last.number, bytes(last.digest)) if last else None
    if is_last == ((named.seal, bytes(named.seal_digest)) if named else None):
        return ""
    if named is None:
        return f"{name_of(book)}: no ledger head refers to a seal of this hash chain."
    return (
        f"{name_of(book)}: ledger head {named.number} says that seal {named.seal} is the last seal, but the last seal"
        " is a different one."
    )


def why_stopped(now: datetime) -> str:
    """Returns the reason why nothing may be added to the hash chains now; an empty string if sealing may continue."""
    head = last_head()
    if head is None:
        if LedgerSeal.objects.exists():
            return "The ledger has seals, but no heads."
        old = LedgerTransaction.objects.filter(recorded_at__lt=now - LONGEST_PAUSE)
        old_events = AuditEvent.objects.filter(at__lt=now - LONGEST_PAUSE)
        # Resuming makes a head. So this is reached only if there never was a head or all heads were deleted.
        if old.exists() or old_events.exists():
            return "The ledger has rows that are older than a day, but neither seals nor heads."
        return not_published()
    if now - head.at > LONGEST_PAUSE:
        return f"Nothing has been sealed since {head.at:%Y-%m-%d %H:%M} UTC."
    return _untrusted(head, signing.public_keys()) or not_published()


def _untrusted(head: LedgerHead, keys: Collection[bytes]) -> str:
    signer, signature = bytes(head.signer), bytes(head.signature)
    if signer and not signing.is_signed(message_of(head).encode(), signer, signature):
        return f"The signature of head {head.number} is not valid for the public key in this head."
    if signer and signer not in keys:
        return f"Head {head.number} is signed with a key that is not among FAIRLOT_SIGNING_KEYS."
    if not signer and any(keys):
        return f"Head {head.number} is not signed, although FAIRLOT_SIGNING_KEYS has a key."
    if not signer and LedgerHead.objects.filter(number=head.number - 1).exclude(signer=b"").exists():
        return f"Head {head.number} is not signed, although the previous head is signed."
    return ""


def append(book: int, seal: int, seal_digest: bytes, now: datetime, *, reason: str = "") -> LedgerHead:
    """Stores the next head and returns it. The head is signed if a signing key is configured.

    `book`, `seal`, `seal_digest`: the book, number and digest of the seal that the head covers. `reason`: why somebody
    resumed the sealing; empty for all other heads. The caller must hold the lock on heads.
    """
    before = last_head()
    head = LedgerHead(
        number=before.number + 1 if before else 1,
        at=max(now, before.at) if before else now,
        book=book,
        seal=seal,
        seal_digest=seal_digest,
        reason=reason,
    )
    head.digest = digest_of(head, before)
    head.signer, head.signature = signing.sign(message_of(head).encode())
    head.save(force_insert=True)
    return head


def resumed_at() -> datetime | None:
    """Returns the time at which somebody last resumed the sealing; None if nobody did.

    Resuming the sealing makes a head. If this head lacks a required signature, or its signature is not trusted, the
    resumption is ignored.
    """
    keys = signing.public_keys()
    resumptions = LedgerHead.objects.exclude(reason="").order_by("-number")
    return next((head.at for head in resumptions[:100] if not _untrusted(head, keys)), None)


def not_published() -> str:
    """Returns a message if the last published head is not among the stored heads; an empty string if it is.

    Also returns a message if the file of published heads cannot be read.
    """
    try:
        last = last_published()
    except HeadsFileError as error:
        return str(error)
    return differs(last) if last else ""


def last_published() -> Printed | None:
    """Returns the last acceptable head in the file FAIRLOT_HEADS_FILE.

    A head is acceptable if its line is complete. If there are trusted keys, one of them must also have signed the head.

    Returns None if the setting is empty, or if the file is missing or empty. Raises HeadsFileError if the file cannot
    be read, or if its last 2000 bytes contain no acceptable head.

    To compare the head with a snapshot of the database, call this function before taking the snapshot. Otherwise the
    head may be newer than the snapshot.
    """
    path = settings.FAIRLOT_HEADS_FILE
    if not path:
        return None
    try:
        with Path(path).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HeadsFileError(f"{path} cannot be read: {error.strerror}.") from error
    if not text:
        return None
    keys = signing.trusted_keys()
    # The last line has no line end if its writer was interrupted; it is ignored.
    for head in filter(None, map(Printed.read, reversed(text.split("\n")[:-1]))):
        if not keys or any(map(head.is_signed_by, keys)):
            return head
    if keys:
        raise HeadsFileError(f"{path} contains no complete head that is signed with a key of this ledger.")
    raise HeadsFileError(f"{path} contains no complete head.")


def differs(noted: Printed) -> str:
    """Returns why the stored chain of heads does not contain the head `noted`; an empty string if it does."""
    head = LedgerHead.objects.filter(number=noted.number).first()
    if head is None:
        last = last_head()
        now = f"The last head is now head {last.number}." if last else "The ledger has no heads now."
        return f"Head {noted.number}, which you noted or Fairlot published earlier, no longer exists. {now}"
    if message_of(head) != noted.message:
        return (
            f"Head {noted.number} differs from the head with this number that you noted or Fairlot published"
            " earlier: the hash chain was rebuilt."
        )
    return ""


def publish(head: LedgerHead) -> None:
    """Appends a committed ledger head to FAIRLOT_HEADS_FILE and posts it to FAIRLOT_HEADS_URL.

    Raises HeadsFileError if the file cannot be written. If the HTTP call fails, only logs a warning.
    """
    line = f"{printed(head)}\n"
    if path := settings.FAIRLOT_HEADS_FILE:
        try:
            _append_line(Path(path), line.encode())
        except OSError as error:
            raise HeadsFileError(f"{path} cannot be written: {error.strerror}.") from error
    if settings.FAIRLOT_HEADS_URL:
        try:
            safe_http.post(settings.FAIRLOT_HEADS_URL, line.encode(), {"Content-Type": "text/plain"})
        except safe_http.NotReachable as error:  # not retried, because the next head covers this head, too
            logger.warning("head %s was not posted: %s", head.number, error)


def _append_line(path: Path, line: bytes) -> None:
    """Appends a line and syncs the file to disk. If the file's last line is incomplete, starts a new line first.

    A last line is incomplete if its writer was interrupted.
    """
    with path.open("a+b") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                line = b"\n" + line
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def is_due(head: LedgerHead, before: LedgerHead | None, now: datetime) -> bool:
    """Returns whether a ledger head should be published now.

    Normally, one head is published in each interval of ten minutes. A head that is not published yet is due in these
    cases:

    - No head was published yet.
    - The last published head was made in another interval.
    - The last published head is not signed with the newest key.

    `before`: the newest head before this run of the sealing task. If no file of heads (FAIRLOT_HEADS_FILE) is
    configured, it counts as the last published head.
    """
    noted = Printed.read(printed(before)) if before else None
    last = last_published() if settings.FAIRLOT_HEADS_FILE else noted
    if last is None:
        return True
    if last.number == head.number:
        return False
    keys = signing.public_keys()[:1]
    # Unequal, not smaller: if the clock was set back, each head is due until the clock reaches its former time.
    return last.made.timestamp() // PUBLISH != now.timestamp() // PUBLISH or not all(
        map(last.is_signed_by, keys)
    )


def first_broken(trusted: Collection[bytes]) -> str | None:
    """Returns a description of the first fault in the chain of heads; None if the chain is consistent.

    A fault is an inconsistent head, a head whose seal no longer exists, or a seal without a head.

    `trusted`: the accepted public keys. If this is empty, each signature is only checked against the key that the head
    itself names.
    """
    before: LedgerHead | None = None
    named: dict[int, LedgerHead] = {}
    for head in LedgerHead.objects.order_by("number").iterator(chunk_size=1000):
        if what := _broken(head, before):
            return f"head {head.number}: {what}"
        if head.book != NO_BOOK:
            last = named.get(head.book)
            if last is not None and head.seal != last.seal + 1:
                return (
                    f"head {head.number}: this head refers to seal {head.seal} of {name_of(head.book)}, but must"
                    f" refer to seal {last.seal + 1}, because the previous head of this book refers to seal {last.seal}"
                )
            named[head.book] = head
        before = head
    if before is not None and (what := _untrusted(before, trusted or [bytes(before.signer)])):
        return what
    return _gone(named) or _unnamed(named, before.number if before else 0)


def _broken(head: LedgerHead, before: LedgerHead | None) -> str:
    follows = before.number + 1 if before else 1
    if head.number != follows:
        return f"an earlier head, number {follows}, is missing"
    if digest_of(head, before) != bytes(head.digest):
        return f"this head or head {before.number} was changed" if before else "this head was changed"
    if before is None:
        return ""
    # A change of any other signature changes the digest of the next head, so one check per key is enough.
    if bytes(before.signer) != bytes(head.signer) and (
        not head.signer
        or not signing.is_signed(message_of(head).encode(), bytes(head.signer), bytes(head.signature))
    ):
        return (
            "this head has no valid signature, although earlier heads are signed"
            if before.signer
            else "the signature of this head is wrong"
        )
    if head.at - before.at > LONGEST_PAUSE and not head.reason:
        return (
            f"nothing was sealed from {before.at:%Y-%m-%d %H:%M} UTC until this head was made at"
            f" {head.at:%Y-%m-%d %H:%M} UTC, and no reason for this pause is recorded"
        )
    return ""


def _gone(named: Mapping[int, LedgerHead]) -> str | None:
    for book, head in sorted(named.items()):
        seal = LedgerSeal.objects.filter(book=book, number=head.seal).values_list("digest", flat=True).first()
        if seal is None:
            return f"{name_of(book)}, seal {head.seal}: this seal is missing, although head {head.number} refers to it"
        if bytes(seal) != bytes(head.seal_digest):
            return f"{name_of(book)}, seal {head.seal}: this seal and head {head.number} contain different digests"
    return None


def _unnamed(named: Mapping[int, LedgerHead], heads: int) -> str | None:
    last = LedgerSeal.objects.order_by("book", "-number").distinct("book").values_list("book", "number")
    for book, number in last:
        if book not in named or named[book].seal != number:
            return f"{name_of(book)}, seal {number}: none of the {heads} ledger heads refers to this seal"
    return None


def resumed() -> list[LedgerHead]:
    """Returns the ledger heads that were made when somebody resumed the sealing of the hash chains, oldest first."""
    return list(LedgerHead.objects.exclude(reason="").order_by("number"))


_LOCK = int.from_bytes(hashlib.sha256(b"fairlot ledger heads").digest()[:8], "big", signed=True)
