"""Converts the body of a call in a foreign shape to one service, schedule or job."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from accounting.models import Tenant
from portal.api.jobs.endpoints import place_of
from portal.api.jobs.schemas import NewJob
from portal.api.parsing import why_no_json
from portal.submit.imported import known_generations, worst_first
from portal.user_request import ApiRequest
from scheduling.importers.registry import convert
from scheduling.importers.report import Conversion, Fate, Line, Work
from scheduling.models import Cluster
from scheduling.spec.attachments import read_bytes

MIB = 2**20


class NotConverted(Exception):
    """Raised if a body cannot be converted. `lines` say why."""

    def __init__(self, lines: Sequence[Line]) -> None:
        super().__init__("; ".join(line.text for line in lines))
        self.lines = lines


def body_of(request: ApiRequest) -> str:
    """Returns the text of the body. Raises NotConverted if it is not UTF-8."""
    try:
        return request.body.decode()
    except UnicodeDecodeError as error:
        raise NotConverted([Line(Fate.REFUSED, "", "", why_no_json(error))]) from None


def converted(text: str, name: str) -> tuple[Work, Conversion]:
    """Converts a text in the format `name` to its only service, schedule or job.

    Raises NotConverted if a field is refused, and if the text describes several.
    """
    works, found = works_of(text, name)
    if len(works) != 1:
        raise NotConverted([Line(Fate.REFUSED, "", "", "Send one app or job in a call.")])
    return works[0], found


def works_of(text: str, name: str) -> tuple[Sequence[Work], Conversion]:
    """Converts a text in the format `name` to everything that it describes. Raises NotConverted if a field is
    refused."""
    found = convert(text, name=name, known_generations=known_generations())
    if found.refused:
        raise NotConverted([line for line in found.report if line.fate is Fate.REFUSED])
    return found.works, found


def asked_place(request: ApiRequest, work: Work) -> tuple[Tenant, Cluster]:
    """Returns the team and the cluster that the parameters `team` and `cluster` name; by default the only ones."""
    team, cluster = (request.GET.get(name, "") for name in ("team", "cluster"))
    return place_of(
        request.auth, NewJob(spec=dict(work.spec), team=team, cluster=cluster, even_if_never=False)
    )


def told(found: Conversion) -> list[dict[str, str]]:
    """Returns the lines of the report about fields that were changed or left out, as the answer shows them."""
    shown = (line for line in worst_first(found.report) if line.fate in {Fate.APPROXIMATED, Fate.DROPPED})
    return [{"field": line.source, "fate": line.fate, "text": line.text} for line in shown]


def mapping_in(body: str) -> dict[str, Any]:
    """Returns the JSON object in a body. Raises NotConverted if the body is something else."""
    try:
        read = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NotConverted([Line(Fate.REFUSED, "", "", why_no_json(error))]) from None
    if not isinstance(read, dict):
        raise NotConverted([Line(Fate.REFUSED, "", "", "The body must be one JSON object.")])
    return read


def resources_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields `cpus`, `mem` (MiB) and `gpus` of an app or job, as far as the specification names them."""
    named = {"gpus": spec.get("gpus_per_worker"), "cpus": spec.get("cpu")}
    if spec.get("memory"):
        named["mem"] = read_bytes(spec["memory"]) / MIB
    return {name: value for name, value in named.items() if value is not None}
