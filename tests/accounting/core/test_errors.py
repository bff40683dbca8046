"""A call that checks several arguments refuses all invalid ones at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.core.errors import Refusals, Refused


@given(st.lists(st.sampled_from(["amount", "period", None])))
def test_each_field_keeps_the_first_of_its_refusals_in_order(fields: list[str | None]) -> None:
    refusals = Refusals()
    for number, field in enumerate(fields):
        with refusals.kept():
            raise Refused(str(number), field)
    if not fields:
        refusals.raise_any()
        return
    with pytest.raises(Refused) as refused:
        refusals.raise_any()
    order = list(dict.fromkeys(fields))
    assert [one.field for one in refused.value.all] == order
    assert [one.message for one in refused.value.all] == [str(fields.index(field)) for field in order]
    again = Refusals()
    with again.kept():
        raise refused.value
    with pytest.raises(Refused) as nested:
        again.raise_any()
    assert [one.field for one in nested.value.all] == order


def test_other_errors_are_not_kept() -> None:
    with pytest.raises(ZeroDivisionError), Refusals().kept():
        raise ZeroDivisionError
