"""Code decides by columns and codes: the audit trail is for people."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("accounting", "scheduling", "portal")
TRAIL = re.compile(r"\bAuditEvent\b|accounting_auditevent")
# These write the trail, show it, or guard it; none of them takes a fact from it.
OF_THE_TRAIL = {
    "accounting/access/audit.py",
    "accounting/ledger/heads.py",
    "accounting/ledger/journals.py",
    "accounting/models/__init__.py",
    "accounting/models/audit.py",
    "portal/administration/team.py",
    "portal/administration/trail.py",
}


def test_only_pages_of_the_audit_trail_read_it() -> None:
    found = {
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if "migrations" not in path.parts and TRAIL.search(path.read_text())
    }
    assert found == OF_THE_TRAIL
