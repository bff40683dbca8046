"""Attacks with event streams that stay open after their reader has lost the right to read them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import httpx

from tests.attack.attacks import Person, Target, attack

LONGEST = 60.0  # seconds; the portal checks a stream's rights every 15 s


def held_after(person: Person, paths: list[str], happens: Callable[[], None]) -> dict[str, float]:
    """Opens a stream for each path and calls `happens`. Returns, by path, for how many seconds the stream stayed open
    after this call.

    The value is at least LONGEST for a stream that does not end.
    """
    ends: dict[str, float] = {}
    opened = threading.Barrier(len(paths) + 1)

    def read(path: str) -> None:
        with person.http.stream("GET", path, headers={"Accept": "text/event-stream"}) as answer:
            pieces = answer.iter_raw()
            next(pieces)
            opened.wait()
            try:
                for _ in pieces:
                    if time.monotonic() - happened[0] > LONGEST:
                        break
            except httpx.HTTPError:
                pass
        ends[path] = time.monotonic()

    happened = [float("inf")]
    threads = [threading.Thread(target=read, args=(path,), daemon=True) for path in paths]
    for thread in threads:
        thread.start()
    opened.wait(60)
    happens()
    happened[0] = time.monotonic()
    for thread in threads:
        thread.join(2 * LONGEST)
    return {path: ends.get(path, float("inf")) - happened[0] for path in paths}


def log_out(person: Person) -> None:
    assert person.post("/account/logout/").status_code == 302


def streams_of(person: Person) -> list[str]:
    job = person.get("/api/v1/jobs?limit=1").json()["items"][0]["id"]
    return [f"/live?topics=job:{job}", f"/jobs/{job}/log/stream"]


@attack("streams go on after a logout")
def after_logout(target: Target) -> None:
    bob = target.sign_in("bob", target.portal.passwords["bob"])
    held = held_after(bob, streams_of(bob), lambda: log_out(bob))
    for path, seconds in held.items():
        assert seconds < 40, f"{path} went on for {seconds:.0f} s after the logout"
