"""Tests that docker-compose.yml and the Dockerfile name only programs, files and settings that exist.

They must also set all settings that are required.
"""

import importlib
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import time

import pytest
import yaml
from django.core.management import get_commands

from tests.ground.settings_read import ROOT, required_settings, settings_names

COMPOSE_TEXT = (ROOT / "docker-compose.yml").read_text()
SERVICES = yaml.safe_load(COMPOSE_TEXT)["services"]
PORTAL_SERVICES = {name: service for name, service in SERVICES.items() if "build" in service}
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} (.*)$", DOCKERFILE, re.MULTILINE)


def check_command(argv: list[str]) -> None:
    """Fails if the program that the command line `argv` starts does not exist."""
    match argv:
        case ["granian", *options]:
            module, _, attribute = options[-1].partition(":")
            assert callable(getattr(importlib.import_module(module), attribute))
        case ["celery", "-A", app, "worker" | "beat", *_]:
            assert importlib.import_module(f"{app}.celery").app.main == "fairlot"
        case ["python", "manage.py", command, *_]:
            assert command in get_commands(), f"manage.py has no command {command!r}"
        case _:
            pytest.fail(f"what starts this? {argv}")


def test_the_services_are_there():
    workers = {"worker-rounds", "worker-operations", "worker-background"}
    assert {"web", "beat", "watch", "postgres", "redis"} | workers <= SERVICES.keys()


@pytest.mark.parametrize("name", PORTAL_SERVICES)
def test_each_command_of_the_portal_exists(name):
    check_command(PORTAL_SERVICES[name]["command"])


def test_the_command_of_the_image_exists():
    (command,) = instructions("CMD")
    check_command(json.loads(command))


def test_the_image_runs_manage_commands_that_exist():
    lines = [line for line in instructions("RUN") if "manage.py" in line]
    assert lines
    for line in lines:
        words = shlex.split(line)
        assert words[words.index("manage.py") + 1] in get_commands()


@pytest.mark.parametrize("name", PORTAL_SERVICES)
def test_each_variable_of_the_portal_is_one_that_the_settings_read(name):
    known = settings_names()
    given = {
        variable if variable in known else variable.removesuffix("_FILE")
        for variable in PORTAL_SERVICES[name]["environment"]
    }
    assert given <= known
    assert required_settings() <= given


def test_the_image_is_built_with_the_required_settings():
    (line,) = [line for line in instructions("RUN") if "collectstatic" in line]
    assert required_settings() == {name for name, _ in re.findall(r"\b([A-Z_]+)=(\S+)", line)}


def test_the_environment_file_names_what_compose_asks_for():
    asked = set(re.findall(r"(?<!\$)\$\{([A-Z_]+)", COMPOSE_TEXT))
    offered = set(re.findall(r"^([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert asked == offered


@pytest.mark.parametrize("name", SERVICES)
def test_no_secret_is_in_the_environment(name):
    for variable, value in SERVICES[name].get("environment", {}).items():
        if re.search("SECRET|PASSWORD|KEY", variable):
            assert variable.endswith("_FILE"), variable
            assert value.removeprefix("/run/secrets/") in SERVICES[name]["secrets"]
        assert not re.search(r"://[^/]*:[^/]*@", str(value)), f"{variable} has a password"
    assert not re.search("SECRET|PASSWORD|KEY", (ROOT / ".env.example").read_text())


def test_the_settings_read_the_secrets_that_the_command_makes(tmp_path):
    (tmp_path / "bin").mkdir()
    shutil.copy(ROOT / "bin" / "make-secrets", tmp_path / "bin")
    subprocess.run([tmp_path / "bin" / "make-secrets"], check=True, umask=0o077)
    folder = tmp_path / "secrets"
    made = {file.name: file.read_text() for file in folder.iterdir()}
    assert made.keys() == {name for service in SERVICES.values() for name in service.get("secrets", [])}
    assert made.keys() == yaml.safe_load(COMPOSE_TEXT)["secrets"].keys()
    assert len(set(made.values())) == len(made)
    assert all(re.fullmatch("[0-9a-f]{64}", secret) for secret in made.values())
    # On the host only the folder's owner can read the files; in containers, users who own neither folder nor files can.
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o444}
    (folder / "redis_password").chmod(0o644)
    (folder / "redis_password").write_text("p@ss/word\n")  # with the trailing newline that an editor adds
    subprocess.run([tmp_path / "bin" / "make-secrets"], check=True)
    assert (folder / "postgres_password").read_text() == made["postgres_password"]

    given = {
        name: str(value).replace("/run/secrets", str(folder))
        for name, value in SERVICES["web"]["environment"].items()
        if "${" not in str(value)
    }
    asked = "from portal import settings as s; print(s.DATABASES['default']['PASSWORD'], s.REDIS_URL, s.SECRET_KEY)"
    printed = subprocess.run(
        [sys.executable, "-c", asked], cwd=ROOT, env=given, check=True, capture_output=True, text=True
    ).stdout.split()
    assert printed == [
        made["postgres_password"],
        "redis://:p%40ss%2Fword@redis:6379/0",
        made["secret_key"],
    ]


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_may_do_what_it_needs_and_no_more(name):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert "privileged" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "build" in service or service["user"] not in {"root", "0"}
    assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
    assert 0 < service["pids_limit"] <= 1024
    assert service["tmpfs"]
    for mount in service["tmpfs"]:
        assert re.search(r":size=\d+m", mount), f"{mount} is without a limit"


def test_images_are_named_by_what_is_in_them():
    images = [service["image"] for service in SERVICES.values() if "build" not in service]
    images += [line.split()[0] for line in instructions("FROM")]
    assert len(images) == 4
    for image in images:
        assert re.fullmatch(r"[a-z/]+:\d+\.\d[\w.-]*@sha256:[0-9a-f]{64}", image), image


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - {"migrate"}))
def test_each_service_that_goes_on_running_has_a_health_check(name):
    assert SERVICES[name]["healthcheck"]["test"]


@pytest.mark.parametrize("name", ["beat", "watch"])
def test_the_health_check_of_a_heartbeat_looks_at_its_age(name, tmp_path):
    kind, command = SERVICES[name]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    file = tmp_path / "heart beat"
    environment = {"PATH": os.environ["PATH"], "FAIRLOT_HEARTBEAT_FILE": str(file)}

    def is_well() -> bool:
        words = ["sh", "-c", command.replace("$$", "$")]
        done = subprocess.run(words, check=False, env=environment, capture_output=True)
        return done.returncode == 0

    assert not is_well()
    file.touch()
    assert is_well()
    os.utime(file, (time.time() - 240,) * 2)
    assert not is_well()


def test_only_the_host_itself_reaches_what_is_published():
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_reaps_its_orphans_and_depends_on_services_that_exist(name):
    assert SERVICES[name]["init"] is True
    assert SERVICES[name].get("depends_on", {}).keys() <= SERVICES.keys()


def test_what_others_wait_for_to_be_healthy_has_a_health_check():
    for service in SERVICES.values():
        for name, condition in service.get("depends_on", {}).items():
            if condition["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[name]


def test_named_volumes_are_declared():
    mounted = {v.split(":")[0] for service in SERVICES.values() for v in service.get("volumes", [])}
    assert mounted == yaml.safe_load(COMPOSE_TEXT)["volumes"].keys()


def test_the_image_copies_what_exists_and_docker_may_see():
    copied = []
    for line in instructions("COPY"):
        words = shlex.split(line)
        if not words[0].startswith("--from="):
            copied += words[:-1]
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert {"portal", "scheduling", "accounting", "fairshare", "uv.lock"} <= set(copied)
    for source in copied:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored, f".dockerignore hides {source}"


def test_the_image_does_not_run_as_root():
    assert instructions("USER") == ["fairlot"]
