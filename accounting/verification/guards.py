"""Checks the guards of the ledger: the database triggers that reject forbidden changes, and their functions.

Each guard must exist, be enabled and have its expected definition. guards.txt contains the expected definitions.
tests/accounting/ledger/test_guards.py compares guards.txt with the guards that the migrations create. With
FAIRLOT_WRITE_GUARDS=1, the test rewrites the file.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from django.db import connection

from accounting.verification.found import Found

EXPECTED = Path(__file__).with_name("guards.txt")
OF_FAIRLOT = r"^(accounting|scheduling)_"
# The guards of a monthly partition are listed under the name of the parent table.
GUARDS = r"""
    SELECT 'trigger ' || coalesce(whole.relname, part.relname) || ' ' || tgname AS guard, part.relname::text AS place,
           'enabled ' || tgenabled::text || ' '
           || replace(regexp_replace(pg_get_triggerdef(guard.oid, true), ' ON \S+ ', ' ON … '), '  ', ' ') AS says
    FROM pg_trigger guard JOIN pg_class part ON part.oid = tgrelid
    LEFT JOIN pg_inherits ON inhrelid = part.oid LEFT JOIN pg_class whole ON whole.oid = inhparent
    WHERE NOT tgisinternal AND part.relname ~ %(ours)s AND pg_table_is_visible(part.oid)
    UNION ALL
    SELECT 'function ' || proname || '(' || pg_get_function_identity_arguments(pg_proc.oid) || ')', '',
           encode(sha256(convert_to(prosrc, 'UTF8')), 'hex') || coalesce((SELECT ' sets ' || string_agg(
               replace(setting, current_schema(), '…'), ' ') FROM unnest(proconfig) setting), '')
    FROM pg_proc WHERE proname ~ %(ours)s AND pg_function_is_visible(pg_proc.oid)
"""
MONTHS = """
    SELECT inhparent::regclass::text, inhrelid::regclass::text FROM pg_inherits
    JOIN pg_class whole ON whole.oid = inhparent
    WHERE whole.relkind = 'p' AND whole.relname ~ %(ours)s
"""


def guards() -> dict[tuple[str, str], str]:
    """Returns the definition of each trigger and function in the database, by (name, table).

    For functions, the table is an empty string.
    """
    with connection.cursor() as cursor:
        cursor.execute(GUARDS, {"ours": OF_FAIRLOT})
        return {(guard, place): says for guard, place, says in cursor.fetchall()}


@cache
def expected() -> dict[str, str]:
    """Returns the expected definitions of triggers and functions, by name, from guards.txt."""
    lines = EXPECTED.read_text().splitlines()
    return {guard: says for guard, _, says in (line.partition(": ") for line in lines)}


def a_guard_is_off() -> Found | None:
    """Finds a guard that is missing, disabled or changed. Also finds triggers and functions that Fairlot did not
    create.

    Function bodies are compared too, because a trigger whose function is empty protects nothing.
    """
    found = guards()
    for guard, place in sorted(_places() - found.keys()):
        return Found(
            "a guard (a trigger or function that protects the ledger) is missing or disabled",
            _name(guard, place),
        )
    for (guard, place), says in sorted(found.items()):
        should = expected().get(guard)
        name = _name(guard, place)
        if should is None:
            return Found("the database has a trigger or function that Fairlot did not create", name)
        if says.split()[:2] != should.split()[:2] and place:
            return Found(
                "a guard (a trigger or function that protects the ledger) is missing or disabled", name
            )
        if says != should:
            return Found("a guard (a trigger or function that protects the ledger) was changed", name)
    return None


def _name(guard: str, place: str) -> tuple[str, ...]:
    return (place, guard.rsplit(maxsplit=1)[-1]) if place else (guard,)


def _places() -> set[tuple[str, str]]:
    """Returns (guard, table) for each expected guard and each table that must have it.

    A trigger must exist on its table and on all monthly partitions of the table. For functions, the table is an empty
    string.
    """
    with connection.cursor() as cursor:
        cursor.execute(MONTHS, {"ours": OF_FAIRLOT})
        months = cursor.fetchall()
    found = set()
    for guard in expected():
        kind, table, *_ = guard.split()
        found.add((guard, table if kind == "trigger" else ""))
        found |= {(guard, part) for whole, part in months if kind == "trigger" and whole == table}
    return found
