"""User actions on accounting data. Each action is one function, which also writes the audit event.

All actions raise NotAllowed if the actor lacks the permission. They raise Refused, with the reason, if the change is
impossible.
"""

from accounting.actions.budgets import remove_budget, set_budget
from accounting.actions.hardware import (
    create_generation,
    delete_generation,
    remove_price,
    set_price,
    set_weight,
)
from accounting.actions.invitations import accept_invitation, invite, revoke_invitation
from accounting.actions.ledger import resume_sealing, take_back_trade, take_back_usage
from accounting.actions.memberships import add_member, change_membership, remove_member
from accounting.actions.quotas import remove_quota, set_quota
from accounting.actions.subscriptions import subscribe_to_report, unsubscribe_from_report
from accounting.actions.tenants import (
    archive_tenant,
    create_tenant,
    delete_tenant,
    move_tenant,
    rename_tenant,
    restore_tenant,
    set_tickets,
)
from accounting.actions.users import (
    create_user,
    deactivate_user,
    describe_user,
    reactivate_user,
    reset_password,
    set_portal_role,
    set_preferences,
)

__all__ = [
    "accept_invitation",
    "add_member",
    "archive_tenant",
    "change_membership",
    "create_generation",
    "create_tenant",
    "create_user",
    "deactivate_user",
    "delete_generation",
    "delete_tenant",
    "describe_user",
    "invite",
    "move_tenant",
    "reactivate_user",
    "remove_budget",
    "remove_member",
    "remove_price",
    "remove_quota",
    "rename_tenant",
    "reset_password",
    "restore_tenant",
    "resume_sealing",
    "revoke_invitation",
    "set_budget",
    "set_portal_role",
    "set_preferences",
    "set_price",
    "set_quota",
    "set_tickets",
    "set_weight",
    "subscribe_to_report",
    "take_back_trade",
    "take_back_usage",
    "unsubscribe_from_report",
]
