"""Starts the servers that all tests use, and sets up Django for them.

The main pytest process starts PostgreSQL and Valkey in a temporary folder. With pytest-xdist, the workers share
these servers, and each worker has a test database (from pytest-django) and a Redis database.
FAIRLOT_TEST_DATABASE_URL and FAIRLOT_TEST_REDIS_URL select other servers.

Django is set up only once the servers run (`pytest_configure`), so no conftest.py may import models at its top; test
modules may.
"""

import gc
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import django
import pytest
from django.conf import settings
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis

from embedded.servers import both
from tests import branch_coverage
from tests.hangs import pytest_runtest_protocol  # noqa: F401 - a hook
from tests.ledger_guard import flush_passes_the_guards  # noqa: F401 - a fixture for all tests
from tests.proof.portal import FOLDER

ROOT = Path(__file__).resolve().parents[1]
# These variables are removed, because a developer's settings must not change the result of a test.
SETTINGS_OF_THE_SHELL = (
    "ALLOWED_HOSTS", "BEHIND_PROXY", "DEBUG", "FAIRLOT_CURRENCY", "FAIRLOT_ENVIRONMENTS",
    "FAIRLOT_HEADS_FILE", "FAIRLOT_HEADS_URL", "FAIRLOT_HEARTBEAT_FILE", "FAIRLOT_ISSUER",
    "FAIRLOT_LOCAL_BEYOND_LOOPBACK",
    "FAIRLOT_LOCAL_UIDS", "FAIRLOT_LOG_LIMIT_BYTES", "FAIRLOT_PORTAL_FROM", "FAIRLOT_PUBLIC_API_DOCS",
    "FAIRLOT_SECURITY_CONTACT",
    "FAIRLOT_TRUSTED_HEAD_KEYS",
    "FAIRLOT_SESSIONS_URL", "FAIRLOT_TRUSTED_PROXIES", "PUBLIC_URL",
)  # fmt: skip


# Without deadlines, hypothesis fails no test for being slow.
hypothesis.register_profile(
    "any time", parent=hypothesis(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis.load_profile("any time")


def pytest_configure(config: pytest.Config) -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        start_servers(config)
    elif branch_coverage.FOLDER in os.environ:
        branch_coverage.measure(config)
    if is_xdist_controller(config):
        if os.environ.get(branch_coverage.MEASURE):
            os.environ[branch_coverage.FOLDER] = str(temporary_folder(config))
            config.pluginmanager.register(branch_coverage.Floors())
        return  # xdist's workers set up Django, from the environment variables that they inherit
    scratch = temporary_folder(config)
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "portal.settings",
        "DATABASE_URL": os.environ["FAIRLOT_TEST_DATABASE_URL"],
        "REDIS_URL": redis_database(os.environ["FAIRLOT_TEST_REDIS_URL"], worker),
        "SECRET_KEY": secrets.token_urlsafe(48),
        "FAIRLOT_SEALING_KEYS": secrets.token_urlsafe(48),
        "FAIRLOT_SIGNING_KEYS": secrets.token_urlsafe(48),
        "FAIRLOT_JOBS_DIR": str(scratch / "jobs"),
        "LOG_LEVEL": "WARNING",
        # Allows local jobs even if this machine cannot isolate them from each other; tests of the isolation change this
        # setting.
        "FAIRLOT_LOCAL_TRUSTS_ALL": "true",
    }
    for name in SETTINGS_OF_THE_SHELL:
        os.environ.pop(name, None)
    serve_static_files_as_they_are(scratch)
    settings.PASSWORD_HASHERS[0] = "tests.hashing.QuickArgon2"
    django.setup()


# The months in which tests book. Their partitions are created once, so that no test must create them and roll them
# back.
MONTHS = [date(2026, 1, 1), date(2026, 4, 1), date(2026, 5, 1)]


@pytest.fixture
def jobs_folder(settings: Any, tmp_path: Path) -> Iterator[Path]:
    """Makes `tmp_path` the folder in which the local backend keeps jobs, and yields this folder.

    Clears the cache of backends before and after the test, because a cached backend would use another folder.
    """
    from scheduling.clusters import backend_factory  # noqa: PLC0415 - it imports models

    settings.FAIRLOT_JOBS_DIR = tmp_path
    backend_factory._backend.cache_clear()
    yield tmp_path
    backend_factory._backend.cache_clear()


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None, django_db_blocker: Any
) -> Iterator[None]:
    """Makes xdist's workers copy their test databases from one template, which the first worker migrates."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        yield
        return
    with django_db_blocker.unblock():
        make_template(f"template_{run}")
    yield
    from django.db import connection  # noqa: PLC0415 - settings come later

    with django_db_blocker.unblock(), connection._nodb_cursor() as cursor:
        cursor.execute(f'DROP DATABASE IF EXISTS "template_{run}"')


def make_template(name: str) -> None:
    """Makes the database `name` the template of this worker's test database.

    Creates and migrates the database unless another worker has done so.
    """
    from django.db import connection  # noqa: PLC0415 - settings come later

    own, creation = connection.settings_dict["NAME"], connection.creation
    how = connection.settings_dict["TEST"]
    with connection._nodb_cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(1)")  # the lock is held until this connection is closed
        if not creation._database_exists(cursor, name):
            its_own = how["NAME"]
            how["NAME"] = name
            creation.create_test_db(verbosity=0, autoclobber=True)
            connection.close()
            how["NAME"] = its_own
            settings.DATABASES["default"]["NAME"] = connection.settings_dict["NAME"] = own
    how["TEMPLATE"] = name


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Adds the monthly partitions listed in MONTHS to the test database."""
    from accounting.ledger.partitions import add_months  # noqa: PLC0415
    from tests.upgrading import drop_kept  # noqa: PLC0415

    with django_db_blocker.unblock():
        add_months(MONTHS)
    yield
    with django_db_blocker.unblock():
        drop_kept()


@pytest.fixture
def archives(transactional_db: None, django_db_blocker: Any) -> Iterator[None]:
    """Creates the partitions of MONTHS again after a test that archives a month, because archiving drops the month's
    partitions."""
    from accounting.ledger.partitions import add_months  # noqa: PLC0415
    from accounting.models import ClosedBook  # noqa: PLC0415

    yield
    with django_db_blocker.unblock():
        # otherwise `add_months` would not create the partitions of archived months again
        ClosedBook.objects.update(details_since=None)
        add_months(MONTHS)


def pytest_collection_finish() -> None:
    """Exempts all objects that exist after pytest has collected the tests from garbage collection. Also makes garbage
    collections rare.

    Otherwise each full garbage collection scans all tests and modules, which took a tenth of the time of the tests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


# Tests that share a whole portal or a control plane form one xdist group each, and one process runs each group. These
# groups wait more than they compute. So the first AT_ONCE groups begin at once, and each later group begins after a
# tenth of the single tests.
GROUPS = ("attached", "cluster", "figures", "node", "crashes", "attacks", "browser")
AT_ONCE = 3


@pytest.hookimpl(trylast=True)  # runs after pytest-django has sorted the tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts long tests first, so that no xdist worker still runs a long test when the others have finished.

    Raises UsageError if pytest-xdist would run the tests of one `xdist_group` in several processes.
    """
    groups: dict[str, list[pytest.Item]] = {name: [] for name in GROUPS}
    single: list[pytest.Item] = []
    for item in items:
        group = item.get_closest_marker("xdist_group")
        if group and getattr(config.option, "loadgroup", False) and "@" not in item.nodeid:
            # pytest-xdist does so with versions of pytest that it does not know.
            raise pytest.UsageError("pytest-xdist runs the tests of a group in several processes")
        (groups[group.args[0]] if group else single).append(item)
    single.sort(key=lambda item: item.get_closest_marker("slow") is None)
    between = len(single) // 10
    ordered: list[pytest.Item] = []
    for number, name in enumerate(GROUPS):
        if number >= AT_ONCE:
            ordered += single[:between]
            del single[:between]
        ordered += groups[name]
    items[:] = ordered + single


def serve_static_files_as_they_are(scratch: Path) -> None:
    """Makes the portal serve static files from their sources, so that tests need no `collectstatic`.

    tests/ground/test_static_files.py tests the output of `collectstatic`.
    """
    settings.STATIC_ROOT = scratch / "static"
    settings.STATIC_ROOT.mkdir()
    settings.STORAGES["staticfiles"]["BACKEND"] = "django.contrib.staticfiles.storage.StaticFilesStorage"
    settings.WHITENOISE_USE_FINDERS = True


def start_servers(config: pytest.Config) -> None:
    """Starts PostgreSQL and Valkey, unless FAIRLOT_TEST_DATABASE_URL and FAIRLOT_TEST_REDIS_URL both name a server.

    If one of these variables is not set, sets it to the URL of the started server. The servers stop when the run ends
    or is killed. Also sets the environment variable that the constant FOLDER names to the path of a temporary folder.
    """
    os.environ.pop("DJANGO_SETTINGS_MODULE", None)
    stack = ExitStack()
    folder = temporary_folder(config)
    config.add_cleanup(stack.close)
    os.environ[FOLDER] = str(folder)
    stack.callback(os.environ.pop, FOLDER)
    names = ("FAIRLOT_TEST_DATABASE_URL", "FAIRLOT_TEST_REDIS_URL")
    if all(os.environ.get(name) for name in names):
        return
    for name, server in zip(names, stack.enter_context(both(folder, careless=True)), strict=True):
        if not os.environ.get(name):
            os.environ[name] = server.url
            stack.callback(os.environ.pop, name)


def is_xdist_controller(config: pytest.Config) -> bool:
    return "PYTEST_XDIST_WORKER" not in os.environ and config.getoption("dist", "no") != "no"


def temporary_folder(config: pytest.Config) -> Path:
    """Returns a new folder that PostgreSQL's unprivileged user may enter; it is removed at the end of the run."""
    folder = Path(tempfile.mkdtemp(prefix="fairlot-test-"))
    folder.chmod(0o711)
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    return folder


def redis_database(url: str, worker: str | None) -> str:
    """Returns `url` with the number of the worker's Redis database: 1 for xdist worker gw0, 2 for gw1, 0 without
    xdist."""
    number = int(worker.removeprefix("gw")) + 1 if worker else 0
    return urlunsplit(urlsplit(url)._replace(path=f"/{number}"))
