"""Attacks with invalid texts and numbers, with misleading names, and with names that are dangerous in file paths."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.attack.attacks import Person, Target, attack
from tests.waiting import wait_for

BAD = ("%00", "%ED%A0%80", "9223372036854775808", "1e400", "%C2%B2", "x" * 3000)
SENT: tuple[object, ...] = (2**31, 2**63, True, [], "\ud800", "a\0b", "x" * 10_000, "1e400")
PAGES = (
    "/jobs/?q={0}&state={0}&team={0}&owner={0}&label={0}&page={0}&generation={0}",
    "/jobs/{job}/?page={0}",
    "/jobs/{job}/log/?rank={0}",
    "/jobs/{job}/events/?page={0}",
    "/cluster/?cluster={0}",
    "/share/?team={0}&period={0}&cluster={0}",
    "/trades/?team={0}&generation={0}&run={0}&page={0}",
    "/usage/?team={0}&by={0}&label={0}&from={0}&to={0}&zone={0}&page={0}&period=dates",
    "/usage/idle/?team={0}&page={0}",
    "/requests/?page={0}",
    "/schedules/new/?job={0}",
    "/submit/?clone={0}",
    "/admin/users/?q={0}&page={0}",
    "/admin/audit/?actor={0}&verb={0}&target={0}&page={0}&from={0}",
    "/live/?topics=job:{0}&since={0}",
)


def _no_errors(person: Person, addresses: list[str]) -> None:
    wrong = []
    for address in addresses:
        with person.http.stream("GET", address) as answer:  # some pages are endless streams
            if answer.status_code >= 500:
                wrong.append(f"{answer.status_code} {address[:120]}")
    assert wrong == [], f"{person.name}: {len(wrong)} errors of the server, such as {wrong[:3]}"


@attack("zero bytes, halves of characters and huge numbers in the queries of pages")
def pages(target: Target) -> None:
    for name in ("ada", "bob"):
        person = target.person(name)
        job = target.person("bob").get("/api/v1/jobs").json()["items"][0]["id"]
        _no_errors(person, [page.format(bad, job=job) for page in PAGES for bad in BAD])


@attack("offsets and numbers beyond every column in the addresses of calls")
def addresses(target: Target) -> None:
    bob = target.person("bob")
    job = bob.submit(command="echo hello; sleep 600")
    wait_for(lambda: bob.get(f"/api/v1/jobs/{job}/log").json()["text"], seconds=300, what="a log", every=1)
    offsets = (2**40, 17592186044416, 2**53, 2**62, 2**63 - 1, 2**63, 2**64)
    tried = [f"/api/v1/jobs/{job}/log?offset={offset}&rank=0" for offset in offsets]
    tried += [f"/jobs/{job}/log/stream?offset={offset}" for offset in offsets]
    tried += [
        f"/jobs/{job}/log/piece?rank=0&{name}={offset}"
        for name in ("begin", "end", "around")
        for offset in offsets
    ]
    tried += [f"/api/v1/jobs/{number}" for number in (2**31, 2**63, 2**64, "9" * 400)]
    _no_errors(bob, tried)
    bob.cancel(job)


@attack("every body of a call with what no column holds, as an admin and as a member")
def bodies(target: Target) -> None:
    document = target.person("ada").get("/api/v1/openapi.json").json()
    wrong, tried = [], 0
    for name in ("ada", "bob"):
        person = target.person(name)
        headers = {"Content-Type": "application/json", "Origin": target.url, "X-CSRFToken": person.csrf()}
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                # Leaves out operations that change what other attacks need, or that call an API server.
                if "requestBody" not in operation or re.search("clusters|idle-rules|limits$|budgets$", path):
                    continue
                for body in _bodies(document, operation):
                    tried += 1
                    address = re.sub(r"\{[^}]+\}", "999999999", path)
                    answer = person.http.request(method, address, content=body, headers=headers)
                    if answer.status_code >= 500:
                        wrong.append(f"{answer.status_code} {method} {path} {body[:80]}")
    assert tried > 100
    assert wrong == [], f"{len(wrong)} of {tried} are errors of the server, such as {wrong[:3]}"


def _bodies(document: dict[str, Any], operation: dict[str, Any]) -> list[str]:
    """Returns invalid request bodies for an API operation: objects in which all fields have the same value, and bodies
    that are not JSON objects.

    `document` is the API's OpenAPI document, which contains `operation`.
    """
    # A call that takes files has no schema of JSON, and gets the bodies without fields.
    schema = operation["requestBody"]["content"].get("application/json", {}).get("schema", {})
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    names = list(schema.get("properties", {}))
    made = [json.dumps(dict.fromkeys(names, value)) for value in SENT]
    return [*made, "[" * 10_000, "NaN", "{"]


@attack("a name that nobody can read, or that reverses what stands beside it")
def names(target: Target) -> None:
    bob, ada = target.person("bob"), target.person("ada")
    for name in (
        "\u200b\u200b",
        "\u3164",
        "gnp.\u202egol",
        "\u2067x\u2069",
        "a\u0085b",
        "a\u2028b",
        "ali\u200dce",
    ):
        answer = bob.post("/api/v1/jobs", json={"spec": {"name": name, "command": "true"}})
        assert answer.status_code == 422, f"a job may have the name {name!a}: {answer.status_code}"
        assert "name" in answer.json()["problems"]
        made = ada.post(
            "/admin/tenants/new/create/", data={"name": f"x{name}", "tickets": "1", "parent": "top"}
        )
        assert made.status_code == 422, f"a team may have the name {name!a}: {made.status_code}"


@attack("a job's name that is a formula for spreadsheets or ends the record of a file")
def files(target: Target) -> None:
    bob, olga = target.person("bob"), target.person("olga")
    for name in ("＝1+1|a", "=1+1", "－1", "＠SUM(A1)"):
        number = bob.submit(name=name, command="true")
        bob.cancel(number)
    text = olga.get("/api/v1/exports/sacct.txt").text
    columns = {len(line.split("|")) for line in text.splitlines()}
    assert len(columns) == 1, f"lines of sacct.txt have {columns} columns"
    sheet = olga.get("/api/v1/exports/jobs.csv").text
    formulas = re.findall(r"(?:^|,)\"?[=＝－＠][^,]*", sheet, re.MULTILINE)
    assert formulas == [], f"cells of jobs.csv are formulas: {formulas}"
