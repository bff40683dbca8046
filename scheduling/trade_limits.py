"""Limits of trades as a round sees them: a row for each account, a column for each generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fairshare import model as fs
from scheduling.models import TradeLimit


@dataclass(frozen=True, slots=True)
class LimitArrays:
    """As in fairshare.model.Accounts; None where no tenant has set any."""

    deals: fs.Bools | None = None
    give_most: fs.Floats | None = None
    give_part: fs.Floats | None = None


def read_trade_limits(index: Mapping[int, int], column: Mapping[int, int], size: int) -> LimitArrays:
    """Of the tenants in `index` (tenant → row) for the generations in `column`; other rows limit nothing."""
    found = list(TradeLimit.objects.filter(tenant__in=index.keys()).order_by())
    if not found:
        return LimitArrays()
    shape = size, len(column)
    deals, most, part = np.ones(shape, dtype=bool), np.full(shape, np.inf), np.full(shape, np.inf)
    # What is said of all generations comes first, so that what is said of one replaces it.
    for limit in sorted(found, key=lambda limit: limit.generation_id is not None):
        if limit.generation_id is None:
            columns = list(column.values())
        else:
            columns = [column[limit.generation_id]] if limit.generation_id in column else []
        row = index[limit.tenant_id]
        deals[row, columns] = limit.trades
        most[row, columns] = np.inf if limit.most_gpus is None else float(limit.most_gpus)
        part[row, columns] = np.inf if limit.most_part is None else float(limit.most_part)
    return LimitArrays(deals, most, part)
