"""Each command, option, setting, URL, file and sample in the documentation exists and is valid."""

import ast
import importlib.util
import json
import re
import shlex
from collections.abc import Iterator
from functools import cache

import pytest
from django.conf import settings
from django.core.management import get_commands, load_command_class
from django.urls import Resolver404, resolve

import portal.settings
from portal.api.api import api
from portal.docs import library
from portal.docs.markdown import anchor_of
from scheduling.core.reason_labels import SHORT
from scheduling.pipelines.definition import Definition
from scheduling.spec.job_spec import JobSpec
from tests.attack.attacks import all_attacks
from tests.ground.settings_read import SETTINGS, calls_on, settings_names
from tests.ground.test_settings_doc import PORTAL_PART, rows

ROOT = settings.BASE_DIR
PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / f"{name}.md" for name in ("README", "SECURITY", "THREAT_MODEL")),
]
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text() for path in PAGES}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
MANAGED = re.compile(
    r"(?:manage\.py +|make manage ARGS=\"|python manage\.py +)([a-z_]+)([^`\n\"]*(?:\"[^\"\n]*\"[^`\n\"]*)*)"
)
IN_BLOCKS, IN_SPANS = "blocks", "spans"


def code(kind: str) -> Iterator[tuple[str, str]]:
    """Yields (page, code) from the documentation.

    `kind`: IN_BLOCKS for the code blocks, IN_SPANS for the code spans outside code blocks.
    """
    for page, text in TEXTS.items():
        if kind == IN_BLOCKS:
            yield from ((page, sample) for _, sample in BLOCK.findall(text))
        else:
            yield from ((page, span) for span in re.findall(r"`([^`\n]+)`", BLOCK.sub("", text)))


def everything() -> Iterator[tuple[str, str]]:
    yield from code(IN_BLOCKS)
    yield from code(IN_SPANS)


# --- commands ------------------------------------------------------------------------------------
@cache
def options_of(command: str) -> set[str]:
    """Returns the options of a Django command. Raises KeyError if the command does not exist."""
    found = load_command_class(get_commands()[command], command)
    return set(found.create_parser("manage.py", command)._option_string_actions)


def managed() -> set[tuple[str, str, str]]:
    """Returns (page, command, rest of the line) for each Django command that the documentation shows."""
    return {(page, command, rest) for page, text in everything() for command, rest in MANAGED.findall(text)}


def test_django_commands_exist_with_the_options_that_are_named() -> None:
    assert len({command for _, command, _ in managed()}) > 10
    wrong = []
    for page, command, rest in managed():
        if command not in get_commands():
            wrong.append(f"{page}: manage.py {command}")
            continue
        options = re.findall(r"(?<![\w-])--[a-z][\w-]*", rest.partition("#")[0].partition(";")[0])
        wrong += [
            f"{page}: manage.py {command} {name}" for name in options if name not in options_of(command)
        ]
    assert wrong == []


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (page, target)
        for page, text in everything()
        for target in re.findall(r"(?:^|[\s;])make ([a-z][a-z-]*)", text)
    }
    assert {target for _, target in named} >= {"up", "test", "lint", "bench", "manage"}
    assert [(page, target) for page, target in named if target not in targets] == []


def test_python_modules_that_are_run_exist() -> None:
    named = {name for _, text in everything() for name in re.findall(r"python3? -m ((?!pytest)[\w.]+)", text)}
    assert named >= {"fairshare", "tests.attack", "tests.cluster"}
    for name in named:
        spec = importlib.util.find_spec(name)
        assert spec is not None, name
        assert not spec.submodule_search_locations or importlib.util.find_spec(f"{name}.__main__"), name


def test_files_and_scripts_of_the_repository_that_are_named_exist() -> None:
    rooms = "accounting|bin|deploy|docs|embedded|examples|fairshare|portal|scheduling|templates|tests"
    named = {
        (page, name.partition("::")[0].rstrip("/"))
        for page, text in everything()
        for name in re.findall(rf"(?<![\w./$~-])((?:{rooms})/[\w./:-]+)", text)
    }
    assert len(named) > 80
    assert [(page, name) for page, name in sorted(named) if not (ROOT / name).exists()] == []


# --- settings ------------------------------------------------------------------------------------
OF_JOBS = re.compile(r'"(?:FAIRLOT_[A-Z_]+)"|\bFAIRLOT_[A-Z_]+\b')


def test_variables_that_are_named_are_settings_or_read_or_set_elsewhere() -> None:
    sources = [
        *(ROOT / "scheduling").rglob("*.py"),
        *(ROOT / "embedded").glob("*.py"),
        *(ROOT / "clients").rglob("*.py"),
        ROOT / "tests" / "conftest.py",
    ]
    known = settings_names() | {
        name.strip('"') for path in sources for name in OF_JOBS.findall(path.read_text())
    }
    named = {(page, name) for page, text in everything() for name in re.findall(r"\bFAIRLOT_[A-Z_]+\b", text)}
    named = {(page, name.removesuffix("_FILE") if name not in known else name) for page, name in named}
    # the rest of this name is the name of a step
    known |= {name for _, name in named if name.startswith("FAIRLOT_INPUT_")}
    assert [(page, name) for page, name in sorted(named) if name not in known] == []


# Settings whose default depends on other settings, so that the table describes the default in words.
DEPENDENT = {
    "FAIRLOT_TRUSTED_PROXIES",
    "FAIRLOT_TRUSTED_HEAD_KEYS",
    "FAIRLOT_SESSIONS_URL",
    "FAIRLOT_MAIL_FROM",
}


def test_each_setting_has_the_default_that_the_table_says() -> None:
    said = rows(PORTAL_PART)
    checked = set()
    for call in calls_on(SETTINGS, "env"):
        name = call.args[0].value
        default = (
            call.args[1]
            if len(call.args) > 1
            else next((k.value for k in call.keywords if k.arg == "default"), None)
        )
        if default is None or name in DEPENDENT:
            continue
        value = eval(compile(ast.Expression(default), "settings", "eval"), vars(portal.settings).copy())  # noqa: S307
        expected = "none" if value in ("", []) else f"`{as_text(value)}`"
        assert said[name].partition(";")[0] == expected, name
        checked.add(name)
    assert len(checked) > 30


def as_text(value: object) -> str:
    if isinstance(value, list):
        return ",".join(value)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text.removeprefix(f"{ROOT}/")


# --- addresses -----------------------------------------------------------------------------------
@cache
def operations() -> list[tuple[re.Pattern[str], set[str]]]:
    """Returns (pattern, methods) for each path of the OpenAPI document: a regular expression that matches the path, and
    its methods without the deprecated ones."""
    paths = api.get_openapi_schema()["paths"]
    return [
        (
            re.compile(re.sub(r"\{\w+\}", r"[^/]+", path)),
            {method.upper() for method, one in methods.items() if not one.get("deprecated")},
        )
        for path, methods in paths.items()
    ]


CALL = re.compile(r"(?:\b(GET|POST|PUT|PATCH|DELETE) )?(?:\$FAIRLOT)?(/api/v1/[^\s\"'`?)]*)")


def calls() -> Iterator[tuple[str, str, str]]:
    """Yields page, method and path of each API call in the documentation.

    The method is empty if the text does not say it.
    """
    for page, text in everything():
        for line in text.replace("\\\n", " ").splitlines():
            for method, path in CALL.findall(line):
                said = re.search(r"-X (\w+)", line)
                implied = "POST" if re.search(r"--json|--data|-d ", line) else "GET"
                yield (
                    page,
                    method or (said[1] if said else implied if "curl" in line else ""),
                    path.rstrip("/;,."),
                )


def test_api_calls_are_in_the_openapi_document() -> None:
    found = set(calls())
    assert len({path for _, _, path in found}) > 40
    wrong = []
    for page, method, path in sorted(found):
        if path in {"/api/v1/docs", "/api/v1/openapi.json", "/api/v1"}:
            continue
        methods = set().union(*(known for pattern, known in operations() if pattern.fullmatch(path)))
        if not methods or (method and method not in methods):
            wrong.append(f"{page}: {method} {path}")
    assert wrong == []


def test_pages_and_files_of_the_portal_that_are_named_exist() -> None:
    named = {
        (page, path)
        for page, span in code(IN_SPANS)
        for path in re.findall(r"^(/(?:usage|trades|share|healthz|docs|\.well-known)[\w./-]*)", span)
    }
    assert len(named) > 12
    for page, path in named:
        try:
            resolve(path)
        except Resolver404:
            pytest.fail(f"{page}: {path}")


def test_links_of_the_pages_outside_docs_lead_to_files_and_sections() -> None:
    for name in ("README", "SECURITY", "THREAT_MODEL", "CHANGELOG"):
        text = (ROOT / f"{name}.md").read_text()
        own = {f"{name}.md#{anchor_of(title)}" for title in re.findall(r"^#+ (.*)", text, re.MULTILINE)}
        for target in re.findall(r"\]\(([^)]+)\)", text):
            path, _, anchor = target.partition("#")
            if path.startswith("docs/") and path.endswith(".md"):
                page = library.pages()[path.removeprefix("docs/").removesuffix(".md")]
                assert not anchor or anchor in {section.anchor for section in page.sections}, (
                    f"{name}: {target}"
                )
            else:
                assert (ROOT / path).exists() if path else f"{name}.md{target}" in own, f"{name}: {target}"


def test_attacks_that_the_threat_model_names_exist() -> None:
    cells = [
        row.rpartition(" | ")[2] for row in TEXTS["THREAT_MODEL.md"].splitlines() if row.startswith("| ")
    ]
    named = {word for cell in cells for word in re.findall(r"`([a-z_]+)`", cell)}
    assert named >= {"accounts", "kubernetes", "tenancy"}
    assert named <= {attack.subject for attack in all_attacks()}


LABEL = re.compile(r"(?<![*\w])\*([A-Z][^*\n]*)\*(?!\*)")


def test_labels_of_the_user_interface_that_are_named_exist() -> None:
    """Each emphasised text that begins with a capital letter is a label of the user interface; "→" separates several
    labels."""
    sources = [path for room in ("templates", "portal", "scheduling") for path in (ROOT / room).rglob("*.*")]
    texts = [path.read_text() for path in sources if path.suffix in {".html", ".py"}]
    shown = re.sub(r"{{ \w+\|length\|pluralize:\"(\w+),\w+\" }}", r"\1", "\n".join(texts))
    named = {
        (page, label.strip())
        for page, text in TEXTS.items()
        for path in LABEL.findall(BLOCK.sub("", text))
        for label in path.split("→")
    }
    labels = {(page, label) for page, label in named if "…" not in label and not label.startswith("the ")}
    assert len(labels) > 60
    assert [(page, label) for page, label in sorted(labels) if label not in shown] == []


def test_each_reason_why_a_job_waits_is_explained() -> None:
    _, _, section = TEXTS["docs/jobs.md"].partition("\n## Find out why a job waits\n")
    section, _, _ = section.partition("\n## ")
    assert [label for label in SHORT.values() if label not in section] == []


# --- samples -------------------------------------------------------------------------------------
def specs() -> Iterator[tuple[str, object]]:
    """Yields page and job specification of each sample: YAML blocks, and `spec` or `specs` in JSON bodies."""
    for page, text in TEXTS.items():
        for language, sample in BLOCK.findall(text):
            if language == "yaml":
                yield page, sample
            bodies = (
                [sample]
                if language == "json"
                else re.findall(r"(?:-d|--json)\s+(?:\\\n\s*)?'([^']*)'", sample)
            )
            for body in bodies:
                content = json.loads(body)
                yield from ((page, one) for one in [content.get("spec"), *content.get("specs", [])] if one)


def test_samples_of_job_specifications_are_valid() -> None:
    found = list(specs())
    assert len(found) > 5
    for page, spec in found:
        if page == "docs/pipelines.md" and isinstance(spec, str):
            Definition.from_yaml(spec)
        else:
            JobSpec.from_yaml(spec) if isinstance(spec, str) else JobSpec.parse(spec)


def test_the_table_of_the_job_specification_has_each_field_and_no_other() -> None:
    _, _, section = TEXTS["docs/jobs.md"].partition("\n## Job specification\n")
    section, _, _ = section.partition("\n## ")
    named = {
        name
        for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert named == JobSpec.model_fields.keys() - {"version"}


def test_shell_samples_can_be_read_by_a_shell() -> None:
    for page, sample in code(IN_BLOCKS):
        for line in sample.splitlines():
            if line.startswith(("make ", "manage.py ", "docker ", "kubectl get ")):
                assert shlex.split(line, comments=True), f"{page}: {line}"
