"""Functions that post to the ledger.

Each function runs in its caller's transaction and posts either everything or nothing. The database rejects changes of
posted entries. Posting the same content twice has no effect, and returns the existing rows. Posting different content
under an existing key raises BookedOtherwise.
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
