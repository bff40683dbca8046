"""The endpoint that converts files of other systems to job specifications."""

from __future__ import annotations

from typing import Any

from ninja import Router

from accounting.core.wording import unknown_choice
from portal.api.conversions import schemas
from portal.submit.imported import convert_for, worst_first
from portal.user_request import ApiRequest
from scheduling.importers.registry import FORMATS
from scheduling.importers.report import Work, WorkKind
from scheduling.models import Cluster
from scheduling.pipelines.definition import Definition
from scheduling.spec.job_spec import JobSpec, SpecError

router = Router(tags=["Jobs"])


@router.post("/convert", response=schemas.Conversion, url_name="convert")
def convert_text(request: ApiRequest, new: schemas.NewConversion) -> dict[str, Any]:
    """Converts a text of another system to jobs, services, schedules, sweeps and pipelines, and reports what became of
    each field.

    Nothing is saved or submitted. A text that cannot be converted has a report with `refused` lines and no works.
    """
    names = [one.name for one in FORMATS]
    if new.format and new.format not in names:
        raise SpecError({"format": unknown_choice("format", new.format, names)})
    attached = Cluster.objects.attached()
    clusters = list(attached.filter(name=new.cluster) if new.cluster else attached[:2])
    if new.cluster and not clusters:
        raise SpecError(
            {"cluster": unknown_choice("cluster", new.cluster, attached.values_list("name", flat=True))}
        )
    found = convert_for(clusters[0] if len(clusters) == 1 else None, new.text, new.format)
    return {
        "format": found.format,
        "label": found.label,
        "works": [_show(work) for work in found.works],
        "report": [
            {"fate": line.fate, "source": line.source, "target": line.target, "text": line.text}
            for line in worst_first(found.report)
        ],
    }


def _show(work: Work) -> dict[str, Any]:
    return {
        "kind": work.kind,
        "name": work.name,
        "spec": work.spec,
        "options": work.options,
        "yaml": Definition.parse(work.options["pipeline"]).to_yaml()
        if work.kind is WorkKind.PIPELINE
        else JobSpec.parse(dict(work.spec)).to_yaml(),
    }
