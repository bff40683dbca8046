"""Verifies the ledger with a list of checks. Each check is a function that returns its first finding or None.

The checks do not rely on the triggers that guard the ledger. All sums are computed in the database. docs/accounting.md
says which changes the checks cannot detect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from accounting.verification import chain, closings, entries, guards, months, prices, rollups
from accounting.verification.found import Found

Check: TypeAlias = Callable[[], Found | None]

# Only the first finding is reported, so checks on which other checks depend come first.
CHECKS: list[Check] = [
    months.a_month_is_missing,
    chain.a_seal_does_not_hold,
    chain.a_chain_lost_its_end,
    chain.a_head_does_not_hold,
    chain.a_transaction_was_never_sealed,
    entries.a_transaction_lacks_entries,
    entries.an_entry_belongs_nowhere,
    entries.a_transaction_does_not_balance,
    entries.an_account_has_another_unit,
    entries.a_transaction_lacks_vouchers,
    entries.a_voucher_belongs_nowhere,
    entries.a_transaction_differs_from_its_vouchers,
    entries.an_entry_is_of_an_account_of_another_kind,
    entries.a_trade_is_no_exchange,
    entries.a_trade_is_not_taken_back_as_it_was,
    entries.a_segment_miscounts,
    entries.a_lease_is_billed_twice,
    entries.a_segment_was_never_taken_back,
    months.a_month_was_not_archived,
    months.a_book_is_told_to_be_archived_until_otherwise,
    months.an_archived_transaction_was_not_sealed,
    months.archived_entries_differ_from_sums,
    months.archived_entries_differ_from_closings,
    months.archived_bills_differ_from_sums,
    prices.a_segment_has_another_price,
    prices.a_segment_costs_otherwise,
    prices.a_charge_costs_otherwise,
    prices.a_charge_is_missing,
    prices.a_closing_has_another_price,
    prices.a_bill_is_in_another_currency,
    prices.a_closing_is_worth_otherwise,
    prices.archived_usage_costs_otherwise,
    closings.a_closing_differs_from_what_was_billed,
    closings.a_closing_is_of_an_open_hour,
    closings.nodes_differ_from_their_closing,
    closings.more_is_summed_than_was_held,
    rollups.an_hour_differs_from_its_segments,
    rollups.a_day_differs_from_its_hours,
    rollups.days_of_jobs_differ_from_their_hours,
    rollups.a_jobs_day_differs_from_its_segments,
    rollups.a_jobs_day_has_another_name,
    rollups.a_sum_is_of_no_transaction,
    guards.a_guard_is_off,
]


def first_found() -> Found | None:
    """Runs the checks in order and returns the first finding; None if the ledger is consistent."""
    return next((found for check in CHECKS if (found := check()) is not None), None)
