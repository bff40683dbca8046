"""Mail to people: written into the outbox within a change's transaction, sent by beat."""

from __future__ import annotations

import logging
import smtplib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from email.errors import MessageError

from django.conf import settings
from django.core.mail import EmailMessage
from django.db import transaction
from django.db.models.functions import Now

from accounting.clock import now_from_database
from accounting.models import Letter, LetterAttachment, User

logger = logging.getLogger(__name__)

MOST_ATTEMPTS = 12
KEPT = timedelta(days=30)
FIRST_WAIT, LONGEST_WAIT = timedelta(minutes=1), timedelta(hours=6)


@dataclass(frozen=True)
class Attachment:
    """A file to go with a letter; keep it small, as each letter has a copy of its own."""

    name: str
    content_type: str
    content: bytes


def write(
    people: Iterable[User],
    *,
    subject: str,
    text: str | Callable[[User], str],
    attachments: Sequence[Attachment] = (),
) -> None:
    """A letter to each that is active and has an address; none where no mail server is set.

    `text` may be another one for each. Of the subject, which names of teams are part of, all is one line.
    """
    if not settings.EMAIL_HOST:
        return
    readers = {person.email: person for person in people if person.is_active and person.email}
    letters = Letter.objects.bulk_create(
        Letter(
            address=address,
            subject=f"[Fairlot] {' '.join(subject.split())}"[:200],
            text=text if isinstance(text, str) else text(reader),
        )
        for address, reader in readers.items()
    )
    LetterAttachment.objects.bulk_create(
        LetterAttachment(letter=letter, name=one.name, content_type=one.content_type, content=one.content)
        for letter in letters
        for one in attachments
    )


def due_letters() -> list[int]:
    """New ones first: they do not wait for those that the server never takes."""
    due = Letter.objects.filter(sent_at=None, not_before__lte=Now(), attempts__lt=MOST_ATTEMPTS)
    return list(due.order_by("attempts", "not_before", "pk").values_list("pk", flat=True)[:200])


def forget() -> None:
    """Deletes letters that were written longer ago than anybody asks for them."""
    Letter.objects.filter(written_at__lt=Now() - KEPT).delete()


def send(*, letter_id: int) -> bool:
    """Sends it unless another worker does; whether it left now. What cannot be sent is tried again, later and later.

    An attempt is counted and the next one put off before it is made: whoever dies in it, or of it, has been counted.
    If that was after the mail server's yes, it is sent again with the same Message-ID. What no message can be made
    of is given up at once.
    """
    letter = _claim(letter_id)
    if letter is None:
        return False
    try:
        _message(letter).send()
    except (smtplib.SMTPException, OSError) as error:
        logger.warning("letter %s was not sent: %s", letter.pk, error)
        letter.error = str(error)[:300]
    except (ValueError, MessageError) as error:
        logger.warning("letter %s cannot be sent: %s", letter.pk, error)
        letter.error, letter.attempts = str(error)[:300], MOST_ATTEMPTS
    else:
        letter.sent_at, letter.error = now_from_database(), ""
    told = {"attempts": letter.attempts, "error": letter.error, "sent_at": letter.sent_at}
    Letter.objects.filter(pk=letter.pk).update(**told)  # it may have been forgotten meanwhile
    return letter.sent_at is not None


@transaction.atomic(durable=True)
def _claim(letter_id: int) -> Letter | None:
    waiting = Letter.objects.select_for_update(skip_locked=True).filter(sent_at=None)
    letter = waiting.filter(pk=letter_id, attempts__lt=MOST_ATTEMPTS, not_before__lte=Now()).first()
    if letter is None:
        return None
    letter.not_before = now_from_database() + min(FIRST_WAIT * 2**letter.attempts, LONGEST_WAIT)
    letter.attempts += 1
    letter.save(update_fields=["attempts", "not_before"])
    return letter


def _message(letter: Letter) -> EmailMessage:
    identity = f"<{letter.identity}@{settings.FAIRLOT_MAIL_DOMAIN}>"
    message = EmailMessage(letter.subject, letter.text, to=[letter.address], headers={"Message-ID": identity})
    for one in letter.attachments.all():
        message.attach(one.name, bytes(one.content), one.content_type)
    return message
