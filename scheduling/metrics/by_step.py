"""Stores what programs report by their steps, beside the samples by time.

Points are written in the transaction that stores how far the source has been read, so no reading counts twice. An
attempt that starts again from a checkpoint repeats steps: what earlier attempts reported from its first step on is
deleted, because the program did not continue from there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from django.db.models import Count, Min

from accounting.core.bulk import insert_values
from scheduling.metrics.reported import Reported
from scheduling.metrics.thinning import Kept, Points, Value
from scheduling.models import MetricPoint, MetricStream

KEY = ("stream", "metric", "step")


def store_points(found: Collection[tuple[MetricStream, Reported]]) -> None:
    """Stores the points of streams that the caller has locked, and changes their `by_step`, which the caller saves.

    The names of the metrics must have positions in the stream already; others have no room. Takes one statement for
    all streams, and further ones for series that are full and for programs that repeat steps.
    """
    keepers = [_Keeper(stream) for stream, _ in found]
    for keeper, (_, reported) in zip(keepers, found, strict=True):
        keeper.follow(reported)
    _write([one for keeper in keepers for one in keeper.rows()])


def _write(rows: Iterable[Sequence[float]]) -> None:
    insert_values(MetricPoint, (*KEY, "value", "at"), rows, key=KEY)


class _Keeper:
    """Follows what a stream reports. Collects in `_new` what is to be stored, by metric and step."""

    def __init__(self, stream: MetricStream) -> None:
        self._stream = stream
        self._points = MetricPoint.objects.filter(stream=stream)
        self._positions = {name: place for place, name in enumerate(stream.names)}
        self._new: dict[int, dict[float, Value]] = {}
        self._kept = {
            int(metric): Kept.restored(one) for metric, one in stream.by_step.get("kept", {}).items()
        }

    def follow(self, reported: Reported) -> None:
        if not reported.axis:
            return
        known = self._stream.by_step
        if known.get("axis", reported.axis) != reported.axis:
            self._points.delete()
            self._kept = {}
        attempt = known.get("attempt", 0)
        for one in reported.passes:
            if one.attempt > attempt:
                self._go_back(one.first)
            attempt = max(attempt, one.attempt)
            for name, points in one.points.items():
                if name in self._positions:
                    self._take(self._positions[name], points)
        self._stream.by_step = {
            "axis": reported.axis,
            "step": reported.step,
            "attempt": reported.attempt,
            "kept": {str(metric): one.stored() for metric, one in self._kept.items()},
        }

    def rows(self) -> Iterator[tuple[float, ...]]:
        for metric, points in self._new.items():
            for step, value in points.items():
                yield self._stream.pk, metric, step, *value

    def _take(self, metric: int, points: Points) -> None:
        kept, new = self._kept.setdefault(metric, Kept()), self._new.setdefault(metric, {})
        change = kept.take(points)
        new |= change.new
        if change.known:
            stored = self._points.filter(metric=metric, step__in=list(change.known))
            again = {*stored.values_list("step", flat=True), *(change.known.keys() & new.keys())}
            new |= {step: change.known[step] for step in again}
        if kept.is_full:
            before = set(self._points.filter(metric=metric).values_list("step", flat=True))
            left = set(kept.thin(sorted(before | new.keys())))
            self._points.filter(metric=metric, step__in=before - left).delete()
            self._new[metric] = {step: value for step, value in new.items() if step in left}

    def _go_back(self, first: float) -> None:
        """Deletes what earlier attempts reported from the step `first` on."""
        if all(one.last is None or one.last[0] < first for one in self._kept.values()):
            return
        _write(self.rows())
        self._new.clear()
        self._points.filter(step__gte=first).delete()
        sizes = self._points.order_by().values("metric").annotate(count=Count("pk"), low=Min("step"))
        ends = {one["metric"]: one for one in sizes}
        last = self._points.order_by("metric", "-step").distinct("metric")
        # Every step is kept again, until the series is full.
        self._kept = {
            one.metric: Kept(
                count=ends[one.metric]["count"],
                low=ends[one.metric]["low"],
                high=one.step,
                last=(one.step, Value(one.value, one.at)),
            )
            for one in last
        }
