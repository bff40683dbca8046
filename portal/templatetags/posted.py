"""What a refused form shows again: the typed values, and what was wrong beside the field."""

from __future__ import annotations

from django import template
from django.template import Context
from django.utils.html import format_html
from django.utils.safestring import SafeString

register = template.Library()


@register.simple_tag(takes_context=True)
def typed(context: Context, form: str, field: str, otherwise: object = "") -> object:
    """What was typed into a field of the refused or previewed form; `otherwise` in every other form."""
    kept = context.get("kept") or context.get("refusal")
    return kept.typed.get(field, otherwise) if kept and kept.form == form else otherwise


@register.simple_tag(takes_context=True)
def ticked(context: Context, form: str, field: str, otherwise: bool) -> SafeString:
    """Marks a box that was ticked in the refused form; a form leaves out those that were not."""
    kept = context.get("kept") or context.get("refusal")
    is_on = field in kept.typed if kept and kept.form == form else otherwise
    return format_html("{}", " checked" if is_on else "")


@register.simple_tag(takes_context=True)
def refused(context: Context, form: str, field: str = "") -> SafeString | str:
    """Why the form was refused for this field; without `field` what is wrong with none of its fields."""
    refusal = context.get("refusal")
    if not refusal or (refusal.form, refusal.field) != (form, field):
        return ""
    return format_html('<p class="field-error" id="refusal" role="alert">{}</p>', refusal.message)


@register.simple_tag(takes_context=True)
def invalid(context: Context, form: str, field: str, described_by: str = "") -> SafeString | str:
    """Marks the field that is at fault, and says what describes it: the refusal, and the element of that id."""
    refusal = context.get("refusal")
    if refusal and (refusal.form, refusal.field) == (form, field):
        return format_html(' aria-invalid="true" aria-describedby="{}"', f"refusal {described_by}".strip())
    return format_html(' aria-describedby="{}"', described_by) if described_by else ""


@register.filter
def named(key: object, start: str) -> str:
    """A form's name of its own in a list: `{{ row.pk|named:"price-" }}` is "price-7"."""
    return f"{start}{key}"


@register.filter
def text(key: object) -> str:
    """A key as a form sends it."""
    return str(key)
