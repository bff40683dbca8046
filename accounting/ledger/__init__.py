"""Posting to the ledger. Every function runs in its caller's transaction and posts all or nothing.

Posted entries never change: the database refuses it. Posting the same again has no effect and returns the existing
rows; posting something else under the same key raises BookedOtherwise.
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
