"""Form fields. A field only converts the typed text to a value of its type. The action checks whether the value is
valid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.forms.models import ModelChoiceIterator
from django.utils import timezone

from accounting.core.numbers import read_decimal, read_key, read_whole, why_not_decimal, why_not_whole
from accounting.core.wording import fixed
from scheduling.timetable.local_time import YEARS, when_shown

MOST_DIGITS = 15  # digits before, and digits after the decimal point
if TYPE_CHECKING:  # these classes are generic only for the type checker
    RowsOfField = ModelChoiceIterator[Any]
    FieldOfRows = forms.ModelChoiceField[Any]
else:
    RowsOfField, FieldOfRows = ModelChoiceIterator, forms.ModelChoiceField

NOT_LISTED = "Choose an option from the list."
# Attributes of inputs for names and programs, which browsers must not complete or correct.
CODE: dict[str, Any] = {"autocomplete": "off", "autocapitalize": "off", "spellcheck": "false"}


class Text(forms.CharField):
    """A text field. `required` and `maxlength` are checked by the browser and not by this field."""

    def __init__(
        self,
        label: str,
        *,
        rows: int = 0,
        required: bool = True,
        is_code: bool = False,
        css: str = "",
        **named: Any,
    ) -> None:
        """Creates the field.

        - `rows`: the number of rows of a `<textarea>`; 0 for an `<input>`.
        - `is_code`: turns the browser's autocorrection off, for example for names.
        - `css`: the CSS class of the HTML element.
        - `named`: `initial`, `help_text`, `strip` and `widget` are arguments of the Django field. All others are
          attributes of the HTML element.
        """
        own = {name: named.pop(name) for name in ("initial", "help_text", "strip", "widget") if name in named}
        kind = own.pop("widget", forms.Textarea if rows else forms.TextInput)
        given = {"rows": rows or None, "class": css or None} | named | (CODE if is_code else {})
        widget = kind(attrs={name: value for name, value in given.items() if value is not None})
        super().__init__(label=label, required=required, widget=widget, **own)

    def validate(self, value: Any) -> None:
        """Accepts every text; the action checks it."""

    def run_validators(self, value: Any) -> None:
        """Runs no validators, because `InputsMiddleware` already refuses texts that the database cannot store."""


class SecretInput(forms.Textarea):
    """A text area that never contains the posted value when the form is shown again."""

    def format_value(self, value: Any) -> str:
        return ""


class Number(forms.Field):
    """A field for a number written in the digits 0 to 9. If the field is not required, an empty text gives None."""

    inputmode = "decimal"

    def __init__(self, label: str, **named: Any) -> None:
        attributes = {"inputmode": self.inputmode, "autocomplete": "off", "class": "input-number"}
        super().__init__(label=label, widget=forms.TextInput(attributes), **named)

    def to_python(self, value: Any) -> Any:
        text = str(value or "")
        return self.read(text) if text.strip() or self.required else None

    def read(self, text: str) -> Any:
        """Returns the number in `text`. Raises ValidationError if `text` is not a valid number."""
        raise NotImplementedError

    def prepare_value(self, value: Any) -> Any:
        return value if value is None or isinstance(value, str) else plain(value)


class Whole(Number):
    """A field for an int whose absolute value is below 2**31."""

    inputmode = "numeric"

    def read(self, text: str) -> int:
        number = read_whole(text)
        if number is None:
            raise ValidationError(f"This {why_not_whole(text)}.")
        if abs(number) >= 2**31:
            raise ValidationError(f"This number is too large. Enter a number below {fixed(2**31)}.")
        return number


class Exact(Number):
    """A field for an exact number, such as an amount of money or GPU-hours. Its value is a Decimal."""

    def read(self, text: str) -> Decimal:
        number = read_decimal(text)
        if number is None:
            raise ValidationError(f"This {why_not_decimal(text)}.")
        if number and not -MOST_DIGITS <= number.adjusted() <= MOST_DIGITS:
            raise ValidationError(
                "This number is too large or too close to 0. Enter a number with fewer digits."
            )
        return number


class Measure(Exact):
    """A field for a measured number, such as seconds. Its value is a float."""

    def clean(self, value: Any) -> float | None:
        number = super().clean(value)
        return None if number is None else float(number)


class Percentage(Exact):
    """A field for a fraction from 0 to 1 that is typed and shown in per cent. Its value is a Decimal.

    If the field is required, 0 is refused.
    """

    def read(self, text: str) -> Decimal:
        percent = super().read(text)
        if not 0 <= percent <= 100 or (percent == 0 and self.required):
            raise ValidationError(
                "This must be more than 0 and at most 100 %."
                if self.required
                else "This must be from 0 to 100 %."
            )
        return percent / 100

    def prepare_value(self, value: Any) -> Any:
        return super().prepare_value(value if value is None or isinstance(value, str) else value * 100)


class MomentInput(forms.TextInput):
    """An HTML input of type `datetime-local`. The template forms/field.html shows the user's time zone beside the
    label."""

    input_type = "datetime-local"


class Moment(forms.Field):
    """A field for a date and time in the user's time zone. Its value is an aware datetime, or None if the field is
    empty.

    Refuses a local time that does not exist, or that exists twice, because of a clock change.
    """

    def __init__(self, label: str, *, step: int | None = None, **named: Any) -> None:
        widget = MomentInput({"step": step} if step else {})
        super().__init__(label=label, widget=widget, **{"required": False} | named)

    def to_python(self, value: Any) -> datetime | None:
        text = str(value or "").strip()
        if not text:
            return None
        try:
            at = read_date_and_time(text)
        except ValueError as error:
            raise ValidationError(str(error)) from None
        if timezone.is_aware(at):
            return at
        shown = when_shown(at, timezone.get_current_timezone())
        if not shown:
            raise ValidationError(
                "The clocks skip this time when they go forward. Choose an earlier or later time."
            )
        if len(shown) > 1:
            raise ValidationError(
                "The clocks show this time twice when they go back. Choose an earlier or later time."
            )
        return shown[0]

    def validate(self, value: Any) -> None:
        """Accepts every value, even an empty one; the action checks it."""

    def prepare_value(self, value: Any) -> Any:
        return f"{timezone.localtime(value):%Y-%m-%dT%H:%M}" if isinstance(value, datetime) else value


class Choice(forms.ChoiceField):
    """A field for a choice among a few values.

    The field accepts any value. The action refuses an invalid one, with a message that lists the accepted values.
    """

    def __init__(self, label: str, choices: Iterable[tuple[Any, str]] = (), **named: Any) -> None:
        super().__init__(label=label, choices=list(choices), **{"required": False} | named)

    def validate(self, value: Any) -> None:
        """Accepts every value; the action checks it."""


class Several(forms.MultipleChoiceField):
    """A field for any number of choices among a few values, shown as checkboxes. Its value is a list of texts.

    Like `Choice`, the field accepts any value, and the action refuses an invalid one.
    """

    def __init__(self, label: str, choices: Iterable[tuple[Any, str]] = (), **named: Any) -> None:
        super().__init__(
            label=label, choices=list(choices), required=False, widget=forms.CheckboxSelectMultiple, **named
        )

    def validate(self, value: Any) -> None:
        """Accepts every value; the action checks it."""


class RowIterator(RowsOfField):
    """Iterates over the choices of a `Row` field: first its choices in `others`, then the listed database rows."""

    field: Row

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        yield from self.field.others.items()
        yield from map(self.choice, self.queryset if self.field.listed is None else self.field.listed)


class Row(FieldOfRows):
    """A field that chooses one row of a QuerySet. The browser sends the row's primary key.

    - `others`: additional choices, as a mapping from keys to labels. If the user picks one, the field's value is its
      key, or None if the key is "".
    - `listed`: the rows that the page offers; None means all rows of `queryset`.

    The field accepts every row of `queryset`, so the action must refuse a row that was not offered.
    """

    listed: Iterable[Any] | None = None

    iterator = RowIterator
    queryset: QuerySet[Any]

    def __init__(
        self, label: str, queryset: Any, *, others: dict[str, str] | None = None, **named: Any
    ) -> None:
        named["error_messages"] = {"required": NOT_LISTED} | named.get("error_messages", {})
        self.others = others or {}
        super().__init__(queryset, label=label, empty_label=None, **named)

    def to_python(self, value: Any) -> Any:
        if not value or value in self.others:
            return value or None
        row = self.queryset.filter(pk=read_key(value)).first()
        if row is None:
            raise ValidationError(NOT_LISTED)
        return row


class Switch(forms.BooleanField):
    """A checkbox field. Its value is a bool."""

    def __init__(self, label: str, **named: Any) -> None:
        super().__init__(label=label, required=False, **named)


def read_date_and_time(text: str) -> datetime:
    """Parses a typed date and time. The result is aware only if the text contains a UTC offset.

    Raises ValueError with a sentence that explains the problem.
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("This must be a date and time, such as 2026-11-21T08:00.") from None
    if at.year not in YEARS:
        raise ValueError(f"The year must be from {YEARS[0]} to {YEARS[-1]}.")
    return at


def plain(number: float | Decimal) -> str:
    """Returns a number without trailing zeros, and without a decimal point if the number is whole."""
    return f"{Decimal(str(number)).normalize():f}"
