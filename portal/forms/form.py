"""The base class of all forms on the portal's pages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from django import forms
from django.forms.renderers import TemplatesSetting
from django.forms.utils import ErrorList
from django.http import HttpRequest

from portal.forms.fields import Choice, Row, Several
from portal.unstorable import unstorable_of

Values = dict[str, Any]


class Field(forms.BoundField):
    """A field as it is shown in a form. In a group of radio buttons, each button's `aria-describedby` refers to the
    field's problems."""

    def build_widget_attrs(self, attrs: dict[str, Any], widget: Any = None) -> dict[str, Any]:
        built = super().build_widget_attrs(attrs, widget)
        return built | (
            {"aria-describedby": f"{self.auto_id}_error"} if self.use_fieldset and self.errors else {}
        )


class Renderer(TemplatesSetting):
    """Renders forms, and each field with label, help text and problems, from the templates in forms/."""

    form_template_name = "forms/form.html"
    bound_field_class = Field
    field_template_name = "forms/field.html"


class Problems(ErrorList):
    """The problems of one form field, or of a whole form."""

    template_name = "forms/problems.html"


class Form(forms.Form):
    """The base class of the portal's forms.

    `key` identifies the form on its page; the ids of the form's HTML elements begin with it. A posted form shows the
    typed texts again. `refuse` adds a problem that an action found, and the page shows it beside the field.
    """

    def __init__(
        self, key: str, request: HttpRequest | None = None, *, initial: Values | None = None
    ) -> None:
        """Creates the form. `request` is the POST request with the form's data; None if the form was not posted.

        `key` identifies the form on its page. `initial` has the values that the fields show if the form was not posted.
        """
        self.key = key
        self.unstorable = unstorable_of(request) if request else {}
        super().__init__(
            request.POST if request else None,
            request.FILES if request else None,
            initial=initial,
            auto_id=f"{key}-%s",
            error_class=Problems,
            label_suffix="",
        )

    def full_clean(self) -> None:
        super().full_clean()
        for name, why in self.unstorable.items():
            self.refuse(f"This {why}.", name)

    def refuse(self, message: str, field: str | None = None) -> None:
        """Adds the problem `message` to a field, or to the whole form if `field` is None or the form has no such
        field."""
        self.add_error(field if field in self.fields else None, message)

    def offer(self, field: str, offered: Iterable[Any]) -> None:
        """Sets the choices of a field. `offered` contains rows for a `Row` field, or (value, label) pairs for a
        `Choice` or `Several` field."""
        match self.fields[field]:
            case Row() as row:
                row.listed = offered
            case (Choice() | Several()) as choice:
                choice.choices = list(offered)

    def or_posted(self, posted: Form | None) -> Self:
        """Returns `posted` if it is the posted version of this form (same class and key); otherwise returns this
        form."""
        return posted if isinstance(posted, type(self)) and posted.key == self.key else self
