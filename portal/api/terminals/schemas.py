"""Response schemas of the endpoints for terminals."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from ninja import Field, Schema


class Terminal(Schema):
    """An open shell beside a worker of a running job."""

    id: UUID
    worker: int = Field(description="Rank of the worker.")
    user: str
    own: bool = Field(description="Whether it is the caller's, who alone may come back to it.")
    attached: bool = Field(
        description="Whether somebody has it open. If not, the shell goes on and waits for its user."
    )
    opened_from: str = Field(description="Network address from which it was opened.")
    opened_at: datetime
    may_end: bool = Field(description="Whether the caller may end it.")


class Terminals(Schema):
    items: list[Terminal] = Field(description="The newest first.")
