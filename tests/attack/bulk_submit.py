"""Attacks that submit many jobs in one call: for other users, more than the API accepts, or more than the queue
allows."""

from __future__ import annotations

from tests.attack.attacks import Target, attack

SPEC = {"name": "attack", "command": "sleep 600", "environment": "system"}


@attack("a manager of another team submits in bulk for Astro")
def for_another_team(target: Target) -> None:
    charlie, told = target.person("charlie"), []
    for team in ("astro", "orion"):  # Orion does not exist
        answer = charlie.post("/api/v1/jobs/bulk", json={"specs": [SPEC] * 3, "team": team})
        assert answer.status_code == 422, f"answered {answer.status_code}: {answer.text[:300]}"
        told.append(answer.text.replace(team, "TEAM"))
    assert told[0] == told[1], f"tells Charlie whether Astro exists: {told}"


@attack("more jobs in one call than are accepted")
def more_than_accepted(target: Target) -> None:
    bob = target.person("bob")
    newest = bob.get("/api/v1/jobs?limit=1").json()["items"][0]["id"]
    for count in (1001, 20_000):
        answer = bob.post("/api/v1/jobs/bulk", json={"specs": [SPEC] * count, "atomic": False})
        assert answer.status_code in {400, 413, 422}, f"{count} specs: answered {answer.status_code}"
    assert bob.get("/api/v1/jobs?limit=1").json()["items"][0]["id"] == newest, "some were queued"


@attack("a session without the CSRF token submits in bulk")
def without_the_token(target: Target) -> None:
    http = target.person("bob").http
    answer = http.post("/api/v1/jobs/bulk", json={"specs": [SPEC]})
    assert answer.status_code == 403, f"answered {answer.status_code}: {answer.text[:300]}"
