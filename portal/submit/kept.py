"""Converts the state of a form to the content of a draft, and back.

A draft contains the texts as the user typed them. It contains no values of secrets, because the forms have none: a
specification refers to secrets by name. A pasted file of another system may contain credentials, so only what was
converted from it is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from accounting.models import User
from portal.submit.draft import Choices, Draft
from portal.submit.fields import Fields
from scheduling.importers.registry import recognise
from scheduling.models import Draft as KeptDraft
from scheduling.spec import yaml_core


def content_of(draft: Draft) -> dict[str, Any]:
    """Returns the content of a draft of a job."""
    draft = without_foreign_text(draft.settle())
    return {
        "fields": asdict(draft.fields),
        "yaml": draft.yaml,
        "agreed": draft.agreed,
        "team": draft.tenant and draft.tenant.pk,
        "cluster": draft.cluster and draft.cluster.pk,
        "even_if_never": draft.even_if_never,
    }


def without_foreign_text(draft: Draft) -> Draft:
    """Returns the draft with the form's YAML in place of a text of another format that was not converted."""
    if draft.spec is None and recognise(draft.yaml):
        return replace(draft, yaml=draft.fields.to_yaml()).agree()
    return draft


def draft_of(kept: KeptDraft, user: User) -> tuple[Choices, Draft]:
    """Returns the choices and the state of the form that the draft has kept, with the problems that it has now."""
    content = Content(kept.content)
    choices = Choices.of(user, content.text("cluster"))
    known = {name for name in Fields.__dataclass_fields__ if name in content.mapping("fields")}
    tenants = {str(one.pk): one for one in choices.tenants}
    clusters = {str(one.pk): one for one in choices.clusters}
    draft = Draft(
        fields=Fields(**{name: content.mapping("fields")[name] for name in known}),
        yaml=content.text("yaml"),
        tenant=tenants.get(content.text("team")),
        cluster=clusters.get(content.text("cluster")) or choices.cluster,
        request_key=kept.request_key,
        agreed=content.text("agreed"),
        even_if_never=content.text("even_if_never") == "True",
    )
    return choices, draft.settle().checked_for(user)


def name_in(yaml: str) -> str:
    """Returns the name in a text, also if other parts of it are wrong; "" if it has none."""
    try:
        data = yaml_core.read(yaml)
    except yaml_core.NotYaml:
        return ""
    name = data.get("name") if isinstance(data, dict) else None
    return name if isinstance(name, str) else ""


class Content:
    """Reads the stored content of a draft, which an earlier version of Fairlot may have written."""

    def __init__(self, stored: Mapping[str, Any]) -> None:
        self._stored = stored

    def text(self, name: str) -> str:
        value = self._stored.get(name)
        return "" if value is None else str(value)

    def mapping(self, name: str) -> dict[str, Any]:
        value = self._stored.get(name)
        return value if isinstance(value, dict) else {}
