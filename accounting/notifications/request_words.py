"""Describes requests and grants in words. Reads the names of GPU types and users once for all requests of a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from accounting.core.wording import number
from accounting.models import Generation, Quota, Request, User


@dataclass(frozen=True)
class Words:
    generations: Mapping[int, Generation]
    users: Mapping[int, User]

    @classmethod
    def of(cls, requests: Iterable[Request]) -> Words:
        told = [values or {} for one in requests for values in (one.wanted, one.granted)]
        users = {values["user_id"] for values in told if values.get("user_id")}
        generations = {values["generation_id"] for values in told if values.get("generation_id")}
        return cls(
            Generation.objects.in_bulk(generations) if generations else {},
            User.objects.in_bulk(users) if users else {},
        )

    def say(self, request: Request, values: Mapping[str, Any] | None) -> str:
        """Returns one line of text that describes `values`: the requested or the granted values of `request`."""
        told = values or {}
        match request.kind:
            case Request.Kind.TICKETS:
                return f"{number(told['tickets'])} tickets"
            case Request.Kind.TEAM:
                return f"a team {told['name']} with {number(told['tickets'])} tickets"
            case Request.Kind.LIMIT:
                return self._limit(request, told)
        return f"more time for request {request.extends_id}"

    def asks(self, request: Request) -> str:
        """Returns one line of text that describes what `request` asks for. While it is open, also says the value now:
        "100 → 200 tickets"."""
        wanted = self.say(request, request.wanted)
        if request.kind == Request.Kind.TICKETS and request.state == Request.State.OPEN:
            return f"{number(request.tenant.tickets)} → {wanted}"
        return wanted

    def _limit(self, request: Request, told: Mapping[str, Any]) -> str:
        names = ("kind", "each_user", "period", "days", "at_limit")
        quota = Quota(
            tenant=request.tenant,
            user=self.users.get(told["user_id"]),
            generation=self.generations.get(told["generation_id"]),
            **{name: told[name] for name in names},
        )
        then = quota.get_at_limit_display()
        limit = number(float(Decimal(told["limit"])))
        return f"{quota.whose()}: limit of {limit} {quota.what()}; when the limit is reached: {then}"
