"""A job's code comes from a git repository: the commit is fetched once, at submit, and recorded."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from accounting.core.errors import NotAllowed
from scheduling.core import git_fetch
from scheduling.jobs.secrets import create_secret
from scheduling.jobs.submitting import submit_job, submit_jobs
from scheduling.models import CodeUpload, Job
from scheduling.schedules.actions import Terms, create_schedule
from scheduling.spec.job_spec import JobSpec, SpecError
from tests.scheduling.world import World, world

TOKEN = "ghp_dontTellAnybody"
FILES = {"train.py": "print(1)\n", "src/model.py": "X = 1\n"}


class Handler(BaseHTTPRequestHandler):
    """Serves repositories by `git http-backend`, as web servers do."""

    server: Server

    def _answer(self) -> None:
        wanted = base64.b64encode(f"x-access-token:{TOKEN}".encode()).decode()
        if self.path.startswith("/private") and self.headers.get("Authorization") != f"Basic {wanted}":
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic realm=x")
            self.end_headers()
            return
        if self.path.startswith("/moved"):
            self.send_response(302)
            self.send_header("Location", self.path.replace("/moved", "/open"))
            self.end_headers()
            return
        path, _, query = self.path.partition("?")
        environment = {
            "GIT_PROJECT_ROOT": str(self.server.root), "GIT_HTTP_EXPORT_ALL": "1", "PATH_INFO": path,
            "QUERY_STRING": query, "REQUEST_METHOD": self.command, "PATH": os.defpath,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": self.headers.get("Content-Length", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
        }  # fmt: skip
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        done = subprocess.run(
            ["git", "http-backend"], input=body, env=environment, capture_output=True, check=False
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        lines = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.send_response(int(lines.pop("Status", "200")[:3]))
        for name, value in lines.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = _answer  # noqa: N815 - the names of the base class

    def log_message(self, *_: object) -> None:
        """Writes nothing."""


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.root = root

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}.git"

    def git(self, *arguments: str, name: str = "open") -> str:
        who = {
            "GIT_AUTHOR_NAME": "b",
            "GIT_AUTHOR_EMAIL": "b@x",
            "GIT_COMMITTER_NAME": "b",
            "GIT_COMMITTER_EMAIL": "b@x",
        }
        environment = who | {"PATH": os.environ["PATH"], "HOME": str(self.root)}
        done = subprocess.run(
            ["git", "-C", str(self.root / f"{name}.git"), *arguments],
            env=environment,
            capture_output=True,
            check=True,
        )
        return done.stdout.decode().strip()

    def commit(self, files: dict[str, str], *, name: str = "open") -> str:
        folder = self.root / f"{name}.git"
        if not folder.exists():
            folder.mkdir(parents=True)
            self.git("init", "--quiet", "--initial-branch=main", name=name)
        for path, text in files.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
        self.git("add", "-A", name=name)
        self.git("commit", "--quiet", "-m", "x", name=name)
        return self.git("rev-parse", "HEAD", name=name)


@pytest.fixture
def server(tmp_path: Path, settings: Any) -> Iterator[Server]:
    settings.FAIRLOT_GIT_TO_PRIVATE = True
    with Server(tmp_path) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


@pytest.fixture
def lab(transactional_db: None) -> World:
    return world(v100=4)


def spec(url: str, **code: str) -> JobSpec:
    return JobSpec.parse({"name": "x", "command": "python train.py", "code": {"git": url, **code}})


def submit(lab: World, url: str, **code: str) -> Job:
    where: dict[str, Any] = {"actor": lab.people.bob, "tenant": lab.people.astro, "cluster": lab.cluster}
    return submit_job(**where, spec=spec(url, **code))


def test_a_branch_is_fetched_at_submit_and_stays_that_commit(lab: World, server: Server) -> None:
    first = server.commit(FILES)
    job = submit(lab, server.url("open"), ref="main")
    upload = CodeUpload.objects.get()
    assert job.spec["code"]["commit"] == first
    assert job.spec["code"]["upload"] == upload.digest
    assert job.code.upload.paths == ["src/model.py", "train.py"]
    second = server.commit({"train.py": "print(2)\n"})
    again = submit_job(
        actor=lab.people.bob, tenant=lab.people.astro, cluster=lab.cluster, spec=JobSpec.parse(job.spec)
    )
    assert again.code.upload == job.code.upload, "the same specification got other files"
    assert submit(lab, server.url("open")).spec["code"]["commit"] == second
    assert submit(lab, server.url("open"), ref=first).code.upload == upload, (
        "a commit that no branch has at its end"
    )


def test_tags_folders_and_schedules_are_fetched_too(lab: World, server: Server) -> None:
    first = server.commit(FILES)
    server.git("tag", "-a", "v1", "-m", "x")
    server.commit({"train.py": "print(2)\n"})
    assert submit(lab, server.url("open"), ref="v1").spec["code"]["commit"] == first
    assert submit(lab, server.url("open"), folder="src").code.upload.paths == ["model.py"]
    where: dict[str, Any] = {"actor": lab.people.bob, "tenant": lab.people.astro, "cluster": lab.cluster}
    schedule = create_schedule(**where, spec=spec(server.url("open")), terms=Terms("@daily", "UTC"))
    assert schedule.spec["code"]["upload"].startswith("sha256:")


def test_a_private_repository_is_fetched_with_the_token_of_a_secret(lab: World, server: Server) -> None:
    server.commit(FILES, name="private")
    with pytest.raises(SpecError, match="needs a token: name a secret"):
        submit(lab, server.url("private"))
    create_secret(actor=lab.people.bob, name="wrong", values={"value": "x"})
    with pytest.raises(SpecError, match="code"):
        submit(lab, server.url("private"), secret="wrong")
    create_secret(actor=lab.people.bob, name="hub", values={"value": TOKEN})
    job = submit(lab, server.url("private"), secret="hub")
    assert job.code.upload.files == 2
    assert TOKEN not in str(job.spec)
    with pytest.raises(SpecError, match="neither you nor Astro has a secret named none"):
        submit(lab, server.url("private"), secret="none")


def test_what_cannot_be_fetched_is_refused_with_how_to_go_on(
    lab: World, server: Server, settings: Any
) -> None:
    server.commit(FILES)
    url = server.url("open")
    for code, said in (
        ({"git": url, "ref": "nowhere"}, "no branch or tag nowhere"),
        ({"git": url, "ref": "1" * 40}, "no such commit"),
        ({"git": url, "folder": "nowhere"}, "no such folder"),
        ({"git": server.url("missing")}, "no repository|failed"),
        ({"git": server.url("moved")}, "redirects"),
    ):
        with pytest.raises(SpecError, match=said):
            submit(lab, code.pop("git"), **code)
    os.symlink("/etc/passwd", server.root / "open.git" / "evil")
    server.commit({})
    with pytest.raises(SpecError, match="'evil' is a link"):
        submit(lab, url)
    settings.FAIRLOT_CODE_UNPACKED_BYTES = 10
    settings.FAIRLOT_CODE_FILES = 1
    with pytest.raises(SpecError, match="too large"):
        submit(lab, url)
    assert not Job.objects.exists()
    assert not CodeUpload.objects.exists()


def test_private_addresses_and_other_hosts_are_refused(lab: World, server: Server, settings: Any) -> None:
    server.commit(FILES)
    settings.FAIRLOT_GIT_HOSTS = ["git.example.org"]
    with pytest.raises(
        SpecError, match=r"of 127.0.0.1 are not fetched here. Accepted hosts: git.example.org"
    ):
        submit(lab, server.url("open"))
    settings.FAIRLOT_GIT_HOSTS, settings.FAIRLOT_GIT_TO_PRIVATE = [], False
    for url in (server.url("open"), "https://127.0.0.1/x", "https://169.254.169.254/x", "https://[::1]/x"):
        with pytest.raises(SpecError, match="cannot be fetched"):
            submit(lab, url)


def test_a_server_that_says_nothing_ends_the_submit_in_time(
    lab: World, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.FAIRLOT_GIT_TO_PRIVATE = True
    monkeypatch.setattr(git_fetch, "SECONDS", 0.5)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(SpecError, match=r"not fetched within 0\.5 seconds"),
    ):
        submit(lab, f"http://127.0.0.1:{silent.getsockname()[1]}/x")


def test_an_old_git_and_a_second_fetch_of_the_team_are_refused(
    lab: World, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_fetch, "_fetching", {lab.people.astro.pk})
    with pytest.raises(SpecError, match="Your team is fetching another repository"):
        submit(lab, server.url("open"))
    monkeypatch.setattr(git_fetch, "_version", lambda program: (2, 36))
    with pytest.raises(SpecError, match=r"older than 2\.37"):
        submit(lab, server.url("open"))


def test_strangers_fetch_nothing_and_bulk_submits_say_what_to_do(lab: World, server: Server) -> None:
    server.commit(FILES)
    wanted = spec(server.url("open"))
    where: dict[str, Any] = {"tenant": lab.people.astro, "cluster": lab.cluster}
    with pytest.raises(NotAllowed):
        submit_job(actor=lab.people.charlie, **where, spec=wanted)
    [refusal] = submit_jobs(actor=lab.people.bob, **where, specs=[wanted], all_or_none=False)
    assert "for single submits only" in str(refusal)
    assert not CodeUpload.objects.exists()


@pytest.mark.parametrize(
    "code",
    [{"git": "ext::sh -c id"}, {"git": "file:///etc"}, {"git": "ssh://git@x/y"}, {"git": "https://a b"},
     {"git": "https://x/y", "ref": "--upload-pack=id"}, {"git": "https://x/y", "ref": "a..b"},
     {"git": "https://x/y", "folder": "../x"}, {"git": "https://x/y", "folder": "/x"},
     {"git": "https://x/y", "commit": "main"}, {"git": "https://x/y", "secret": "a b"}, {"ref": "main"},
     {"upload": "sha256:" + "0" * 64, "folder": "x"}],
)  # fmt: skip
def test_sources_that_git_could_misread_are_refused(code: dict[str, str]) -> None:
    with pytest.raises(SpecError, match="code"):
        JobSpec.parse({"name": "x", "command": "x", "code": code})
