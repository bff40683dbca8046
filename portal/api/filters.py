"""Says so if a list is empty because a filter names nobody."""

from __future__ import annotations

from accounting.models import Membership, Tenant, User
from portal.api.seen import NoSuch


def check_names(user: User, *, team: str, owner: str) -> None:
    """Raises NoSuch if `team` or `owner`, of a list that is empty, is no team or user that `user` may see.

    A user sees the members of the teams that the user sees.
    """
    seen = Tenant.objects.visible_to(user)
    if team and not seen.filter(slug=team).exists():
        raise NoSuch("team")
    if not owner or owner == user.get_username():
        return
    known = Membership.objects.filter(tenant__in=seen, user__username=owner)
    is_known = User.objects.filter(username=owner).exists() if user.is_operator else known.exists()
    if not is_known:
        raise NoSuch("user")
