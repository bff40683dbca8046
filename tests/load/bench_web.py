"""`make bench-web`: measures a whole portal, with a working scheduler, under load.

The load is many users who request pages, open event streams and bulk submits. The benchmark starts a portal in a
temporary folder, on a loopback address only. Each user requests one page after another, with pauses in between, as a
person does. The portal, PostgreSQL, Valkey, the jobs and the benchmark share the cores of this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import psycopg2

from tests.load.http import Answer, Closed, Connection, request
from tests.load.processes import cpu_seconds, machine_seconds
from tests.proof.portal import ROOT, RUN, RunningPortal, running_portal

PATIENCE = 60.0  # seconds after which a request without an answer counts as an error
PAGE = {"Accept": "text/html"}
JSON = {"Accept": "application/json"}


@dataclass(frozen=True)
class Page:
    """A page or API call that users request; `weight` is its share of all requests, in percent."""

    name: str
    weight: int
    path: Callable[[dict[str, Any], random.Random], str]
    headers: dict[str, str]
    by_token: bool = False


def _of_a_job(after: str = "") -> Callable[[dict[str, Any], random.Random], str]:
    return lambda user, dice: f"/jobs/{dice.choice(user['jobs'])}/{after}"


def _part(target: str) -> dict[str, str]:
    return {"Accept": "text/html", "HX-Request": "true", "HX-Target": f"div#{target}"}


MIX = (
    Page("home", 15, lambda user, dice: "/", PAGE),
    Page("jobs", 15, lambda user, dice: "/jobs/", PAGE),
    Page("job", 15, _of_a_job(), PAGE),
    Page("cluster", 10, lambda user, dice: "/cluster/", PAGE),
    Page("share", 5, lambda user, dice: "/share/", PAGE),
    Page("usage", 5, lambda user, dice: "/usage/", PAGE),
    Page("API: jobs", 10, lambda user, dice: "/api/v1/jobs?limit=20", JSON, by_token=True),
    Page(
        "API: a job", 10, lambda user, dice: f"/api/v1/jobs/{dice.choice(user['jobs'])}", JSON, by_token=True
    ),
    Page("refresh: home", 4, lambda user, dice: "/", _part("home-body")),
    Page("refresh: jobs", 5, lambda user, dice: "/jobs/", _part("jobs-table")),
    Page("refresh: job", 6, _of_a_job(), _part("job-head")),
)


@dataclass
class Laps:
    """The measurements: seconds and bytes of the successful requests for each page, and the count of each HTTP
    status."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    statuses: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, elapsed: float, status: str, size: int = 0) -> None:
        self.statuses[status] += 1
        if status == "200":
            self.seconds.setdefault(name, []).append(elapsed)
            self.bytes[name] += size


@dataclass
class Bench:
    portal: RunningPortal
    scene: dict[str, Any]

    @property
    def host(self) -> str:
        return urlsplit(self.portal.url).netloc

    # --- pages ---------------------------------------------------------------------------------------------

    async def pages(self, users: int, think: float, seconds: float) -> Laps:
        laps = Laps()
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for number, user in enumerate(self.scene["users"][:users]):
                begins = think * number / users  # users start at different moments within the first pause
                group.create_task(
                    self._use(user, random.Random(number), begins=begins, think=think, until=until, laps=laps)
                )
        return laps

    async def _use(
        self,
        user: dict[str, Any],
        dice: random.Random,
        *,
        begins: float,
        think: float,
        until: float,
        laps: Laps,
    ) -> None:
        await asyncio.sleep(begins)
        connection = None
        weights = [page.weight for page in MIX]
        while time.monotonic() < until:
            page = dice.choices(MIX, weights)[0]
            asked = request("GET", page.path(user, dice), self._signed(user, page), host=self.host)
            begun = time.perf_counter()
            try:
                if connection is None or not connection.is_open:
                    connection = await Connection.open(self.portal.port)
                answer = await connection.ask(asked, within=PATIENCE)
            except (Closed, OSError, TimeoutError) as error:
                laps.add(page.name, 0, type(error).__name__)
                connection = None
            else:
                laps.add(page.name, time.perf_counter() - begun, str(answer.status), len(answer.body))
            await asyncio.sleep(think)
        if connection is not None:
            connection.close()

    def _signed(self, user: dict[str, Any], page: Page) -> dict[str, str]:
        if page.by_token:
            return page.headers | {"Authorization": f"Bearer {user['token']}"}
        return page.headers | {"Cookie": f"{self.scene['cookie']}={user['session']}"}

    # --- streams -------------------------------------------------------------------------------------------

    async def streams(self, count: int) -> tuple[list[Connection], Counter[str]]:
        """Opens `count` event streams at the same time. Returns their connections, and the count of each HTTP status or
        error."""
        users = self.scene["users"]
        statuses: Counter[str] = Counter()
        opened: list[Connection] = []

        async def one(number: int) -> None:
            user = users[number % len(users)]
            cookie = {"Cookie": f"{self.scene['cookie']}={user['session']}", "Accept": "text/event-stream"}
            asked = request("GET", f"/live?topics={user['topics']}", cookie, host=self.host)
            try:
                connection = await Connection.open(self.portal.port)
                statuses[str(await connection.stream(asked, within=PATIENCE))] += 1
                opened.append(connection)
            except (Closed, OSError, TimeoutError) as error:
                statuses[type(error).__name__] += 1

        await asyncio.gather(*(one(number) for number in range(count)))
        return opened, statuses

    # --- submits -------------------------------------------------------------------------------------------

    async def submit_in_bulk(self, jobs: int, a_call: int) -> tuple[float, Counter[str]]:
        """Submits `jobs` jobs by consecutive bulk calls of at most `a_call` specs, until a call fails.

        Returns the accepted jobs per second, and the count of each HTTP status.
        """
        statuses: Counter[str] = Counter()
        connection = await Connection.open(self.portal.port)
        user, done, begun = self.scene["users"][0], 0, time.perf_counter()
        while done < jobs:
            specs = [self._spec(done + number) for number in range(min(a_call, jobs - done))]
            answer = await self._post(connection, user, "/api/v1/jobs/bulk", {"specs": specs})
            statuses[str(answer.status)] += 1
            if answer.status != 201:
                break
            done += len(specs)
        connection.close()
        return done / (time.perf_counter() - begun), statuses

    async def submit_singly(self, jobs: int, clients: int) -> tuple[float, Counter[str]]:
        """Submits `jobs` jobs by `clients` concurrent clients, each of which submits one job after the other.

        Returns the accepted jobs per second, and the count of each HTTP status.
        """
        statuses: Counter[str] = Counter()

        async def client(number: int) -> None:
            connection = await Connection.open(self.portal.port)
            user = self.scene["users"][number % len(self.scene["users"])]
            for one in range(jobs // clients):
                answer = await self._post(connection, user, "/api/v1/jobs", {"spec": self._spec(one)})
                statuses[str(answer.status)] += 1
            connection.close()

        begun = time.perf_counter()
        await asyncio.gather(*(client(number) for number in range(clients)))
        return statuses["201"] / (time.perf_counter() - begun), statuses

    @staticmethod
    def _spec(number: int) -> dict[str, Any]:
        return {"name": f"sweep {number}", "command": f"sleep {600 + number}", "environment": "system"}

    async def _post(
        self, connection: Connection, user: dict[str, Any], path: str, body: dict[str, Any]
    ) -> Answer:
        headers = JSON | {"Content-Type": "application/json", "Authorization": f"Bearer {user['token']}"}
        asked = request("POST", path, headers, json.dumps(body).encode(), host=self.host)
        return await connection.ask(asked, within=10 * PATIENCE)


@dataclass
class Watch:
    """Counts the database's client connections once a second, in a background task."""

    url: str
    most: int = 0
    counts: list[int] = field(default_factory=list)

    async def run(self) -> None:
        link = psycopg2.connect(self.url)
        link.autocommit = True
        try:
            with link.cursor() as cursor:
                while True:
                    cursor.execute(
                        "SELECT count(*) FROM pg_stat_activity"
                        " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
                    )
                    self.counts.append(cursor.fetchone()[0])
                    await asyncio.sleep(1)
        finally:
            link.close()


def in_portal(portal: RunningPortal, name: str, **arguments: Any) -> dict[str, Any]:
    """Runs the function `name` of scene.py in a separate process, with the portal's settings. Returns the function's
    result.

    `arguments`: the function's arguments. Raises RuntimeError with the output of the process if the function fails.
    """
    done = subprocess.run(
        [*RUN, sys.executable, "-m", "tests.load.scene", name, json.dumps(arguments)],
        cwd=ROOT, env=portal._env(), capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def database_of(portal: RunningPortal) -> str:
    done = subprocess.run(
        [*RUN, sys.executable, "-c", "import os; print(os.environ['DATABASE_URL'])"],
        cwd=ROOT, env=portal._env(), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout.strip()


async def measure(bench: Bench, options: argparse.Namespace) -> None:
    watch = Watch(database_of(bench.portal))
    watching = asyncio.create_task(watch.run())
    opened, statuses = await bench.streams(options.streams)
    if options.streams:
        print(f"{len(opened)} streams open: {_told(statuses)}", flush=True)
    if options.users:
        rounds = asyncio.create_task(
            asyncio.to_thread(
                in_portal, bench.portal, "rounds",
                cluster=bench.scene["cluster"], seconds=options.warm_up + options.seconds,
            )
        )  # fmt: skip
        await bench.pages(options.users, options.think, options.warm_up)
        watch.counts.clear()
        before, machine = cpu_seconds(bench.portal.var), machine_seconds()
        begun = time.perf_counter()
        laps = await bench.pages(options.users, options.think, options.seconds)
        elapsed = time.perf_counter() - begun
        after, machine = cpu_seconds(bench.portal.var), machine_seconds() - machine
        report_pages(options, laps, elapsed)
        report_cost(before, after, machine, elapsed, sum(map(len, laps.seconds.values())))
        print(f"database connections: {_spread(watch.counts)}")
        if opened:
            print(f"streams still open: {sum(one.is_open for one in opened)} of {len(opened)}")
        report_rounds(await rounds)
    for connection in opened:
        connection.close()
    if options.submits:
        for what, run in (
            (
                f"{options.submits_a_call} specs a call",
                bench.submit_in_bulk(options.submits, options.submits_a_call),
            ),
            ("one by one, 8 clients", bench.submit_singly(min(400, options.submits), 8)),
        ):
            before = cpu_seconds(bench.portal.var)
            rate, statuses = await run
            print(f"submits, {what}: {rate:.0f} jobs a second ({_told(statuses)}); ", end="")
            print(_cost(before, cpu_seconds(bench.portal.var)), flush=True)
    watching.cancel()


def report_pages(options: argparse.Namespace, laps: Laps, elapsed: float) -> None:
    every = [lap for page in laps.seconds.values() for lap in page]
    errors = {status: count for status, count in laps.statuses.items() if status != "200"}
    print(f"{options.users} users who think for {options.think:g} s, for {elapsed:.0f} s")
    print(f"{'page':<16} {'count':>6} {'median':>9} {'p95':>9} {'slowest':>9} {'size':>9}")
    for page in MIX:
        if page.name in laps.seconds:
            size = laps.bytes[page.name] / len(laps.seconds[page.name]) / 1024
            print(f"{page.name:<16} {_quantiles(laps.seconds[page.name])} {size:>5.0f} KiB")
    print(f"{'all':<16} {_quantiles(every)}")
    print(
        f"{len(every) / elapsed:.1f} requests a second; errors: {_told(Counter(errors)) or 'none'}",
        flush=True,
    )


def report_cost(
    before: dict[str, float], after: dict[str, float], machine: float, elapsed: float, requests: int
) -> None:
    spent = {name: after[name] - before.get(name, 0.0) for name in after}
    each = ", ".join(
        f"{name} {1000 * spent.get(name, 0) / max(1, requests):.2f}"
        for name in ("web", "PostgreSQL", "bench")
    )
    print(f"processor milliseconds a request: {each}")
    print(
        f"processor seconds a second: {_cost(before, after, per=elapsed)}; whole machine {machine / elapsed:.2f}"
    )


def report_rounds(found: dict[str, Any]) -> None:
    shortest, longest = found["quanta"]
    print(f"quantum rounds: {found['rounds']}, due every {shortest:.0f} to {longest:.0f} s, ", end="")
    print(f"latest by {found['overdue']:.1f} s")


def _cost(before: dict[str, float], after: dict[str, float], per: float = 1.0) -> str:
    spent = {name: (after[name] - before.get(name, 0.0)) / per for name in after}
    return ", ".join(
        f"{name} {some:.2f}"
        for name, some in sorted(spent.items(), key=lambda item: -item[1])
        if some > 0.004
    )


def _quantiles(laps: Iterable[float]) -> str:
    found = sorted(laps)
    if not found:
        return f"{0:>6}"
    p95 = found[min(len(found) - 1, int(0.95 * len(found)))]
    return f"{len(found):>6} {1000 * found[len(found) // 2]:>6.0f} ms {1000 * p95:>6.0f} ms {1000 * found[-1]:>6.0f} ms"


def _spread(counts: list[int]) -> str:
    return f"{min(counts)} to {max(counts)}" if counts else "not looked at"


def _told(statuses: Counter[str]) -> str:
    return ", ".join(f"{count} × {status}" for status, count in statuses.most_common())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.load.bench_web", description=__doc__)
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument(
        "--think", type=float, default=1.0, help="Seconds between an answer and the next request."
    )
    parser.add_argument("--seconds", type=float, default=45.0, help="How long it is measured.")
    parser.add_argument("--warm-up", type=float, default=8.0)
    parser.add_argument("--streams", type=int, default=500, help="Event streams that are open meanwhile.")
    parser.add_argument(
        "--submits", type=int, default=0, help="Afterwards, so many jobs in bulk, and some singly."
    )
    parser.add_argument("--submits-a-call", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=3000, help="Jobs that have ended before.")
    parser.add_argument("--waiting", type=int, default=300, help="Jobs that wait.")
    parser.add_argument("--wait", action="store_true", help="Measure nothing; serve until Ctrl-C.")
    options = parser.parse_args()
    with running_portal() as portal:
        scene = in_portal(
            portal, "fill", users=max(options.users, 10), jobs=options.jobs, waiting=options.waiting
        )
        if options.wait:
            (portal.var / "scene.json").write_text(json.dumps(scene))
            print(portal.url, portal.var, flush=True)
            portal.process.wait()  # type: ignore[union-attr]
            return
        asyncio.run(measure(Bench(portal, scene), options))


if __name__ == "__main__":
    main()
