"""All settings of the portal. They are read only from environment variables; docs/settings.md lists them."""

import re
from pathlib import Path
from urllib.parse import quote, urlsplit

import environ
from celery.schedules import crontab
from django.core.exceptions import ImproperlyConfigured
from environ.fileaware_mapping import FileAwareMapping
from kombu import Queue

from accounting.core.numbers import IN_WORDS, read_whole
from portal.queues import OPERATIONS, QUEUES, ROUTES
from scheduling.backends import network_sources
from scheduling.backends.local.isolation import USUAL_UIDS

BASE_DIR = Path(__file__).resolve().parent.parent


class Environment(FileAwareMapping):  # type: ignore[misc] # it has no types
    """The environment variables, as a mapping. They can also be read from files.

    For example, if REDIS_URL_FILE contains a path, the value of REDIS_URL is the content of the file at this path,
    without the line end.
    """

    def __getitem__(self, key: str) -> str:
        return str(super().__getitem__(key)).rstrip("\n")


class Env(environ.FileAwareEnv):  # type: ignore[misc] # the same
    """Reads settings from environment variables. Raises ImproperlyConfigured for an invalid number or boolean.

    An empty value counts as unset.
    """

    def int(self, var: str, default: int) -> int:
        text = self.str(var, "")
        number = read_whole(text) if text else default
        if number is None:
            raise ImproperlyConfigured(f"{var} must be {IN_WORDS}, not {text!r}")
        return number

    def bool(self, var: str, default: bool) -> bool:
        text = self.str(var, "").lower()
        if text and text not in SWITCHES:
            raise ImproperlyConfigured(f"{var} must be true or false, not {text!r}")
        return SWITCHES[text] if text else default


SWITCHES = dict.fromkeys(("true", "yes", "on", "y", "ok", "1"), True)
SWITCHES |= dict.fromkeys(("false", "no", "off", "n", "0"), False)
env = Env()
env.ENVIRON = Environment()

# --- required settings -------------------------------------------------------------------------
SECRET_KEY = env.str("SECRET_KEY")
if len(SECRET_KEY) < 40:
    raise ImproperlyConfigured("SECRET_KEY must have at least 40 random characters")
_database = env.db_url("DATABASE_URL")
# TCP keepalives notice a server that has disappeared; after a restart of the server, connections are opened again.
_database["OPTIONS"] = {
    "connect_timeout": 10,
    "keepalives_idle": 20,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 40_000,  # milliseconds
} | _database.get("OPTIONS", {})
if _database["ENGINE"] != "django.db.backends.postgresql":
    raise ImproperlyConfigured("DATABASE_URL must be a postgresql:// URL, because Fairlot needs PostgreSQL")
_database |= {"ENGINE": "portal.database", "CONN_MAX_AGE": 600, "CONN_HEALTH_CHECKS": True}
DATABASES = {"default": _database | {"ATOMIC_REQUESTS": False}}
# A URL without a password allows the password to come from a file, DATABASE_PASSWORD_FILE.
if not DATABASES["default"]["PASSWORD"]:
    DATABASES["default"]["PASSWORD"] = env.str("DATABASE_PASSWORD", "")
REDIS_URL = env.str("REDIS_URL")
if (_password := env.str("REDIS_PASSWORD", "")) and not urlsplit(REDIS_URL).password:
    REDIS_URL = REDIS_URL.replace("://", f"://:{quote(_password, safe='')}@", 1)

# --- the web -----------------------------------------------------------------------------------
DEBUG = env.bool("DEBUG", False)
PUBLIC_URL = env.str("PUBLIC_URL", "http://localhost:8000").rstrip("/")
_https = PUBLIC_URL.startswith("https://")
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS = [PUBLIC_URL]
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _https
SESSION_ENGINE = "portal.logins"
SESSION_COOKIE_NAME, CSRF_COOKIE_NAME = "fairlot_session", "fairlot_csrf"
CSRF_COOKIE_HTTPONLY = True
SECURE_HSTS_SECONDS = 31_536_000 if _https else 0
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
# W005 and W021 concern HSTS for other hosts of the domain, which are not Fairlot's to decide; W008: the proxy redirects
# to HTTPS.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W008", "security.W021"]
# Each proxy appends to X-Forwarded-For the address from which it was called. With FAIRLOT_TRUSTED_PROXIES proxies, the
# client's address is at that position from the right.
BEHIND_PROXY = env.bool("BEHIND_PROXY", False)
FAIRLOT_TRUSTED_PROXIES = env.int("FAIRLOT_TRUSTED_PROXIES", 1 if BEHIND_PROXY else 0)
if not 0 <= FAIRLOT_TRUSTED_PROXIES <= 10 or (FAIRLOT_TRUSTED_PROXIES and not BEHIND_PROXY):
    raise ImproperlyConfigured(
        "FAIRLOT_TRUSTED_PROXIES must be from 0 to 10. A number above 0 needs BEHIND_PROXY=true"
    )
if BEHIND_PROXY:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    USE_X_FORWARDED_HOST = True

# The most connections of one web process; further requests wait for some seconds. Workers need connections as well: see
# docs/operate.md.
FAIRLOT_WEB_DATABASE_CONNECTIONS = env.int("FAIRLOT_WEB_DATABASE_CONNECTIONS", 12)
if FAIRLOT_WEB_DATABASE_CONNECTIONS < 5:
    raise ImproperlyConfigured("FAIRLOT_WEB_DATABASE_CONNECTIONS must be 5 or more")
# The connections of the PostgreSQL server that all web processes together leave to workers, watch and commands.
FAIRLOT_RESERVED_DATABASE_CONNECTIONS = env.int("FAIRLOT_RESERVED_DATABASE_CONNECTIONS", 40)
# The largest body of a request, and the longest time for its arrival; other requests are refused.
FAIRLOT_BODY_LIMIT_BYTES = env.int("FAIRLOT_BODY_LIMIT_BYTES", 4 * 1024 * 1024)
FAIRLOT_BODY_SECONDS = env.int("FAIRLOT_BODY_SECONDS", 60)
# The portal passes a request for a session's program on piece by piece, so its body may be larger.
FAIRLOT_SESSIONS_BODY_LIMIT_BYTES = env.int("FAIRLOT_SESSIONS_BODY_LIMIT_BYTES", 2 * 1024 * 1024 * 1024)
# Uploads of code for jobs: bytes as sent, bytes of all files after unpacking, number of files; bytes of one team.
FAIRLOT_CODE_LIMIT_BYTES = env.int("FAIRLOT_CODE_LIMIT_BYTES", 8 * 1024 * 1024)
FAIRLOT_CODE_UNPACKED_BYTES = env.int("FAIRLOT_CODE_UNPACKED_BYTES", 32 * 1024 * 1024)
FAIRLOT_CODE_FILES = env.int("FAIRLOT_CODE_FILES", 2000)
FAIRLOT_CODE_TEAM_BYTES = env.int("FAIRLOT_CODE_TEAM_BYTES", 1024 * 1024 * 1024)
if not 0 < FAIRLOT_CODE_LIMIT_BYTES <= 14 * 1024 * 1024:  # one client may use 16 MiB for bodies
    raise ImproperlyConfigured("FAIRLOT_CODE_LIMIT_BYTES must be from 1 to 14680064")
# Days after their last upload for which uploads that nothing needs are kept; 0 keeps them without limit.
FAIRLOT_KEEP_CODE_DAYS = env.int("FAIRLOT_KEEP_CODE_DAYS", 30)
if FAIRLOT_KEEP_CODE_DAYS < 0:
    raise ImproperlyConfigured(
        "FAIRLOT_KEEP_CODE_DAYS must be a number of days, or 0 to keep uploads for ever"
    )
# Days after which drafts that nobody changes are deleted; 0 keeps them without limit.
FAIRLOT_KEEP_DRAFTS_DAYS = env.int("FAIRLOT_KEEP_DRAFTS_DAYS", 90)
if FAIRLOT_KEEP_DRAFTS_DAYS < 0:
    raise ImproperlyConfigured(
        "FAIRLOT_KEEP_DRAFTS_DAYS must be a number of days, or 0 to keep drafts for ever"
    )
# Django keeps bodies up to the limit in memory, so that it writes none to a temporary folder.
# A code upload comes with the fields of a form.
FAIRLOT_UPLOAD_BODY_BYTES = max(FAIRLOT_BODY_LIMIT_BYTES, FAIRLOT_CODE_LIMIT_BYTES + 1024 * 1024)
DATA_UPLOAD_MAX_MEMORY_SIZE = FILE_UPLOAD_MAX_MEMORY_SIZE = FAIRLOT_UPLOAD_BODY_BYTES
DATA_UPLOAD_MAX_NUMBER_FILES = (
    FAIRLOT_CODE_FILES + 1
)  # one more, so that the upload's own refusal explains it
FILE_UPLOAD_HANDLERS = ["django.core.files.uploadhandler.MemoryFileUploadHandler"]
# Whether a person with an invitation to a team may create an account; otherwise only admins create accounts.
FAIRLOT_ACCOUNTS_BY_INVITATION = env.bool("FAIRLOT_ACCOUNTS_BY_INVITATION", False)
# The passwords that one web process hashes at once; each needs 100 MB for a moment.
FAIRLOT_PASSWORDS_AT_ONCE = env.int("FAIRLOT_PASSWORDS_AT_ONCE", 2)

INSTALLED_APPS = [
    "accounting",
    "scheduling",
    "portal",
    "django_htmx",
    "ninja",
    "template_partials",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.humanize",
    "django.contrib.messages",
    "django.contrib.postgres",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django.forms",
]
FORM_RENDERER = "portal.forms.form.Renderer"
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "portal.response_headers.with_page_policy",
    "portal.api.problems.ApiProblemsMiddleware",
    "portal.known_hosts.KnownHostMiddleware",
    "portal.middleware.LoopbackOnlyMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "portal.static_files.NoSuchFileMiddleware",
    "portal.inputs.InputsMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "portal.middleware.SignedInMiddleware",
    "portal.middleware.LivePositionMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]
ROOT_URLCONF = "portal.urls"
ASGI_APPLICATION = "portal.asgi.application"
MESSAGE_STORAGE = "portal.messages.Storage"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "portal.context.reader",
            ]
        },
    }
]
# Pages may not contain inline scripts nor load anything from other hosts.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "staticfiles"
# bin/browser-packages fetches xterm.js for terminals. Without network there may be none.
BROWSER_PACKAGES = BASE_DIR / ".browser-packages" / "static"
STATICFILES_DIRS = [BASE_DIR / "static", *[BROWSER_PACKAGES] * BROWSER_PACKAGES.is_dir()]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
}
WHITENOISE_USE_FINDERS = DEBUG

# --- login -------------------------------------------------------------------------------------
AUTH_USER_MODEL = "accounting.User"
AUTHENTICATION_BACKENDS = ["django.contrib.auth.backends.ModelBackend"]
PASSWORD_HASHERS = [
    "portal.hashing.BoundedArgon2",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
LOGIN_URL, LOGIN_REDIRECT_URL, LOGOUT_REDIRECT_URL = "login", "home", "login"

# --- Celery ------------------------------------------------------------------------------------
CELERY_BROKER_URL = REDIS_URL
# A broker that does not answer must not delay users who submit jobs.
CELERY_BROKER_TRANSPORT_OPTIONS = {"socket_connect_timeout": 2, "socket_timeout": 5}
CELERY_TASK_IGNORE_RESULT = True  # results are in PostgreSQL; Redis carries only messages
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_DB_REUSE_MAX = 1000  # tasks on one database connection; portal/celery.py closes old connections
CELERY_TASK_TIME_LIMIT = 300
CELERY_TIMEZONE = "UTC"
# A worker that is started without --queues serves all queues.
CELERY_TASK_QUEUES = [Queue(name) for name in QUEUES]
CELERY_TASK_DEFAULT_QUEUE = OPERATIONS
CELERY_TASK_ROUTES = ROUTES
CELERY_BEAT_SCHEDULER = "portal.beat:Scheduler"
CELERY_BEAT_SCHEDULE = {
    "rounds": {"task": "scheduling.tasks.run_due_rounds", "schedule": 1.0, "options": {"expires": 5}},
    "operations": {
        "task": "scheduling.tasks.run_due_operations",
        "schedule": 5.0,
        "options": {"expires": 10},
    },
    "schedules": {
        "task": "scheduling.tasks.run_due_schedules",
        "schedule": 5.0,
        "options": {"expires": 10},
    },
    "services": {"task": "scheduling.tasks.step_services", "schedule": 5.0, "options": {"expires": 10}},
    "sweeps": {"task": "scheduling.tasks.step_sweeps", "schedule": 10.0, "options": {"expires": 20}},
    "pipelines": {"task": "scheduling.tasks.step_pipelines", "schedule": 10.0, "options": {"expires": 20}},
    "grants": {"task": "scheduling.tasks.end_grants", "schedule": 10.0, "options": {"expires": 20}},
    "ends": {"task": "accounting.tasks.tell_of_ends", "schedule": 60.0, "options": {"expires": 60}},
    "budgets": {"task": "scheduling.tasks.watch_budgets", "schedule": 300.0, "options": {"expires": 300}},
    "outboxes": {"task": "accounting.tasks.empty_outboxes", "schedule": 3600.0, "options": {"expires": 3600}},
    "notify": {"task": "accounting.tasks.notify", "schedule": 5.0, "options": {"expires": 10}},
    "waits": {"task": "scheduling.tasks.announce_waits", "schedule": 60.0, "options": {"expires": 60}},
    "webhooks": {"task": "accounting.tasks.call_webhooks", "schedule": 10.0, "options": {"expires": 30}},
    "mails": {"task": "accounting.tasks.send_mails", "schedule": 10.0, "options": {"expires": 30}},
    "reports": {"task": "portal.tasks.send_reports", "schedule": 60.0, "options": {"expires": 60}},
    "overlong": {"task": "scheduling.tasks.end_overlong_jobs", "schedule": 10.0, "options": {"expires": 20}},
    "drains": {"task": "scheduling.tasks.end_drains", "schedule": 10.0, "options": {"expires": 20}},
    "idle": {"task": "scheduling.tasks.step_idle_jobs", "schedule": 10.0, "options": {"expires": 20}},
    "use": {"task": "scheduling.tasks.measure_use", "schedule": 30.0, "options": {"expires": 30}},
    "output": {"task": "scheduling.tasks.read_output", "schedule": 10.0, "options": {"expires": 10}},
    "rollup": {"task": "scheduling.tasks.roll_up_metrics", "schedule": 60.0, "options": {"expires": 60}},
    "metrics": {"task": "scheduling.tasks.remove_metrics", "schedule": 3600.0, "options": {"expires": 3600}},
    "terminals": {"task": "scheduling.tasks.close_terminals", "schedule": 30.0, "options": {"expires": 30}},
    "readers": {"task": "scheduling.tasks.stop_readers", "schedule": 60.0, "options": {"expires": 60}},
    "sessions": {"task": "scheduling.tasks.step_sessions", "schedule": 10.0, "options": {"expires": 20}},
    "names": {"task": "scheduling.tasks.announce_services", "schedule": 30.0, "options": {"expires": 60}},
    "reconcile": {"task": "scheduling.tasks.reconcile_all", "schedule": 30.0, "options": {"expires": 60}},
    "check": {"task": "scheduling.tasks.check_clusters", "schedule": 180.0, "options": {"expires": 180}},
    "tries": {"task": "portal.tasks.forget_password_tries", "schedule": 900.0, "options": {"expires": 900}},
    "prune": {"task": "scheduling.tasks.prune", "schedule": 3600.0, "options": {"expires": 3600}},
    "files": {"task": "scheduling.tasks.remove_files", "schedule": 3600.0, "options": {"expires": 3600}},
    "unwanted": {
        "task": "scheduling.tasks.delete_unwanted_files",
        "schedule": 300.0,
        "options": {"expires": 300},
    },
    "storage": {"task": "scheduling.tasks.measure_files", "schedule": 300.0, "options": {"expires": 300}},
    "code": {"task": "scheduling.tasks.remove_code", "schedule": 3600.0, "options": {"expires": 3600}},
    "bill": {"task": "scheduling.tasks.bill_running_leases", "schedule": 60.0, "options": {"expires": 120}},
    "close": {"task": "scheduling.tasks.close_books", "schedule": 60.0, "options": {"expires": 120}},
    "price": {"task": "scheduling.tasks.price_classes", "schedule": 60.0, "options": {"expires": 120}},
    "shares": {"task": "scheduling.tasks.sum_shares", "schedule": 60.0, "options": {"expires": 120}},
    "seal": {"task": "scheduling.tasks.seal_books", "schedule": 60.0, "options": {"expires": 120}},
    "analyse": {
        "task": "scheduling.tasks.analyse_sharing",
        "schedule": 60.0,
        "options": {"expires": 60},
    },
    "anomalies": {
        "task": "scheduling.tasks.analyse_nightly",
        "schedule": crontab(hour="0", minute="30"),
        "options": {"expires": 43_200},
    },
    "months": {"task": "accounting.tasks.prepare_months", "schedule": 3600.0, "options": {"expires": 3600}},
}

# --- Fairlot -----------------------------------------------------------------------------------
FAIRLOT_CURRENCY = env.str("FAIRLOT_CURRENCY", "EUR")
# The name of the organisation that issues statements.
FAIRLOT_ISSUER = env.str("FAIRLOT_ISSUER", "Fairlot")
# Newest first. These keys encrypt secrets in the database, such as kubeconfigs.
FAIRLOT_SEALING_KEYS = [key.strip() for key in env.list("FAIRLOT_SEALING_KEYS", default=[]) if key.strip()]
if any(len(key) < 40 for key in FAIRLOT_SEALING_KEYS):
    raise ImproperlyConfigured("FAIRLOT_SEALING_KEYS must be keys of at least 40 random characters each")
# Newest first. These keys sign heads of the ledger. An old key can be removed once a newer key has signed a head.
FAIRLOT_SIGNING_KEYS = [key.strip() for key in env.list("FAIRLOT_SIGNING_KEYS", default=[]) if key.strip()]
if any(len(key) < 40 for key in FAIRLOT_SIGNING_KEYS):
    raise ImproperlyConfigured("FAIRLOT_SIGNING_KEYS must be keys of at least 40 random characters each")
# Public keys as `manage.py signing_key` prints them, for readers who verify the ledger without the secret keys.
FAIRLOT_TRUSTED_HEAD_KEYS = [
    key.strip() for key in env.list("FAIRLOT_TRUSTED_HEAD_KEYS", default=[]) if key.strip()
]
if any(not re.fullmatch(r"[0-9a-f]{64}", key) for key in FAIRLOT_TRUSTED_HEAD_KEYS):
    raise ImproperlyConfigured("FAIRLOT_TRUSTED_HEAD_KEYS must be public keys of 64 hexadecimal digits each")
# Heads of the ledger are also kept outside the database: appended to this file, and posted to this URL.
FAIRLOT_HEADS_FILE = env.str("FAIRLOT_HEADS_FILE", "")
FAIRLOT_HEADS_URL = env.str("FAIRLOT_HEADS_URL", "")
# The folder in which the local backend keeps run folders, logs and checkpoints.
FAIRLOT_JOBS_DIR = Path(env.str("FAIRLOT_JOBS_DIR", str(BASE_DIR / "var" / "jobs")))
FAIRLOT_LOG_LIMIT_BYTES = env.int("FAIRLOT_LOG_LIMIT_BYTES", 64 * 1024 * 1024)
# The log streams of one attached cluster that are open at the same time. Each needs a thread in `watch`.
FAIRLOT_LOG_STREAMS = env.int("FAIRLOT_LOG_STREAMS", 64)
# How long the whole inputs of rounds are kept, with which a round can be decided again, and the attempts in a job's
# history.
FAIRLOT_KEEP_ROUND_RECORDS_DAYS = env.int("FAIRLOT_KEEP_ROUND_RECORDS_DAYS", 14)
FAIRLOT_ANALYSES_AT_ONCE = env.int("FAIRLOT_ANALYSES_AT_ONCE", 1)
FAIRLOT_KEEP_ATTEMPTS_DAYS = env.int("FAIRLOT_KEEP_ATTEMPTS_DAYS", 90)
# How long the logs and checkpoints of ended jobs are kept; 0 keeps them without limit.
FAIRLOT_KEEP_JOB_FILES_DAYS = env.int("FAIRLOT_KEEP_JOB_FILES_DAYS", 30)
if FAIRLOT_KEEP_JOB_FILES_DAYS < 0:
    raise ImproperlyConfigured(
        "FAIRLOT_KEEP_JOB_FILES_DAYS must be a number of days, or 0 to keep files for ever"
    )
# The largest files of an ended session, in MiB, that a session started again gets.
FAIRLOT_SESSION_FILES_MIB = env.int("FAIRLOT_SESSION_FILES_MIB", 10_240)
# How long the metrics of ended jobs are kept; 0 keeps them without limit.
FAIRLOT_KEEP_METRICS_DAYS = env.int("FAIRLOT_KEEP_METRICS_DAYS", 180)
if FAIRLOT_KEEP_METRICS_DAYS < 0:
    raise ImproperlyConfigured(
        "FAIRLOT_KEEP_METRICS_DAYS must be a number of days, or 0 to keep metrics for ever"
    )
# Beat and watch touch this file while they work; health checks read its age.
FAIRLOT_HEARTBEAT_FILE = env.str("FAIRLOT_HEARTBEAT_FILE", "")
# The virtual environment whose `python` local jobs run. bin/bootstrap and the Dockerfile create it.
FAIRLOT_JOB_PYTHON = BASE_DIR / ".environments" / "python"
# The environments of local jobs, by name, each with the PATH that a job gets.
FAIRLOT_ENVIRONMENTS = {
    "python": f"{FAIRLOT_JOB_PYTHON / 'bin'}:/usr/local/bin:/usr/bin:/bin",
    "system": "/usr/local/bin:/usr/bin:/bin",
}
FAIRLOT_EXAMPLES_DIR = BASE_DIR / "examples"
# Each session has its own host, because the portal's origin must not trust the session's program. The star stands for
# the session's name. Browsers resolve *.localhost to this machine by themselves; any other domain must be configured.
_here = urlsplit(PUBLIC_URL)
_port = f":{_here.port}" if _here.port else ""
_usual = f"{_here.scheme}://*.localhost{_port}" if _here.hostname in {"localhost", "127.0.0.1"} else ""
FAIRLOT_SESSIONS_URL = (env.str("FAIRLOT_SESSIONS_URL", "") or _usual).rstrip("/")
if FAIRLOT_SESSIONS_URL and not re.fullmatch(
    r"https?://\*\.[a-z0-9.-]+(:\d+)?", FAIRLOT_SESSIONS_URL, re.ASCII
):
    raise ImproperlyConfigured("FAIRLOT_SESSIONS_URL must be like https://*.sessions.example.org")
# The addresses and pods from which the web servers connect to sessions in pods. The network policies of teams'
# namespaces admit no other source.
try:
    FAIRLOT_PORTAL_FROM = network_sources.read(env.list("FAIRLOT_PORTAL_FROM", default=[]))
except ValueError as error:
    raise ImproperlyConfigured(f"FAIRLOT_PORTAL_FROM: {error}") from None
# The image of the pods through which the portal reads checkpoints on Kubernetes clusters. It has Python 3.11 or newer.
FAIRLOT_READER_IMAGE = env.str("FAIRLOT_READER_IMAGE", "docker.io/library/python:3.13-slim").strip()
# User ids for local jobs if Fairlot runs as root: each team gets one. The last is for tests of the machine.
_first, _, _last = env.str("FAIRLOT_LOCAL_UIDS", f"{USUAL_UIDS[0]}-{USUAL_UIDS[-1]}").partition("-")
if not 1000 <= (read_whole(_first) or 0) < (read_whole(_last) or 0) < 2**31:
    raise ImproperlyConfigured(
        "FAIRLOT_LOCAL_UIDS must be a range of unused user ids from 1000 up, such as 50000-59999"
    )
FAIRLOT_LOCAL_UIDS = range(int(_first), int(_last) + 1)
# Without isolation of local jobs only admins may submit them, unless this setting trusts all users.
FAIRLOT_LOCAL_TRUSTS_ALL = env.bool("FAIRLOT_LOCAL_TRUSTS_ALL", False)
# How much space the environments with the requirements of local jobs may take. Those that jobs use always stay.
FAIRLOT_LOCAL_ENVIRONMENTS_GB = env.int("FAIRLOT_LOCAL_ENVIRONMENTS_GB", 50)
if FAIRLOT_LOCAL_ENVIRONMENTS_GB < 0:
    raise ImproperlyConfigured("FAIRLOT_LOCAL_ENVIRONMENTS_GB must be a number of gigabytes, at least 0")
# Paths that no local job may read or write, even without isolation, and paths that are hidden from local jobs.
_var = Path(env.str("FAIRLOT_VAR", str(BASE_DIR / "var")))
FAIRLOT_SECRET_PLACES = [_var / "secrets", BASE_DIR / ".env"]
FAIRLOT_PRIVATE_PLACES = [BASE_DIR, _var]
# Local jobs are programs on the portal's machine, so by default the portal serves only clients on that machine.
# Terminals in jobs: whether operators and admins may open them in any job (and any session), how many a job may have at
# once, and when one is closed in which nobody types.
FAIRLOT_TERMINALS_FOR_OPERATORS = env.bool("FAIRLOT_TERMINALS_FOR_OPERATORS", False)
FAIRLOT_TERMINALS_PER_JOB = env.int("FAIRLOT_TERMINALS_PER_JOB", 5)
FAIRLOT_TERMINAL_IDLE_MINUTES = env.int("FAIRLOT_TERMINAL_IDLE_MINUTES", 60)
if FAIRLOT_TERMINALS_PER_JOB < 0 or FAIRLOT_TERMINAL_IDLE_MINUTES < 1:
    raise ImproperlyConfigured(
        "FAIRLOT_TERMINALS_PER_JOB must be 0 or more, and FAIRLOT_TERMINAL_IDLE_MINUTES 1 or more"
    )
FAIRLOT_LOCAL_BEYOND_LOOPBACK = env.bool("FAIRLOT_LOCAL_BEYOND_LOOPBACK", False)

# The contacts in security.txt, as URIs such as mailto:security@example.org or https://example.org/report.
FAIRLOT_SECURITY_CONTACT = [c.strip() for c in env.list("FAIRLOT_SECURITY_CONTACT", default=[]) if c.strip()]
if _wrong := [c for c in FAIRLOT_SECURITY_CONTACT if not re.fullmatch(r"(mailto:|https://|tel:)[!-~]+", c)]:
    raise ImproperlyConfigured(
        f"FAIRLOT_SECURITY_CONTACT must be mailto:, https:// or tel: URIs, not {_wrong[0]!r}"
    )

# --- mail -------------------------------------------------------------------------------------- Without
# FAIRLOT_SMTP_HOST the portal sends no mail.
EMAIL_HOST = env.str("FAIRLOT_SMTP_HOST", "")
EMAIL_PORT = env.int("FAIRLOT_SMTP_PORT", 587)
EMAIL_HOST_USER = env.str("FAIRLOT_SMTP_USER", "")
EMAIL_HOST_PASSWORD = env.str("FAIRLOT_SMTP_PASSWORD", "")
EMAIL_USE_TLS = env.bool("FAIRLOT_SMTP_STARTTLS", True)
EMAIL_TIMEOUT = 20
FAIRLOT_MAIL_DOMAIN = urlsplit(PUBLIC_URL).hostname or "localhost"
DEFAULT_FROM_EMAIL = env.str("FAIRLOT_MAIL_FROM", f"Fairlot <fairlot@{FAIRLOT_MAIL_DOMAIN}>")

# By default webhooks are sent only to public addresses with TLS; this setting also allows private networks.
FAIRLOT_WEBHOOKS_TO_PRIVATE = env.bool("FAIRLOT_WEBHOOKS_TO_PRIVATE", False)
# The same for queries of the metrics of attached clusters.
FAIRLOT_METRICS_TO_PRIVATE = env.bool("FAIRLOT_METRICS_TO_PRIVATE", False)

# The same for git repositories with the code of jobs; and the hosts to which fetches are limited, if any are given.
FAIRLOT_GIT_TO_PRIVATE = env.bool("FAIRLOT_GIT_TO_PRIVATE", False)
FAIRLOT_GIT_HOSTS = [
    host.strip().lower() for host in env.list("FAIRLOT_GIT_HOSTS", default=[]) if host.strip()
]

# By default only signed-in users and callers with an API token may read the OpenAPI document and its page.
FAIRLOT_PUBLIC_API_DOCS = env.bool("FAIRLOT_PUBLIC_API_DOCS", False)

# --- other -------------------------------------------------------------------------------------
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "plain"}},
    # These loggers write a line for each task, or many lines for each PDF file; only their warnings matter.
    "loggers": {
        name: {"level": "WARNING"}
        for name in (
            "celery.app.trace",
            "celery.beat",
            "celery.worker.strategy",
            "fontTools",
        )
    },
    "root": {"handlers": ["stderr"], "level": env.str("LOG_LEVEL", "INFO")},
}
