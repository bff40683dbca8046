"""Attacks by load: too many requests, streams, request bodies or logins, and backend servers that hang."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import aiohttp
import httpx

from embedded.processes import working_in
from tests.attack.attacks import CSRF, Person, Target, attack

HTML = {"Accept": "text/html"}
# Seconds after which a request counts as hanging, not only as slow on a busy machine.
HANGS = 45.0
# Most connections to PostgreSQL: `make up` starts two web processes with at most 12 connections each.
CONNECTIONS = 24


@contextmanager
def frozen(folder: Path) -> Iterator[None]:
    """Stops all processes of a server with SIGSTOP for the block. The server is the one whose data is in `folder`."""
    pids = list(working_in(folder))
    assert pids, f"nothing runs in {folder}"
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def connections_of(target: Target, pids: list[int]) -> int:
    """Returns the number of TCP connections that these processes have to PostgreSQL."""
    port = int((target.var / "postgres" / "port").read_text())
    wanted = f"0100007F:{port:04X}"
    sockets: set[str] = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[2] == wanted:
            sockets.add(f"socket:[{fields[9]}]")
    found = 0
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                found += os.readlink(entry) in sockets
            except FileNotFoundError:
                continue
    return found


def resident(pids: list[int]) -> int:
    """Returns the resident memory of these processes in bytes."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                total += int(line.split()[1]) * 1024
    return total


class Watching:
    """A context manager that calls `measure` repeatedly. `most` is the highest value that it returned."""

    def __init__(self, measure: Callable[[], int]) -> None:
        self.measure, self.most, self._over = measure, 0, threading.Event()

    def __enter__(self) -> Watching:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.02):
            self.most = max(self.most, self.measure())


async def ask(
    target: Target, person: Person, paths: list[str], method: str = "GET"
) -> list[tuple[int, dict[str, str], float]]:
    """Sends requests for all paths at the same time. Returns (HTTP status, headers, duration in seconds) for each
    path."""
    cookies = dict(person.http.cookies)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=4 * HANGS)

    async def one(link: aiohttp.ClientSession, path: str) -> tuple[int, dict[str, str], float]:
        begun = time.monotonic()
        async with link.request(method, target.url + path, headers=HTML, allow_redirects=False) as answer:
            await answer.read()
            return answer.status, dict(answer.headers), time.monotonic() - begun

    async with aiohttp.ClientSession(connector=connector, cookies=cookies, timeout=timeout) as link:
        return await asyncio.gather(*(one(link, path) for path in paths))


@attack("200 requests at once take all connections of the database")
def many_requests(target: Target) -> None:
    bob, web = target.person("bob"), target.portal.service_pids("web")
    paths = ["/", "/jobs/", "/cluster/", "/account/preferences/"] * 49 + ["/healthz"] * 4
    with Watching(lambda: connections_of(target, web)) as connections:
        answers = asyncio.run(ask(target, bob, paths))
    statuses = Counter(status for status, _, _ in answers)
    assert set(statuses) <= {200, 503}, f"{dict(statuses)}"
    assert statuses[200] > 20, f"only {statuses[200]} of {len(paths)} were served"
    for path, (status, headers, _) in zip(paths, answers, strict=True):
        assert status == 200 or path != "/healthz", f"/healthz answered {status}"
        assert status == 200 or "Retry-After" in headers, "a 503 does not say when to come again"
    assert connections.most <= CONNECTIONS, (
        f"the web server had {connections.most} connections to the database"
    )
    for name in ("worker", "background"):
        log = (target.var / "log" / f"{name}.log").read_text(errors="replace")
        assert "too many clients" not in log, f"{name} was refused a connection"


@attack("500 open streams take threads and connections")
def many_streams(target: Target) -> None:
    bob, web = target.person("bob"), target.portal.service_pids("web")
    job = bob.get("/api/v1/jobs?limit=1").json()["items"][0]["id"]

    async def hold() -> tuple[Counter[int], int, int, int]:
        cookies = dict(bob.http.cookies)
        connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=6 * HANGS)
        before = threads_of(web)
        async with aiohttp.ClientSession(connector=connector, cookies=cookies, timeout=timeout) as link:

            async def open_one(number: int) -> aiohttp.ClientResponse:
                path = f"/live?topics=job:{job}" if number % 10 else f"/jobs/{job}/log/stream"
                answer = await link.get(target.url + path, headers={"Accept": "text/event-stream"})
                if answer.status == 200:
                    await answer.content.readline()
                return answer

            answers = await asyncio.gather(*(open_one(number) for number in range(500)))
            statuses = Counter(answer.status for answer in answers)
            page = await asyncio.to_thread(bob.get, "/jobs/", headers=HTML)
            held = threads_of(web) - before, connections_of(target, web)
            for answer in answers:
                answer.close()
        return statuses, page.status_code, *held

    statuses, page, threads, connections = asyncio.run(hold())
    assert statuses == {200: 500}, f"of 500 streams: {dict(statuses)}"
    assert page == 200, f"a page beside 500 streams answers {page}"
    assert threads < 100, f"500 streams have {threads} threads"
    assert connections <= CONNECTIONS, f"500 streams hold {connections} connections to the database"


def threads_of(pids: list[int]) -> int:
    return sum(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in pids)


@attack("Redis that stands still holds up whoever submits a job")
def frozen_redis(target: Target) -> None:
    bob = target.person("bob")
    spec = {"spec": {"name": "attack", "command": "true", "gpus_per_worker": 1}}
    headers = {"Origin": target.url, "X-CSRFToken": bob.csrf()}

    def submit() -> tuple[int, float]:
        begun = time.monotonic()
        answer = bob.http.post("/api/v1/jobs", json=spec, headers=headers)
        assert answer.status_code in {200, 201}, answer.text
        return int(answer.json()["id"]), time.monotonic() - begun

    made, usual = submit()
    jobs = [made]
    with frozen(target.var / "valkey" / "data"):
        for _ in range(3):
            made, seconds = submit()
            jobs.append(made)
            assert seconds < usual + 3, f"a submit took {seconds:.1f} s, {usual:.1f} s when Redis answers"
        begun = time.monotonic()
        page = bob.get("/jobs/", headers=HTML)
        seconds = time.monotonic() - begun
        assert page.status_code == 200
        assert seconds < usual + 5, f"a page took {seconds:.1f} s"
        begun = time.monotonic()
        health = target.stranger().get("/healthz")
        assert (health.status_code, health.json()["redis"]) == (503, "failing")
        assert time.monotonic() - begun < 10, "/healthz waits for Redis"
    for job in jobs:
        bob.cancel(job)


@attack("a database that stands still holds requests, and the portal does not come back")
def frozen_database(target: Target) -> None:
    bob = target.person("bob")
    assert bob.get("/jobs/", headers=HTML).status_code == 200  # over a connection that is already open
    with frozen(target.var / "postgres" / "data"):
        paths = ["/jobs/", "/account/login/", "/", "/api/v1/jobs"] * 8 + ["/healthz"]
        answers = asyncio.run(ask(target, bob, paths))
        health_seconds = answers[-1][2]
        longest = max(seconds for _, _, seconds in answers)
        css = target.stranger().get("/static/css/app.css")
    statuses = Counter(status for status, _, _ in answers[:-1])
    assert set(statuses) <= {503, 200}, f"{dict(statuses)}"
    assert statuses[503] >= 24, f"{dict(statuses)}"
    assert longest < 20, f"a request took {longest:.0f} s"
    assert answers[-1][0] == 503, f"/healthz answered {answers[-1][0]}"
    assert health_seconds < 15, f"/healthz took {health_seconds:.0f} s"
    assert css.status_code in {200, 404}, f"static files answer {css.status_code}"
    deadline = time.monotonic() + HANGS
    while (status := bob.get("/jobs/", headers=HTML).status_code) != 200:
        assert status == 503, f"afterwards pages answer {status}"
        assert time.monotonic() < deadline, "the portal did not come back"
        time.sleep(0.5)


def raw(target: Target, *, address: str = "") -> socket.socket:
    """Opens a TCP connection to the portal, from the loopback address `address` or, by default, any address."""
    host, port = target.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=HANGS, source_address=(address, 0))


def answer_of(link: socket.socket) -> str:
    """Returns everything that the portal sends until it closes the connection."""
    said = b""
    try:
        while piece := link.recv(65536):
            said += piece
    except ConnectionResetError:
        pass
    return said.decode(errors="replace")


@attack("a stranger sends 600 MB to an address that does not exist")
def large_bodies(target: Target) -> None:
    size = 600 * 1024 * 1024
    host = target.url.removeprefix("http://")
    for path in ("/nosuch", "/account/login/", "/api/v1/jobs", "/api/v1/nosuch"):
        for extra in ("", "Cookie: fairlot_session=guessed\r\nAuthorization: Bearer fairlot_a_b\r\n"):
            for chunked in (False, True):
                how = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
                with raw(target) as link:
                    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\n{extra}{how}\r\n\r\n"
                    link.sendall(head.encode())
                    piece = bytes(65536)
                    piece = b"10000\r\n" + piece + b"\r\n" if chunked else piece
                    sent = 0
                    try:
                        while sent < size:
                            sent += link.send(piece[sent % len(piece) :])
                    except OSError:
                        pass
                    said = answer_of(link)
                assert sent < 32 * 1024 * 1024, f"{path} took {sent / 1024**2:.0f} MiB"
                assert said == "" or " 413 " in said.splitlines()[0], said[:200]
    # A client that stops sending in time can read the answer.
    with raw(target) as link:
        link.sendall(f"POST /nosuch HTTP/1.1\r\nHost: {host}\r\nContent-Length: {size}\r\n\r\n".encode())
        assert " 413 " in answer_of(link).splitlines()[0]


@attack("one stranger's half-sent bodies keep others from sending theirs")
def many_bodies(target: Target) -> None:
    host = target.url.removeprefix("http://")
    bob = target.person("bob")
    head = f"POST /submit/ HTTP/1.1\r\nHost: {host}\r\nCookie: fairlot_session=guessed\r\nContent-Length: 100\r\n\r\n"
    with ExitStack() as stack:
        for _ in range(700):  # more than the two web processes receive at the same time
            link = stack.enter_context(raw(target, address="127.0.0.2"))
            link.sendall(f"{head}abc".encode())
        answers = [bob.http.post("/account/login/", data={"username": "nobody"}) for _ in range(20)]
    statuses = Counter(answer.status_code for answer in answers)
    assert 503 not in statuses, f"{dict(statuses)}"


@attack("half-sent headers and bodies stay open")
def half_sent(target: Target) -> None:
    host = target.url.removeprefix("http://")
    half = {
        "nothing": "",
        "headers": f"GET / HTTP/1.1\r\nHost: {host}\r\nX-A: b\r\n",
        "login": f"POST /account/login/ HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100\r\n\r\nabc",
        "nosuch": f"POST /nosuch HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100\r\n\r\nabc",
        "chunked": f"POST /api/v1/jobs HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    }

    def wait(text: str) -> tuple[str, float]:
        begun = time.monotonic()
        with raw(target) as link:
            link.sendall(text.encode())
            return answer_of(link), time.monotonic() - begun

    with ThreadPoolExecutor(len(half)) as pool:
        ends = dict(zip(half, pool.map(wait, half.values()), strict=True))
    for what, (said, seconds) in ends.items():
        assert seconds < HANGS, f"{what}: open for {seconds:.0f} s"
        if what not in {"nothing", "headers"}:
            assert " 408 " in said.splitlines()[0], f"{what}: {said[:100]}"


@attack("40 logins at once with unknown names take all memory")
def many_logins(target: Target) -> None:
    bob, web = target.person("bob"), target.portal.service_pids("web")
    form = CSRF.search(target.stranger().get("/account/login/").text)
    assert form
    link = target.stranger()
    token = CSRF.search(link.get("/account/login/").text)
    assert token
    cookies = dict(link.cookies)

    def log_in(number: int) -> int:
        data = {"username": f"nobody-{number}", "password": "x" * 20, "csrfmiddlewaretoken": token[1]}
        return httpx.post(
            f"{target.url}/account/login/", data=data, cookies=cookies, headers={"Origin": target.url},
            timeout=4 * HANGS,
        ).status_code  # fmt: skip

    before = resident(web)
    with Watching(lambda: resident(web)) as memory, ThreadPoolExecutor(41) as pool:
        logins = [pool.submit(log_in, number) for number in range(40)]
        page = bob.get("/jobs/", headers=HTML).status_code
        statuses = Counter(login.result() for login in logins)
    assert page == 200, f"a page beside 40 logins answers {page}"
    assert set(statuses) <= {200, 403, 429, 503}, f"{dict(statuses)}"
    assert memory.most - before < 500 * 1024**2, f"web grew by {(memory.most - before) / 1024**2:.0f} MiB"
