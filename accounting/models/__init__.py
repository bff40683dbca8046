"""The models of accounting: users, teams, prices, limits, budgets, requests, the ledger and the audit trail."""

from accounting.models.audit import AuditEvent
from accounting.models.budgets import Budget, BudgetWarning, WebhookCall
from accounting.models.capacity import (
    ArchivedHour,
    ArchiveRecord,
    CapacitySegment,
    ClosedBook,
    JobDay,
    NodeHour,
    UsageDay,
    UsageHour,
)
from accounting.models.hardware import Generation, Price
from accounting.models.history import BudgetChange, QuotaChange, TicketChange
from accounting.models.invitations import Invitation
from accounting.models.ledger import (
    LedgerAccount,
    LedgerEntry,
    LedgerHead,
    LedgerSeal,
    LedgerTransaction,
    SealedBook,
)
from accounting.models.mails import Mail, MailAttachment
from accounting.models.notifications import (
    Notification,
    NotificationChannel,
    NotificationEvent,
    NotificationItem,
    NotificationRule,
)
from accounting.models.quotas import Quota
from accounting.models.requests import Request
from accounting.models.subscriptions import ReportDelivery, ReportSubscription
from accounting.models.tenants import Membership, Tenant, User
from accounting.models.usage import ClassCharge, CorrectedSegment, UsageSegment

__all__ = [
    "ArchiveRecord",
    "ArchivedHour",
    "AuditEvent",
    "Budget",
    "BudgetChange",
    "BudgetWarning",
    "CapacitySegment",
    "ClassCharge",
    "ClosedBook",
    "CorrectedSegment",
    "Generation",
    "Invitation",
    "JobDay",
    "LedgerAccount",
    "LedgerEntry",
    "LedgerHead",
    "LedgerSeal",
    "LedgerTransaction",
    "Mail",
    "MailAttachment",
    "Membership",
    "NodeHour",
    "Notification",
    "NotificationChannel",
    "NotificationEvent",
    "NotificationItem",
    "NotificationRule",
    "Price",
    "Quota",
    "QuotaChange",
    "ReportDelivery",
    "ReportSubscription",
    "Request",
    "SealedBook",
    "Tenant",
    "TicketChange",
    "UsageDay",
    "UsageHour",
    "UsageSegment",
    "User",
    "WebhookCall",
]
