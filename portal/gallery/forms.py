"""The forms of templates: to publish one, and to use one."""

from __future__ import annotations

from typing import Any

from django.forms import HiddenInput

from accounting.access.permissions import changeable_where, may
from accounting.core.name_order import by_name
from accounting.core.wording import fixed
from accounting.models import Generation, Membership, Tenant, User
from portal.forms.fields import Choice, Row, Text
from portal.forms.form import Form
from portal.gallery.parameters import ParameterForm, posted_rows, rows_of, yaml_of_rows
from portal.gallery.parameters import Row as TypedRow
from portal.submit.data import references
from portal.submit.fields import digest
from portal.user_request import UserRequest
from scheduling.models import Cluster, JobTemplate, Secret, TemplateVersion, Volume
from scheduling.spec import yaml_core
from scheduling.spec.job_spec import SpecError
from scheduling.spec.templates import MOST_PARAMETERS, Parameter, read_template
from scheduling.templates.actions import parameters_of

FOR_ALL = ""  # the choice of a template for all teams
VALUE = "value_"  # begins the names of the fields of parameters
ACRONYMS = {"cpu": "CPU", "cpus": "CPUs", "gpu": "GPU", "gpus": "GPUs", "url": "URL"}
MORE_ROWS = "row"  # the value of `do` that adds an empty row
TWICE = "You changed both the rows and this YAML. Undo one of the two changes"
EXAMPLE = """\
- name: lr
  type: number
  description: Learning rate
  min: 0
  max: 1
  default: 0.1
"""


class TemplateForm(Form):
    """The form to publish a template, or a version of the template `of`."""

    team = Choice("Published for")
    name = Text("Name", maxlength=80)
    description = Text(
        "Description",
        rows=3,
        maxlength=1000,
        help_text="What it does, for people who have not seen it before, in plain words.",
    )
    yaml = Text(
        "Job specification",
        rows=14,
        is_code=True,
        css="code",
        help_text="YAML. Write {name} where the value of a parameter stands; in quotes if it is the whole value.",
    )
    parameters = Text(
        "Parameters as YAML",
        rows=10,
        is_code=True,
        css="code",
        required=False,
        help_text="A YAML list. Each has a name and a type: text, number, choice, boolean, generation, volume, secret.",
    )
    # The hash of the YAML that says the same as the rows. A text with another hash was edited.
    agreed = Text("Agreed", required=False, widget=HiddenInput)

    def __init__(
        self,
        user: User,
        request: UserRequest | None = None,
        *,
        of: TemplateVersion | None = None,
        **initial: Any,
    ) -> None:
        if of is not None:
            parameters = yaml_core.write(of.parameters) if of.parameters else ""
            initial = {
                "description": of.description,
                "yaml": yaml_core.write(in_order(of.spec)),
                "parameters": parameters,
            }
        super().__init__("template", request, initial=initial)
        self._read_rows()
        self.tenants = {
            str(one.pk): one
            for one in changeable_where(user, "template.publish").active().order_by(*by_name("name"))
        }
        if of is not None:
            del self.fields["team"], self.fields["name"]
            return
        teams = [(key, tenant.name) for key, tenant in self.tenants.items()]
        everybody = [(FOR_ALL, "All teams")] if may(user, "template.publish_for_all") else []
        self.offer("team", [*teams, *everybody])

    def _read_rows(self) -> None:
        """Makes the rows and the YAML of the parameters say the same: what was edited counts, if only one was.

        Sets `by_yaml` to whether the YAML counts, and `edited_twice` to whether both were edited.
        """
        given = self.data if self.is_bound else self.initial
        text, agreed = given.get("parameters") or "", given.get("agreed") or ""
        rows = posted_rows(self.data) if self.is_bound else []
        self.by_yaml = not agreed or digest(text) != agreed
        self.edited_twice = bool(agreed) and self.by_yaml and digest(yaml_of_rows(rows)) != agreed
        found: list[TypedRow] | None = rows
        if self.by_yaml and not self.edited_twice:
            try:
                found = rows_of(yaml_core.read(text) if text.strip() else [])
            except yaml_core.NotYaml:
                found = None
        self.says_more = found is None  # than rows can say
        kept = rows if found is None else found
        if found is not None and not self.edited_twice:
            text = yaml_of_rows(found)
            agreed = digest(text)
        more = 1 if not kept or (self.is_bound and self.data.get("do") == MORE_ROWS) else 0
        shown = [*kept, *[{"type": "text"}] * more][:MOST_PARAMETERS]
        self.rows = [ParameterForm(place, row) for place, row in enumerate(shown)]
        both = {"parameters": text, "agreed": agreed}
        if self.is_bound:
            self.data = {**self.data.dict(), **both}  # type: ignore[attr-defined]  # of a QueryDict
        else:
            self.initial.update(both)

    @property
    def first(self) -> list[Any]:
        """Returns the fields above the parameters."""
        return [self[name] for name in ("team", "name", "description", "yaml") if name in self.fields]

    @property
    def shows_yaml(self) -> bool:
        return self.says_more or bool(self["parameters"].errors)

    @property
    def tenant(self) -> Tenant | None:
        """Returns the chosen team; None for all teams. Raises SpecError for a team that was not offered."""
        chosen = self.cleaned_data["team"]
        if chosen not in {key for key, _ in self.fields["team"].choices}:  # type: ignore[attr-defined]
            raise SpecError({"team": "Choose one of the teams in the list."})
        return self.tenants.get(chosen)

    @property
    def content(self) -> dict[str, Any]:
        """Returns the description, the specification and the parameters. Raises SpecError if one cannot be read."""
        if self.edited_twice:
            raise SpecError({"parameters": TWICE})
        typed = self.cleaned_data["parameters"]
        try:
            parameters = (yaml_core.read(typed) or []) if typed.strip() else []
        except yaml_core.NotYaml as error:
            raise SpecError({"parameters": str(error)}) from None
        spec = read_template(self.cleaned_data["yaml"])
        return {"description": self.cleaned_data["description"], "spec": spec, "parameters": parameters}

    def refuse_all(self, error: SpecError) -> None:
        """Shows the problems of the specification and of the parameters beside their fields."""
        for path, text in error.problems.items():
            if path in ("team", "parameters", "yaml", ""):
                self.refuse(_sentence(text), path or None)
            elif path.startswith("parameters.") and not self.by_yaml:
                place, _, field = path.removeprefix("parameters.").partition(".")
                self.rows[int(place)].refuse(_sentence(text), field.partition(".")[0])
            elif path.startswith("parameters."):
                self.refuse(f"{path.removeprefix('parameters.')}: {text.rstrip('.')}.", "parameters")
            else:
                self.refuse(f"{path}: {text.rstrip('.')}.", "yaml")
        if not self.errors:  # what is wrong stands beside the rows
            self.refuse("Correct the marked parameters.")


class UseForm(Form):
    """The short form to use a template: the team, the cluster, and its parameters."""

    team = Row("Team", Tenant.objects.none())
    cluster = Row("Cluster", Cluster.objects.none())
    request_key = Text("Request", required=False, widget=HiddenInput)

    def __init__(
        self, user: User, version: TemplateVersion, request: UserRequest | None = None, **initial: Any
    ) -> None:
        self.parameters = parameters_of(version)
        suggested = {
            f"{VALUE}{one.name}": text_of_default(one) for one in self.parameters if one.default is not None
        }
        super().__init__("use", request, initial=suggested | initial)
        teams = (
            Tenant.objects.visible_to(user, role=Membership.Role.MEMBER).active().order_by(*by_name("name"))
        )
        clusters = Cluster.objects.attached().order_by(*by_name("name"))
        for name, rows in (("team", teams), ("cluster", clusters)):
            field = self.fields[name]
            if isinstance(field, Row):
                field.queryset = rows
        last = self.fields.pop("request_key")
        for one in self.parameters:
            self.fields[f"{VALUE}{one.name}"] = _field_of(one, user)
        self.fields["request_key"] = last

    @property
    def values(self) -> dict[str, str]:
        """Returns the values of the parameters as typed."""
        return {one.name: str(self.cleaned_data.get(f"{VALUE}{one.name}") or "") for one in self.parameters}

    def refuse_all(self, error: SpecError) -> None:
        """Shows problems beside the parameters, and those of the specification above the form."""
        for name, text in error.problems.items():
            if f"{VALUE}{name}" in self.fields:
                self.refuse(f"This {text}.", f"{VALUE}{name}")
            else:
                self.refuse(f"{name}: {text.rstrip('.')}." if name else _sentence(text))


def bound_text(bound: float) -> str:
    """Returns a bound of a number with all its digits, such as 0.00001, which may be a learning rate."""
    return fixed(bound) if bound == int(bound) else f"{bound:g}"


def text_of_default(parameter: Parameter) -> str:
    default = parameter.default
    return str(default).lower() if isinstance(default, bool) else "" if default is None else str(default)


def in_order(spec: dict[str, Any]) -> dict[str, Any]:
    """Returns the data of a specification with name and command first, because the database keeps no order."""
    first = [name for name in ("name", "command") if name in spec]
    return {name: spec[name] for name in (*first, *sorted(set(spec) - set(first)))}


def _field_of(parameter: Parameter, user: User) -> Any:
    words = [ACRONYMS.get(word, word) for word in parameter.name.split("_")]
    label = " ".join([words[0][:1].upper() + words[0][1:], *words[1:]])
    about = [parameter.description.rstrip(".")] if parameter.description else []
    if parameter.type == "number":
        least, most = parameter.min, parameter.max
        bounds = [f"from {bound_text(least)}"] if least is not None else []
        bounds += [f"{'to' if bounds else 'up to'} {bound_text(most)}"] if most is not None else []
        about += [f"{'A whole number' if parameter.whole else 'A number'} {' '.join(bounds)}".strip()]
    if not parameter.required:
        about.append("May stay empty")
    help_text = f"{'. '.join(about)}." if about else ""
    offered = _offered(parameter, user)
    if offered is None:
        return Text(label, required=parameter.required, help_text=help_text, maxlength=500)
    default = text_of_default(parameter)
    if default and default not in {value for value, _ in offered}:  # otherwise another value would be chosen
        offered = [(default, default), *offered]
    empty = [] if parameter.required and parameter.default is not None else [("", "–")]
    return Choice(label, [*empty, *offered], help_text=help_text)


def _offered(parameter: Parameter, user: User) -> list[tuple[str, str]] | None:
    """Returns the choices of a parameter as (value, label); None if it is typed."""
    match parameter.type:
        case "choice":
            return [(one, one) for one in parameter.choices]
        case "boolean":
            return [("true", "Yes"), ("false", "No")]
        case "generation":
            found = Generation.objects.filter(nodes__cluster__detached_at=None, nodes__gpus__gt=0)
            return [(name, name) for name in found.distinct().order_by("name").values_list("name", flat=True)]
        case "volume":
            volumes = Volume.objects.visible_to(user).order_by("name").values_list("name", flat=True)
            return [(name, name) for name in dict.fromkeys(volumes)]
        case "secret":
            secrets = list(Secret.objects.visible_to(user).values_list("name", "keys"))
            return [(one, one) for one in references(secrets)]
    return None


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def whose(template: JobTemplate) -> str:
    """Returns for whom a template is published, in words."""
    return template.tenant.name if template.tenant else "All teams"
