"""State of the accounting room: people, hardware prices, quotas, the ledger and the audit trail."""

from accounting.models.audit import AuditEvent
from accounting.models.hardware import Generation, Price
from accounting.models.ledger import LedgerAccount, LedgerEntry, LedgerTransaction, UsageSegment
from accounting.models.quotas import Quota
from accounting.models.tenants import Membership, Tenant, User

__all__ = [
    "AuditEvent",
    "Generation",
    "LedgerAccount",
    "LedgerEntry",
    "LedgerTransaction",
    "Membership",
    "Price",
    "Quota",
    "Tenant",
    "UsageSegment",
    "User",
]
