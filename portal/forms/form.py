"""The base class of all forms of pages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from django import forms
from django.forms.renderers import TemplatesSetting
from django.forms.utils import ErrorList
from django.http import HttpRequest

from portal.forms.fields import Choice, Row
from portal.unstorable import unstorable_of

Values = dict[str, Any]


class Field(forms.BoundField):
    """A field of a form. Its problems also describe each of its radio buttons."""

    def build_widget_attrs(self, attrs: dict[str, Any], widget: Any = None) -> dict[str, Any]:
        built = super().build_widget_attrs(attrs, widget)
        return built | (
            {"aria-describedby": f"{self.auto_id}_error"} if self.use_fieldset and self.errors else {}
        )


class Renderer(TemplatesSetting):
    """Renders all forms, and each field with label, help and problems, from the templates in forms/."""

    form_template_name = "forms/form.html"
    bound_field_class = Field
    field_template_name = "forms/field.html"


class Problems(ErrorList):
    """The problems of a field, or of the form as a whole."""

    template_name = "forms/problems.html"


class Form(forms.Form):
    """A form of a page.

    `key` identifies the form on the page and begins the ids of its elements. A posted form keeps the typed text.
    `refuse` adds a problem that an action found beside its field.
    """

    def __init__(
        self, key: str, request: HttpRequest | None = None, *, initial: Values | None = None
    ) -> None:
        """`request` is the one that posted this form."""
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
        """Adds a problem of one field, or of the whole form if it has no such field."""
        self.add_error(field if field in self.fields else None, message)

    def offer(self, field: str, offered: Iterable[Any]) -> None:
        """Sets what a field lists: the rows of a `Row`, or the values and labels of a `Choice`."""
        match self.fields[field]:
            case Row() as row:
                row.listed = offered
            case Choice() as choice:
                choice.choices = list(offered)

    def or_posted(self, posted: Form | None) -> Self:
        """Returns `posted` if it has the same key, else this form."""
        return posted if isinstance(posted, type(self)) and posted.key == self.key else self
