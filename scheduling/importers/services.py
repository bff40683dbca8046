"""Finishes a service: a job specification that has a port and a name for addresses, and the number of replicas."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from scheduling.importers.draft import JobDraft
from scheduling.importers.report import Fate, Work, WorkKind

MOST_REPLICAS, LONGEST_NAME = 1000, 40


def finish_service(
    draft: JobDraft, options: Mapping[str, Any], source: str = "", *, name_at: str = ""
) -> list[Work]:
    """Returns the service as a list of one. A service without a port is refused.

    `source` is the path of the service in the foreign text, `name_at` that of its name.
    """
    if "port" not in draft:
        draft.report.refused_at(
            source, "A service needs the port at which its program listens. Add it to the text.", "port"
        )
        return []
    if "name" in draft and (name := service_name(draft.spec["name"])) != draft.spec["name"]:
        draft.put(
            "name", name, name_at or source,
            "The name of a service has only lower-case letters, digits and hyphens, at most 40.", Fate.APPROXIMATED,
        )  # fmt: skip
    return draft.finish(WorkKind.SERVICE, options)


def service_name(name: str) -> str:
    """Returns the name with only the characters that the name of a service may have."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    plain = plain if re.match(r"[a-z]", plain) and not plain.startswith("fairlot-") else f"s-{plain}"
    return plain[:LONGEST_NAME].strip("-")


def put_replicas(draft: JobDraft, number: int, source: str, options: dict[str, Any]) -> None:
    """Sets the number of replicas."""
    if 0 <= number <= MOST_REPLICAS:
        options["replicas"] = number
        draft.report.mapped(source, "replicas")
    else:
        draft.report.refused_at(source, f"A service has at most {MOST_REPLICAS} replicas.", "replicas")


def put_scaling(
    draft: JobDraft, least: int, most: int | None, source: str, options: dict[str, Any], *, most_at: str = ""
) -> None:
    """Sets the number of replicas of a service that another system would scale. `source` is the path of the least
    number."""
    number = max(least, 1)
    options["replicas"] = min(number, MOST_REPLICAS)
    if most is None or most == least == number:
        draft.report.mapped(source, "replicas")
    else:
        text = f"Fairlot does not scale services by load. The service has {options['replicas']}; change it when needed."
        draft.report.approximated(source, "replicas", text)
        if most_at:
            draft.report.dropped(most_at, text)
