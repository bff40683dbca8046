"""The form fields for the replicas and rollouts of a service, as the texts that the user typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from django.http import QueryDict

from portal.submit.fields import read_number
from scheduling.models import Service
from scheduling.spec.job_spec import SpecError

NUMBERS = ("replicas", "max_surge", "max_unavailable", "progress_deadline_seconds")
LABELS = {
    "max_unavailable": "“Maximum missing replicas during a rollout”"
}  # the form's labels of fields that the problem of another field mentions


@dataclass(frozen=True)
class Rules:
    """The text of each field for replicas and rollouts, as typed, and the problems of these fields.

    The texts are validated by the action that changes the service, and not by this class.
    """

    replicas: str = "1"
    max_surge: str = "1"
    max_unavailable: str = "0"
    progress_deadline_seconds: str = "600"
    auto_rollback: bool = True
    problems: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, service: Service) -> Self:
        numbers: dict[str, Any] = {name: str(getattr(service, name)) for name in NUMBERS}
        return cls(**numbers, auto_rollback=service.auto_rollback)

    @classmethod
    def imported(cls, options: Mapping[str, Any]) -> Self:
        """Returns the texts for the options of an imported service, which have the names of the API."""
        numbers: dict[str, Any] = {
            name: str(options[name]) for name in NUMBERS if options.get(name) is not None
        }
        return cls(**numbers, auto_rollback=options.get("auto_rollback") is not False)

    @classmethod
    def from_post(cls, post: QueryDict) -> Self:
        numbers: dict[str, Any] = {name: post.get(name, "") for name in NUMBERS}
        return cls(**numbers, auto_rollback=post.get("auto_rollback") == "on")

    def with_replicas(self, typed: str) -> Self:
        return replace(self, replicas=typed)

    def with_rollouts(self, typed: Rules) -> Self:
        """Returns a copy with the texts of `typed`, except the number of replicas."""
        return replace(self, **{name: getattr(typed, name) for name in (*NUMBERS[1:], "auto_rollback")})

    def read(self) -> dict[str, Any]:
        """Returns the arguments, by name, for the action that changes the service.

        A text that is not a number stays a text, and the action then refuses it.
        """
        return self.read_replicas() | self.read_rollouts()

    def read_replicas(self) -> dict[str, Any]:
        """Returns the argument of `read` that scales the service."""
        return {"replicas": read_number(self.replicas)}

    def read_rollouts(self) -> dict[str, Any]:
        """Returns the arguments of `read` that say how revisions are rolled out."""
        numbers = {name: read_number(getattr(self, name)) for name in NUMBERS if name != "replicas"}
        return numbers | {"auto_rollback": self.auto_rollback}

    @property
    def may_answer_nobody(self) -> bool:
        """Returns whether a rollout may leave no replica that is ready, with the numbers as typed."""
        replicas, missing = read_number(self.replicas), read_number(self.max_unavailable)
        return isinstance(replicas, int) and isinstance(missing, int) and 0 < replicas <= missing

    @property
    def has_problem_of_rollouts(self) -> bool:
        return any(name != "replicas" for name in self.problems)

    def with_problems(self, error: SpecError) -> Self:
        """Returns a copy whose problems are those in `error` that belong to the fields for replicas and rollouts.

        In the text of a problem, the name of a field is replaced by the field's label.
        """
        problems = {name: text for name, text in error.problems.items() if name in NUMBERS}
        for other, label in LABELS.items():
            problems = {name: text.replace(other, label) for name, text in problems.items()}
        return replace(self, problems=problems)
