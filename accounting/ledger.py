"""Booking into the ledger. Every function runs inside its caller's transaction and books all or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from accounting.models import Generation, LedgerTransaction, Tenant, UsageSegment, User


@dataclass(frozen=True, kw_only=True)
class Usage:
    """A gang of `gpus` GPUs of one generation held from `begins` (included) to `ends` (excluded)."""

    lease_id: int
    job_id: int
    job_name: str
    tenant: Tenant
    user: User
    generation: Generation
    gpus: int
    begins: datetime
    ends: datetime


def book_usage(
    *,
    lease_id: int,
    job_id: int,
    job_name: str,
    tenant: Tenant,
    user: User,
    generation: Generation,
    gpus: int,
    begins: datetime,
    ends: datetime,
) -> list[UsageSegment]:
    """Books what one lease held; see `book_usage_many`."""
    return book_usage_many(
        [
            Usage(
                lease_id=lease_id,
                job_id=job_id,
                job_name=job_name,
                tenant=tenant,
                user=user,
                generation=generation,
                gpus=gpus,
                begins=begins,
                ends=ends,
            )
        ]
    )


def book_usage_many(usages: Sequence[Usage]) -> list[UsageSegment]:
    """Books what leases held, split at full UTC hours and at changes of price."""
    raise NotImplementedError


def book_trade(
    *,
    key: str,
    seller: Tenant,
    buyer: Tenant,
    slow: Generation,
    fast: Generation,
    fast_gpu_seconds: Decimal,
    slow_gpu_seconds: Decimal,
    begins: datetime,
    ends: datetime,
    description: str,
) -> LedgerTransaction:
    """Books that `seller` gives `fast_gpu_seconds` of `fast` to `buyer` for `slow_gpu_seconds` of `slow`."""
    raise NotImplementedError


def correct(*, actor: User, transaction: LedgerTransaction, reason: str) -> LedgerTransaction:
    """Books the reverse of `transaction`."""
    raise NotImplementedError
