"""E-mail to users. A mail is stored in the outbox in the transaction of a change, and a periodic task sends it."""

from __future__ import annotations

import logging
import smtplib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from email.errors import MessageError

from django.conf import settings
from django.core.mail import EmailMessage

from accounting.core.clock import now_from_database
from accounting.models import Invitation, Mail, MailAttachment, User
from accounting.notifications.outbox import MOST_ATTEMPTS, claim

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Attachment:
    """Represents a file attached to a mail. Keep it small, because each recipient's mail stores its own copy."""

    name: str
    content_type: str
    content: bytes


def why_mail_is_off() -> str:
    """Returns the reason why Fairlot sends no mail; an empty string if a mail server is configured."""
    return (
        "" if settings.EMAIL_HOST else "This portal cannot send mail, because no mail server is configured."
    )


def write(
    people: Iterable[User],
    *,
    subject: str,
    text: str | Callable[[User], str],
    attachments: Sequence[Attachment] = (),
) -> None:
    """Stores a mail to each active user in `people` who has a mail address.

    Does nothing if no mail server is configured. `text`: a string, or a function that returns the text for a user. Line
    breaks in the subject become spaces, because the name of a team in it may contain line breaks.
    """
    if why_mail_is_off():
        return
    readers = {person.email: person for person in people if person.is_active and person.email}
    mails = Mail.objects.bulk_create(
        Mail(
            address=address,
            subject=_subject(subject),
            text=text if isinstance(text, str) else text(reader),
        )
        for address, reader in readers.items()
    )
    MailAttachment.objects.bulk_create(
        MailAttachment(mail=mail, name=one.name, content_type=one.content_type, content=one.content)
        for mail in mails
        for one in attachments
    )


def write_link(invitation: Invitation, *, subject: str, text: str) -> None:
    """Stores a mail to the address of an invitation. The mail that leaves ends with the link of the invitation."""
    Mail.objects.create(address=invitation.email, subject=_subject(subject), text=text, invitation=invitation)


def _subject(text: str) -> str:
    return f"[Fairlot] {' '.join(text.split())}"[:200]


def send(*, mail_id: int) -> bool:
    """Sends a mail from the outbox, and returns whether it was sent.

    Returns False if the mail is not due or another worker is sending it. Failures are retried with back-off. If a
    worker dies after the mail server accepted the mail, the mail is sent again with the same Message-ID. A mail that
    cannot be turned into a valid message is not retried.
    """
    mail = claim(Mail, mail_id)
    if mail is None:
        return False
    try:
        _message(mail).send()
    except (smtplib.SMTPException, OSError) as error:
        logger.warning("mail %s was not sent: %s", mail.pk, error)
        mail.error = str(error)[:300]
    except (ValueError, MessageError) as error:
        logger.warning("mail %s cannot be sent: %s", mail.pk, error)
        mail.error, mail.attempts = str(error)[:300], MOST_ATTEMPTS
    else:
        mail.sent_at, mail.error = now_from_database(), ""
    told = {"attempts": mail.attempts, "error": mail.error, "sent_at": mail.sent_at}
    Mail.objects.filter(pk=mail.pk).update(**told)  # it may have been deleted meanwhile
    return mail.sent_at is not None


def _message(mail: Mail) -> EmailMessage:
    identity = f"<{mail.identity}@{settings.FAIRLOT_MAIL_DOMAIN}>"
    text = f"{mail.text}\n{mail.invitation.link()}\n" if mail.invitation else mail.text
    message = EmailMessage(mail.subject, text, to=[mail.address], headers={"Message-ID": identity})
    for one in mail.attachments.all():
        message.attach(one.name, bytes(one.content), one.content_type)
    return message
