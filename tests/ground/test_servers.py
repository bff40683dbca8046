"""The embedded servers start, stop and recover after kills without losing committed data."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psycopg2
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from embedded.processes import StartError, working_in
from embedded.servers import CARELESS, Postgres, Valkey, both
from tests.ground.settings_read import ROOT
from tests.waiting import wait_for


@pytest.fixture
def var():
    """Yields a folder that PostgreSQL's unprivileged user may enter, unlike pytest's tmp_path."""
    folder = Path(tempfile.mkdtemp(prefix="fairlot-servers-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def postgres(var):
    server = Postgres(var, CARELESS)
    yield server
    server.stop()


def query(server, sql):
    connection = psycopg2.connect(server.url)
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall() if cursor.description else None
    finally:
        connection.close()


def refused(url):
    try:
        psycopg2.connect(url).close()
    except psycopg2.OperationalError:
        return True
    return False


def test_data_port_and_password_outlive_a_stop(var):
    with both(var, careless=True) as (postgres, valkey):
        urls = (postgres.url, valkey.url)
        query(postgres, "CREATE TABLE kept AS SELECT 42 AS answer")
        with redis.Redis.from_url(valkey.url) as client:
            client.set("kept", "42")
    with both(var, careless=True) as (postgres, valkey):
        assert (postgres.url, valkey.url) == urls
        assert query(postgres, "SELECT answer FROM kept") == [(42,)]
        with redis.Redis.from_url(valkey.url) as client:
            assert client.get("kept") == b"42"
    assert list(working_in(postgres.data)) == list(working_in(valkey.data)) == []


def test_nobody_comes_in_without_the_password(var):
    with both(var, careless=True) as (postgres, valkey):
        assert refused(postgres.url.replace(":" + postgres.password_file.read_text(), ":guessed"))
        assert refused(postgres.url.replace(":" + postgres.password_file.read_text(), ""))
        with (
            redis.Redis(port=valkey.port, retry=Retry(NoBackoff(), 0)) as client,
            pytest.raises(redis.AuthenticationError),
        ):
            client.ping()
        for server in (postgres, valkey):
            assert server.password_file.stat().st_mode & 0o777 == 0o600
            assert len(server.password_file.read_text()) >= 40
            command_line = Path(f"/proc/{server.process.pid}/cmdline").read_text()
            assert server.password_file.read_text() not in command_line


def test_they_listen_on_loopback_only(var):
    with both(var, careless=True) as servers:
        listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        listening += [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
        for server in servers:
            hosts = {
                address.split(":")[0]
                for _, address, _, state, *_ in listening
                if state == "0A" and int(address.split(":")[1], 16) == server.port
            }
            assert hosts == {"0100007F"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has another user to become")
def test_root_hands_them_to_an_unprivileged_user_even_below_a_closed_folder(var):
    closed = var / "closed"
    closed.mkdir(mode=0o700)
    umask = os.umask(0o077)
    try:
        for folder in (var / "open", closed / "inside"):
            with both(folder, careless=True) as servers:
                assert query(servers[0], "SELECT 1") == [(1,)]
                for server in servers:
                    status = Path(f"/proc/{server.process.pid}/status").read_text()
                    assert "\nUid:\t0" not in status
    finally:
        os.umask(umask)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has another user to become")
def test_root_may_have_all_of_it_in_a_folder_of_its_own(var, monkeypatch):
    """The servers start although their programs and data are in a folder that only root may enter, as in a checkout in
    /root."""
    closed = var / "closed"
    closed.mkdir(mode=0o700)
    package = Postgres(var).programs.parents[1]
    for folder in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(folder, closed / folder.name, symlinks=True)
    shutil.copy(Valkey(var).program, closed / "valkey-server")
    monkeypatch.setenv("FAIRLOT_POSTGRES_BIN", str(closed / package.name / "pginstall" / "bin"))
    monkeypatch.setenv("FAIRLOT_VALKEY_SERVER", str(closed / "valkey-server"))
    with both(closed / "var", careless=True) as servers:
        assert query(servers[0], "SELECT 1") == [(1,)]


@pytest.mark.parametrize("milliseconds", [20, 120, 300])
def test_a_kill_during_initdb_heals_at_the_next_start(var, milliseconds):
    starting = subprocess.Popen(
        [sys.executable, "-c", "import sys, pathlib; from embedded.servers import Postgres;"
         "Postgres(pathlib.Path(sys.argv[1])).start()", var],
        cwd=ROOT,
    )  # fmt: skip
    wait_for((var / "postgres" / "unfinished").exists)
    try:
        starting.wait(milliseconds / 1000)  # the test chooses this moment for the kill
    except subprocess.TimeoutExpired:
        starting.kill()
    starting.wait()
    server = Postgres(var, CARELESS)
    try:
        server.start()
        assert query(server, "SELECT 1") == [(1,)]
    finally:
        server.stop()


@pytest.mark.parametrize("victims", ["postmaster", "all"])
def test_committed_data_survive_a_kill(var, victims):
    server = Postgres(var)  # with the durable settings of `make up`
    try:
        server.start()
        query(server, "CREATE TABLE kept AS SELECT generate_series(1, 1000) AS n")
        pids = [server.process.pid] if victims == "postmaster" else list(working_in(server.data))
        for pid in pids:
            with suppress(ProcessLookupError):  # the others end by themselves when the postmaster is gone
                os.kill(pid, signal.SIGKILL)
        server.process.wait()
        server.start()
        assert query(server, "SELECT count(*) FROM kept") == [(1000,)]
    finally:
        server.stop()


def test_a_lock_file_with_the_pid_of_a_living_stranger_does_not_stop_the_start(postgres):
    postgres.start()
    lock = postgres.data / "postmaster.pid"
    lines = lock.read_text().splitlines()
    postgres.stop()
    lock.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
    postgres.start()
    assert query(postgres, "SELECT 1") == [(1,)]


def test_the_servers_end_when_their_starter_is_killed(var):
    program = (
        "import sys, pathlib, signal; from embedded.servers import both\n"
        "with both(pathlib.Path(sys.argv[1]), careless=True): print('up', flush=True); signal.pause()"
    )
    starter = subprocess.Popen([sys.executable, "-c", program, var], cwd=ROOT, stdout=subprocess.PIPE)
    with starter:
        assert starter.stdout.readline() == b"up\n"
        data = [var / name / "data" for name in ("postgres", "valkey")]
        assert all(list(working_in(folder)) for folder in data)
        starter.kill()
    wait_for(lambda: not any(list(working_in(folder)) for folder in data))


def test_a_taken_port_is_given_up_for_another(var):
    server = Valkey(var)
    try:
        server.start()
        port = server.port
        server.stop()
        with socket.create_server(("127.0.0.1", port)):
            server.start()
            assert server.port != port
            assert f":{server.port}/" in Valkey(var).url
    finally:
        server.stop()


def test_a_lost_password_is_said_plainly(postgres):
    postgres.start()
    postgres.stop()
    postgres.password_file.unlink()
    with pytest.raises(StartError, match=r"the file with its password is missing: restore the file"):
        postgres.start()


def test_a_server_that_cannot_start_says_why(postgres):
    postgres.settings["shared_buffers"] = "nonsense"
    with pytest.raises(StartError, match=r"(?s)postgres did not start.*shared_buffers"):
        postgres.start()
