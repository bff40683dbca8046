"""The labels of a chart's axis are at the positions of their values."""

from decimal import Decimal
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from accounting.core.wording import SPACE
from portal.axis import axis

sizes = st.just(0.0) | st.floats(1e-9, 1e12)


@given(sizes, sizes)
@example(0.0, 0.0)
@example(1.0, 1.0)
@example(0.000123, 0.0)
@example(0.0, 4_000_001.0)
def test_labels_are_distinct_in_order_and_exact(below: float, above: float) -> None:
    scale = axis(-below, above)
    marks = list(scale.marks)
    numbers = [Decimal(mark.label.replace("−", "-").replace(SPACE, "")) for mark in marks]
    assert numbers == sorted(set(numbers))
    assert 0 in numbers
    assert 2 <= len(numbers) <= 2 * 4 + 1
    assert numbers[0] <= Decimal(-below)
    assert numbers[-1] >= Decimal(above)
    assert len({after - before for before, after in pairwise(numbers)}) == 1
    assert (marks[0].part, marks[-1].part) == (0.0, 1.0)
    for mark, number in zip(marks, numbers, strict=True):
        assert abs(scale.part(float(number)) - mark.part) < 1e-9


def test_a_value_of_zero_draws_nothing() -> None:
    for value in (float("nan"), float("inf"), 5e-324):
        scale = axis(0, value)
        assert [mark.part for mark in scale.marks] == [mark.part for mark in axis(0, 0).marks]
        assert scale.part(0) == 0
