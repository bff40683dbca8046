"""Booking into the ledger. Every function runs inside its caller's transaction and books all or nothing.

What is booked once stays: the database refuses any change. Booking the same again has no effect and
returns what is there; booking something else under the same key raises BookedOtherwise.
"""

from accounting.ledger.corrections import Payer, correct_trade, correct_usage
from accounting.ledger.trades import TradedTime, book_trades
from accounting.ledger.usage import Usage, book_usage

__all__ = [
    "Payer",
    "TradedTime",
    "Usage",
    "book_trades",
    "book_usage",
    "correct_trade",
    "correct_usage",
]
