"""A meter takes samples of a gang's GPU or CPU use, and reports how long the gang has been idle."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from scheduling.backends.metering import ANY, LONGEST_GAP, WINDOW, Meter

STEPS = st.lists(
    st.tuples(st.sampled_from([0.5, 1.0, 2.0, 4.9, 5.1, 30.0]), st.sampled_from([0.0] * 30 + [0.2, ANY])),
    max_size=200,
)


def told(samples: list[tuple[float, float]], negligible: float = 0.0) -> list[tuple[float, float]]:
    """Feeds samples to a meter; returns (time, idle seconds) for each report of the meter.

    Each sample is (time, amount used since the sample before). The idle seconds are 0 if the meter reports use.
    """
    meter: Meter[str] = Meter(negligible=negligible)
    found = [(at, meter.sample("job", at, amount)) for at, amount in samples]
    return [(at, unused) for at, unused in found if unused is not None]


def every(seconds: float, until: float, **uses: float) -> list[tuple[float, float]]:
    count = int(until / seconds) + 1
    return [(step * seconds, uses.get(f"at{step * seconds:g}", 0.0)) for step in range(count)]


def test_a_whole_window_without_use_is_idle_and_the_next_one_adds_to_it() -> None:
    assert told(every(1, 95)) == [(30, 30), (60, 60), (90, 90)]


def test_any_use_ends_it_and_half_a_window_counts_for_nothing() -> None:
    assert told(every(1, 100, at45=1.0)) == [(30, 30), (45, 0), (75, 30)]


def test_time_that_was_not_measured_is_not_idle() -> None:
    samples = every(1, 40) + [(at + 100, amount) for at, amount in every(1, 40)]
    assert told(samples) == [(30, 30), (130, 30)]


def test_constant_use_is_reported_once_per_window() -> None:
    assert told([(float(at), ANY) for at in range(100)]) == [(30, 0), (60, 0), (90, 0)]


def test_a_negligible_amount_is_no_use_and_more_is() -> None:
    assert told([(float(at), 0.01) for at in range(31)], negligible=0.5) == [(30, 30)]
    assert all(unused == 0 for _, unused in told([(float(at), 0.02) for at in range(99)], negligible=0.3))


@given(steps=STEPS)
def test_no_reported_idle_period_contains_a_use_or_a_gap(steps: list[tuple[float, float]]) -> None:
    samples, at = [], 0.0
    for step, amount in steps:
        at += step
        samples.append((at, amount))
    moments = [moment for moment, _ in samples]
    for until, unused in told(samples):
        assert unused == 0 or unused >= WINDOW
        since = until - unused
        assert not any(amount and since < moment <= until for moment, amount in samples)
        within = [moment for moment in moments if since - 1e-9 <= moment <= until]
        assert all(after - before <= LONGEST_GAP for before, after in pairwise(within))


@given(steps=STEPS)
def test_a_use_is_reported_before_any_later_idle_period(steps: list[tuple[float, float]]) -> None:
    """After a report of idle time, the meter reports the first use immediately. So a user who was warned sees that the
    GPUs are in use again."""
    meter: Meter[str] = Meter()
    at, idle = 0.0, False
    for step, amount in steps:
        at += step
        unused = meter.sample("job", at, amount)
        if idle and amount and step <= LONGEST_GAP:
            assert unused == 0
        if unused is not None:
            idle = unused > 0
        elif step > LONGEST_GAP:
            idle = False


def test_leases_are_measured_apart_and_forgotten() -> None:
    meter: Meter[str] = Meter()
    for at in range(31):
        meter.sample("one", float(at), 0.0)
        other = meter.sample("other", float(at), ANY if at == 29 else 0.0)
    assert other is None
    assert meter.sample("one", 32.0, 0.0) is None
    meter.keep({"other"})
    assert meter.sample("one", 33.0, 0.0) is None  # counts as a first sample again
    assert [meter.sample("one", 33.0 + at, 0.0) for at in (4, 8, 12, 16, 20, 24, 28)] == [None] * 7
    assert meter.sample("one", 63.0, 0.0) == 30
