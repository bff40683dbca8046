"""Finds how far a job is by the numbers that its program reports under the usual names, such as `epoch=3`."""

from __future__ import annotations

from typing import NamedTuple

from scheduling.metrics.reported import NAMES
from scheduling.metrics.rolling import restored
from scheduling.models import Job, MetricSample, MetricStream

REPORTED = (MetricStream.Source.OUTPUT, MetricStream.Source.EVENTS)


class Reached(NamedTuple):
    """The last number that a program reported under one of NAMES, such as ("epoch", 3.0)."""

    name: str
    number: float


def reached_by(job: Job) -> Reached | None:
    """Returns how far the program of a job says it is; None if it reports none of NAMES, or no value is kept.

    Of several names, the first of NAMES counts.
    """
    streams = MetricStream.objects.filter(job=job, source__in=REPORTED).order_by("-source")
    known = [(NAMES.index(name), name, one) for one in streams for name in NAMES if name in one.names]
    for _, name, stream in sorted(known, key=lambda found: found[0]):
        position = str(stream.names.index(name))
        samples = MetricSample.objects.filter(stream=stream, values__has_key=position)
        last = samples.order_by("-at", "-number").values_list("values", flat=True).first()
        if last is not None:
            return Reached(name, restored(last[position]).last)
    return None
