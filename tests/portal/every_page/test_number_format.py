"""Only accounting/core/wording.py formats the numbers on pages, in messages and in mails."""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.core import wording
from portal.wording import relative

ROOT = Path(__file__).resolve().parents[3]
# Exceptions: code that runs without Django and counts the bytes of a log, and output for terminals.
ELSEWHERE = (
    "accounting/core/wording.py",
    "backends/output.py",
    "backends/opening.py",
    "management/",
    "migrations/",
)
OTHER_WAYS = {
    "portal accounting scheduling": re.compile(
        r"\{[^{}\n]*:,[^{}\n]*\}|:\.\d%|intcomma|\.replace\(\",\"|[^\w{]\d{1,3},\d{3} (?!r)[a-z]"
    ),
    # `floatformat:"-3u"` and `stringformat` are allowed, because initial values of fields are read by programs.
    "templates": re.compile(r"\|floatformat(?!:'-3u')|\|intcomma|stringformat:\"(?!\.\df)"),
}


@pytest.mark.parametrize("rooms", OTHER_WAYS)
def test_nothing_writes_numbers_in_a_way_of_its_own(rooms: str) -> None:
    found = []
    for room in rooms.split():
        for path in sorted([*(ROOT / room).rglob("*.py"), *(ROOT / room).rglob("*.html")]):
            name = str(path.relative_to(ROOT))
            if not any(part in name for part in ELSEWHERE):
                lines = enumerate(path.read_text().splitlines(), start=1)
                found += [f"{name}:{n}: {line}" for n, line in lines if OTHER_WAYS[rooms].search(line)]
    assert found == []


@given(st.decimals(-(10**12), 10**12, places=3), st.integers(0, 3))
def test_a_number_of_fixed_digits_can_be_read_back(value: Decimal, digits: int) -> None:
    text = wording.fixed(value, digits)
    assert Decimal(text.replace("−", "-").replace(wording.SPACE, "")) == round(value, digits)
    assert re.fullmatch(r"−?\d{1,3}(\xa0\d{3})*(\.\d+)?", text)
    assert not re.fullmatch(r"−[0.]+", text)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (wording.number(1234.4), "1\xa0234"), (wording.number(-0.25), "−0.25"), (wording.number(0.0001), "<0.001"),
        (wording.percent(0.834), "83\xa0%"), (wording.percent(-0.012), "−1.2\xa0%"),
        (wording.data_size(0), "0\xa0bytes"), (wording.data_size(1), "1\xa0byte"),
        (wording.data_size(1023), "1023\xa0bytes"), (wording.data_size(1 << 20), "1.0\xa0MiB"),
        (wording.data_size((1 << 20) - 1), "1.0\xa0MiB"), (wording.data_size(100 << 30), "100\xa0GiB"),
        (wording.data_size(1 << 62), "4.0\xa0EiB"),
        (wording.percent(12.5), "1\xa0250\xa0%"),
        (wording.exact_number(Decimal("1200.50")), "1\xa0200.5"), (wording.fixed(-0.001, 2), "0.00"),
    ],
)  # fmt: skip
def test_each_kind_of_number_has_one_look(written: str, text: str) -> None:
    assert written == text


def test_missing_numbers_are_a_dash_and_small_ones_are_not_zero() -> None:
    for value in (float("nan"), float("inf"), float("-inf")):
        assert wording.number(value) == wording.percent(value) == "–"
    assert wording.number(-0.0003) == ">−0.001"


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (12 * 3600 - 60, "in 12 h"), (3580, "in 1 h"), (3 * 86400 - 1, "in 3 d"), (89, "in 1 min"), (91, "in 2 min"),
        (364.9 * 86400, "in 1 y"), (5, "now"), (-(12 * 3600 - 60), "11 h ago"), (-119, "1 min ago"),
    ],
)  # fmt: skip
def test_future_durations_are_rounded_and_past_ones_counted_in_full(seconds: float, told: str) -> None:
    now = datetime(2026, 11, 25, tzinfo=UTC)
    assert relative(now + timedelta(seconds=seconds), now) == told


def test_a_moment_has_its_year_where_it_is_not_the_readers_present_one() -> None:
    """A time is shown without its year only in the reader's current year. The reader's time zone decides which year
    that is."""
    now = datetime(2026, 12, 31, 23, 30, tzinfo=UTC)
    berlin = ZoneInfo("Europe/Berlin")
    assert wording.to_the_second(now, now) == "31 Dec 23:30:00"
    assert wording.to_the_second(now + timedelta(days=365), now) == "31 Dec 2027 23:30:00"
    assert wording.to_the_second((now - timedelta(hours=2)).astimezone(berlin), now) == "31 Dec 2026 22:30:00"
    assert wording.to_the_second(now.astimezone(berlin), now) == "1 Jan 00:30:00"
