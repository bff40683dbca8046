"""Validates input, and turns database errors into messages for the user."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from django.core.exceptions import ValidationError
from django.db import IntegrityError, models, transaction
from django.db.backends.postgresql.psycopg_any import errors
from django.db.models import ProtectedError

from accounting.core.errors import Refused
from accounting.core.texts import why_no_name
from accounting.core.wording import unknown_choice


def check_fields(instance: models.Model, *names: str) -> None:
    """Raises Refused for the first field in `names` whose value fails the model's validation."""
    others = {field.name for field in instance._meta.fields} - set(names)
    try:
        instance.clean_fields(exclude=others)
    except ValidationError as error:
        name, messages = next(iter(error.message_dict.items()))
        raise Refused(" ".join(messages), name) from None


def check_choice(what: str, value: str, choices: Sequence[str], field: str) -> None:
    """Raises Refused, naming `field`, if `value` is not one of `choices`. `what`: the value's name in the message."""
    if value not in choices:
        raise Refused(unknown_choice(what, value, choices), field)


def check_name(name: str, field: str = "name") -> None:
    """Raises Refused if `name` has no visible character, contains an invisible or control character, or begins or ends
    with a space.

    `field`: the name of the form field, for the error.
    """
    if why := why_no_name(name):
        raise Refused(f"The name {why}.", field)


@contextmanager
def refused_if_taken(message: str, field: str) -> Iterator[None]:
    """Context manager that raises Refused(message, field) if the block violates a unique constraint."""
    try:
        with transaction.atomic():
            yield
    except IntegrityError as error:
        if isinstance(error.__cause__, errors.UniqueViolation):
            raise Refused(message, field) from None
        raise


@contextmanager
def refused_if_referenced(name: str) -> Iterator[None]:
    """Context manager that raises Refused if the block raises ProtectedError.

    The message says, for each model, how many rows still refer to the object called `name`.
    """
    try:
        with transaction.atomic():
            yield
    except ProtectedError as error:
        counts = Counter(type(holder) for holder in error.protected_objects)  # from a set, so in any order
        told = ", ".join(
            f"{counts[model]} {model._meta.verbose_name if counts[model] == 1 else model._meta.verbose_name_plural}"
            for model in sorted(counts, key=lambda model: str(model._meta.verbose_name))
        )
        raise Refused(f"{name} cannot be deleted, because it is used by {told}.") from None
