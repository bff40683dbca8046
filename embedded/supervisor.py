"""Runs `make up`: starts all services in order, restarts services that end, and finally stops all services in order.

The supervisor uses one thread and one selector. A pidfd reports the end of each process, and a socket reports signals.
So the supervisor polls only while a service is starting.
"""

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from embedded.display import Display
from embedded.environment import ROOT, AlreadyRunningError, Home, code_fingerprint, given, manage
from embedded.leftovers import end_leftovers, guarded, service_mark
from embedded.processes import StartError, kill_group, spawn
from embedded.services import Program, ServerService, Service, portal_programs

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PREPARE_PATIENCE = 300.0
PARK_PATIENCE = 90.0  # seconds; jobs get their grace period to write a checkpoint
READY_INTERVAL, READY_PATIENCE = 0.1, 60.0
LEFTOVER_PATIENCE = 8.0  # seconds; the guard of a killed supervisor ends the same processes meanwhile
ONE_REQUEST = 0.3  # seconds within which several signals count as one request to stop
FIRST_PORT, LAST_PORT = 8000, 8099
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class StopRequestedError(Exception):
    """Raised when the user requests a stop before all services have started."""


class Supervisor:
    def __init__(self, home: Home, display: Display) -> None:
        self.home = home
        self.display = display
        self.host, self.port = _address()
        self.url = os.environ.get("PUBLIC_URL") or f"http://{self.host}:{self.port}"
        self.servers = [ServerService(server) for server in home.servers()]
        self.programs: list[Program] = []
        self.environment: dict[str, str] = {}
        self.selector = selectors.DefaultSelector()
        self.requests = 0  # how often a stop has been requested
        self.asked_at = float("-inf")
        self.prepared = False

    def run(self) -> int:
        """Starts all services, supervises them until the user requests a stop, and then stops them.

        Returns the exit status: 0 after a requested stop, 1 if a service could not be started.
        """
        with self._signals(), guarded(self.home):
            try:
                self._start()
                self._supervise()
            except StopRequestedError:
                return 0
            except StartError as error:
                self.display.say(f"error: {error}")
                return 1
            finally:
                self._stop()
        return 0

    # --- start ---------------------------------------------------------------------------------

    def _start(self) -> None:
        end_leftovers(self.home, LEFTOVER_PATIENCE)
        for service in self.servers:
            service.server.interrupted = self._asked_to_stop
            try:
                self._start_service(service)
            except StartError:
                self._give_in_to_requests()
                raise
            self._give_in_to_requests()
        self.environment = self.home.environment([service.server for service in self.servers], self.url)
        first_time = self._prepare()
        self.programs = portal_programs(self.host, self.port, self.home.logs, self.environment)
        web, *others = self.programs
        self._start_service(web)
        self._await_readiness(web)  # before the other programs start, so that users can log in sooner
        self._announce(first_time=first_time)
        for program in others:
            self._give_in_to_requests()
            self._start_service(program)

    def _await_readiness(self, service: Service) -> None:
        """Waits until the service is ready or has ended, at most READY_PATIENCE seconds.

        Raises StopRequestedError if the user requests a stop while waiting.
        """
        deadline = time.monotonic() + READY_PATIENCE
        while service.state == "starting" and time.monotonic() < deadline:
            self._wait(READY_INTERVAL)
            service.check()
            self._show()
            self._give_in_to_requests()

    def _prepare(self) -> bool:
        """Migrates the database and collects static files. At the first start of an embedded database, also loads the
        demo.

        Does nothing if the embedded database was already prepared with the same code. Returns whether this was the
        first start of an embedded database.
        """
        own = not given("DATABASE_URL")  # the demo must not be loaded into a database that DATABASE_URL names
        first_time = own and not self.home.demo_loaded
        code = code_fingerprint()
        if own and self.home.is_prepared(code):
            self.prepared = True
            return False
        demo = ["--demo", str(self.home.demo_passwords)] if first_time else []
        self.display.say(
            "preparing the database and loading the demo data" if first_time else "preparing the database"
        )
        try:
            self._run_to_its_end(
                "prepare", [sys.executable, "-m", "embedded.prepare", *demo], PREPARE_PATIENCE
            )
        except StartError:
            self._give_in_to_requests()
            raise
        self.prepared = True
        if own:
            self.home.note_prepared(code)
        return first_time

    def _announce(self, *, first_time: bool) -> None:
        self.home.tell({"what": "Fairlot", "pid": os.getpid(), "url": self.url})
        message = [f"Fairlot: {self.url}"]
        passwords = self.home.demo_passwords
        if first_time and passwords.exists():
            message += [
                "",
                "New passwords of the demo users:",
                passwords.read_text().rstrip(),
                f"(stored in {passwords}, which only you can read)",
            ]
        elif passwords.exists():
            message += [f"The passwords of the demo users are in {passwords}, which only you can read."]
        message += ["Press Ctrl-C to stop Fairlot and its servers.", ""]
        self.display.say("\n".join(message))

    def _start_service(self, service: Service) -> None:
        service.start()
        self._watch(service)
        self._check(service)
        self._show()

    def _check(self, service: Service) -> None:
        """Updates the state of the service. If the service has just become ready, shows its messages for the user."""
        if service.check():
            for notice in service.notices():
                self.display.say(notice)

    # --- keep running --------------------------------------------------------------------------

    def _supervise(self) -> None:
        while not self.requests:
            self._wait(self._timeout())
            for service in self._services():
                if service.restart_at is not None and time.monotonic() >= service.restart_at:
                    self._restart(service)
                self._check(service)
            self._show()

    def _restart(self, service: Service) -> None:
        try:
            self._start_service(service)
        except StartError as error:
            delay = service.plan_restart()
            self.display.say(f"{error}\nFairlot tries to start {service.name} again in {delay:g} s")

    def _timeout(self) -> float | None:
        """Returns the seconds until the next restart or readiness check; None if no restart or check is scheduled."""
        now = time.monotonic()
        moments = [s.restart_at - now for s in self._services() if s.restart_at is not None]
        if any(s.state == "starting" for s in self._services()):
            moments.append(READY_INTERVAL)
        return max(0.0, min(moments)) if moments else None

    def _wait(self, timeout: float | None) -> None:
        """Waits for signals and for the end of processes, and handles them.

        `timeout`: the maximum time to wait, in seconds; None means no maximum.
        """
        for key, _ in self.selector.select(timeout):
            if key.data is None:
                self._take_signals()
                continue
            self.selector.unregister(key.fileobj)
            os.close(key.fd)
            if isinstance(key.data, Service):
                self.display.say(f"{time.strftime('%H:%M:%S')} {key.data.note_death()}")

    def _watch(self, service: Service) -> None:
        if service.process is not None:
            self.selector.register(os.pidfd_open(service.process.pid), selectors.EVENT_READ, service)

    # --- stop ----------------------------------------------------------------------------------

    def _stop(self) -> None:
        """Stops all services: beat first, so that it sends no new tasks, and the servers last, because all others need
        them."""
        if any(service.process for service in self._services()):
            self.display.say("stopping all services; press Ctrl-C again to kill them immediately")
        by_name = {program.name: program for program in self.programs}
        for name in ("beat", "worker", "background", "web"):
            self._stop_service(by_name.get(name))
        if self.prepared:
            self._park()
        self._stop_service(by_name.get("watch"))
        for service in reversed(self.servers):
            self._stop_service(service)
        end_leftovers(self.home, patience=0)

    def _stop_service(self, service: Service | None) -> None:
        if service is None:
            return
        service.restart_at = None
        if service.process is not None:
            service.state = "stopping"
            self._show()
            self._end(service.process, service.stop_signal, service.patience)
            service.process = None
        service.state = "stopped"
        self._show()

    def _park(self) -> None:
        """Stops the jobs on this machine and books their GPU time.

        Each job first gets its grace period to write a checkpoint.
        """
        self.display.say("stopping the jobs on this machine")
        try:
            self._run_to_its_end("park", manage("park"), PARK_PATIENCE)
        except StartError as error:
            self.display.say(f"{error}\nSome jobs may still run. The next `make up` takes them over.")

    # --- processes -----------------------------------------------------------------------------

    def _run_to_its_end(self, name: str, argv: list[str], patience: float) -> None:
        """Runs the command `argv` and waits for it to end. The output of the command goes to the log file of `name`.

        Kills the command and raises StartError if it takes longer than `patience` seconds, or if the user requests a
        stop. Also raises StartError if the command fails.
        """
        log = self.home.logs / f"{name}.log"
        offset = log.stat().st_size if log.exists() else 0
        marked = {**self.environment, **service_mark(name)}
        process = spawn(argv, log=log, env=marked, cwd=ROOT, at_our_death="KILL")
        if not self._await_end(process, patience):
            self._kill(process)
            raise StartError(f"the step {name} was interrupted or took too long")
        if process.returncode:
            said = log.read_bytes()[offset:].decode(errors="replace")
            raise StartError(f"the step {name} failed; its log {log} ends with:\n{said[-3000:].strip()}")

    def _end(self, process: subprocess.Popen[bytes], how: signal.Signals, patience: float) -> None:
        if process.poll() is None:
            process.send_signal(how)
            self._await_end(process, patience)
        self._kill(process)

    def _await_end(self, process: subprocess.Popen[bytes], patience: float) -> bool:
        """Waits for the process to end, and returns whether it did.

        Returns False after `patience` seconds, or as soon as the user requests a stop during this call.
        """
        asked_before = self.requests
        deadline = time.monotonic() + patience
        pidfd = os.pidfd_open(process.pid)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(pidfd, selectors.EVENT_READ)
                selector.register(self.signals, selectors.EVENT_READ)
                while process.poll() is None:
                    left = deadline - time.monotonic()
                    if left <= 0 or self.requests > asked_before:
                        return False
                    for key, _ in selector.select(left):
                        if key.fileobj is self.signals:
                            self._take_signals()
        finally:
            os.close(pidfd)
        return True

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        kill_group(process.pid)
        process.wait()

    # --- signals and show ----------------------------------------------------------------------

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Context manager during which STOP_SIGNALS do not end the process, but write bytes to the socket
        `self.signals`."""
        self.signals, written = socket.socketpair()
        self.signals.setblocking(False)
        written.setblocking(False)
        # SIGINT needs a handler, because a shell that starts a program with `&` makes the program ignore SIGINT.
        before = {number: signal.signal(number, lambda *_: None) for number in STOP_SIGNALS}
        descriptor_before = signal.set_wakeup_fd(written.fileno())
        self.selector.register(self.signals, selectors.EVENT_READ)
        try:
            yield
        finally:
            signal.set_wakeup_fd(descriptor_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            self.selector.close()
            self.signals.close()
            written.close()

    def _take_signals(self) -> None:
        """Reads the received signals and counts them as stop requests.

        Signals within ONE_REQUEST seconds count as one request, because make, the shell and the terminal may each pass
        on the same Ctrl-C.
        """
        self.signals.recv(64)
        now = time.monotonic()
        if now - self.asked_at > ONE_REQUEST:
            self.requests += 1
        self.asked_at = now

    def _asked_to_stop(self) -> bool:
        self._wait(0)
        return self.requests > 0

    def _give_in_to_requests(self) -> None:
        if self._asked_to_stop():
            raise StopRequestedError

    def _services(self) -> list[Service]:
        return [*self.servers, *self.programs]

    def _show(self) -> None:
        self.display.show([service.line() for service in self._services()])


def up() -> int:
    """Runs `make up` in this process, and returns the exit status.

    Returns 1 if Fairlot already runs with this data folder.
    """
    home, display = Home.from_environment(), Display()
    try:
        with home.locked("Fairlot"):
            return Supervisor(home, display).run()
    except AlreadyRunningError as running:
        where = running.about.get("url", "the address is not known until Fairlot has started")
        display.say(
            f"Fairlot already runs in {home.var}: {where} (process ID {running.about.get('pid', 'unknown')})"
        )
    except StartError as error:
        display.say(f"error: {error}")
    return 1


def _address() -> tuple[str, int]:
    """Returns (host, port) for the web server.

    Both come from the variables HOST and PORT. By default, the host is 127.0.0.1, and the port is the first free port
    in a fixed range. Raises StartError if no port is free, or if PORT is in use. Also raises StartError if the host is
    not a loopback address and FAIRLOT_LOCAL_BEYOND_LOOPBACK is not set.
    """
    host = os.environ.get("HOST") or "127.0.0.1"
    permitted = os.environ.get("FAIRLOT_LOCAL_BEYOND_LOOPBACK", "").lower() in ("1", "true", "yes", "on")
    if host not in LOOPBACK and not permitted:
        raise StartError(
            f"HOST={host} would let users on other machines run programs on this machine. "
            "If everyone who can reach the portal may do this, set FAIRLOT_LOCAL_BEYOND_LOOPBACK=true"
        )
    if named := os.environ.get("PORT"):
        if not _is_free(host, int(named)):
            raise StartError(
                f"port {named} of {host} is in use: set PORT to a free port, or unset PORT so that Fairlot chooses one"
            )
        return host, int(named)
    for port in range(FIRST_PORT, LAST_PORT + 1):
        if _is_free(host, port):
            return host, port
    raise StartError(
        f"all ports from {FIRST_PORT} to {LAST_PORT} of {host} are in use: set PORT to a free port"
    )


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family):
            return True
    except OSError:
        return False
