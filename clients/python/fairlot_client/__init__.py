"""Python client of Fairlot, the portal for shared GPU clusters.

    from fairlot_client import Fairlot

    with Fairlot("https://fairlot.example", token) as portal:
        job = portal.submit_job(spec={"name": "hello", "command": "nvidia-smi"})

The clients are imported at their first use, because the command line must start quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlot_client.errors import (
    ApiError,
    Conflict,
    ConnectionFailed,
    FairlotError,
    NotAccepted,
    NotAllowed,
    NotFound,
    NotSignedIn,
    TimedOut,
    Unavailable,
)
from fairlot_client.version import VERSION

if TYPE_CHECKING:
    from fairlot_client.client import AsyncFairlot, Fairlot

__version__ = VERSION

__all__ = [
    "ApiError",
    "AsyncFairlot",
    "Conflict",
    "ConnectionFailed",
    "Fairlot",
    "FairlotError",
    "NotAccepted",
    "NotAllowed",
    "NotFound",
    "NotSignedIn",
    "TimedOut",
    "Unavailable",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in {"AsyncFairlot", "Fairlot"}:
        from fairlot_client import client  # noqa: PLC0415 - it imports the HTTP library

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
