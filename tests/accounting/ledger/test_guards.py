"""Tests that guards.txt lists exactly the guards that the migrations create in the database.

Guards are the triggers that reject forbidden changes of the ledger, and the functions of these triggers. verify_ledger
reports a guard of guards.txt that is missing or changed in the database.
"""

import os

import pytest

from accounting.verification.guards import EXPECTED, guards

pytestmark = pytest.mark.django_db


def test_the_guards_are_those_that_are_written_down() -> None:
    """Compares guards.txt with the guards in the database. FAIRLOT_WRITE_GUARDS=1 rewrites guards.txt; review that
    change."""
    made = sorted({f"{guard}: {says}" for (guard, _), says in guards().items()})
    if os.environ.get("FAIRLOT_WRITE_GUARDS"):
        EXPECTED.write_text("\n".join(made) + "\n")
    assert EXPECTED.read_text().splitlines() == made, "run this test with FAIRLOT_WRITE_GUARDS=1"
