"""docker-compose.yml and the Dockerfile name only what exists, and all that is needed."""

import importlib
import json
import re
import shlex

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
    """Fail unless what this command line starts exists."""
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


def test_the_six_services_are_there():
    assert {"web", "worker", "beat", "watch", "postgres", "redis"} <= SERVICES.keys()


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
    given = PORTAL_SERVICES[name]["environment"].keys()
    assert given <= settings_names()
    assert required_settings() <= given


def test_the_image_is_built_with_the_required_settings():
    (line,) = [line for line in instructions("RUN") if "collectstatic" in line]
    assert required_settings() == {name for name, _ in re.findall(r"\b([A-Z_]+)=(\S+)", line)}


def test_the_environment_file_names_what_compose_asks_for():
    asked = set(re.findall(r"(?<!\$)\$\{([A-Z_]+)", COMPOSE_TEXT))
    offered = set(re.findall(r"^([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert asked == offered


def test_no_secret_has_a_default():
    for name, default in re.findall(r"\$\{([A-Z_]+):?-([^}]*)\}", COMPOSE_TEXT):
        assert not re.search("SECRET|PASSWORD|KEY", name), f"{name} defaults to {default!r}"
    for line in (ROOT / ".env.example").read_text().splitlines():
        if re.match(r"\w*(SECRET|PASSWORD|KEY)\w*=", line):
            assert line.endswith("="), line


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
