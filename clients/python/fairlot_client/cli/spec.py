"""Makes a job specification from a file, a script with `#FAIRLOT` lines, a command and options."""

from __future__ import annotations

import io
import re
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from fairlot_client.cli.local_files import SHELLS, is_python, opened, text_of

C = TypeVar("C", bound=Callable[..., Any])

MARK = "#FAIRLOT"
SBATCH = re.compile(r"^#SBATCH\s", re.MULTILINE)
SCRIPT = re.compile(r"[^/]\.(?:py|ipynb|sh|bash|R|r|jl|pl|lua)$")
# Programs that can read a script from their option -c.
WITH_C = {"sh", "bash", "dash", "zsh", "ksh", "python", "python3"}


class Pair(click.ParamType[tuple[str, str]]):
    """A value of the form KEY=VALUE."""

    name = "KEY=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        key, equals, rest = value.partition("=")
        if not equals or not key:
            self.fail(f'"{value}" has no key. Write KEY=VALUE.', param, ctx)
        return key, rest


class Hours(click.ParamType[float]):
    """A duration in hours: a number of hours, or a number with a unit: 90m, 36h or 2d."""

    name = "HOURS"
    UNITS: Mapping[str, float] = {"s": 1 / 3600, "m": 1 / 60, "h": 1, "d": 24}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)", str(value))
        if not found:
            self.fail(f'"{value}" is not a duration. Write a number of hours, or 90m, 36h or 2d.', param, ctx)
        return float(found[1]) * self.UNITS[found[2] or "h"]


PAIR, HOURS = Pair(), Hours()
# By option: the field of the specification. The fields of PAIRS become mappings, and those of LISTS lists.
FIELDS = {
    "name": "name", "workers": "workers", "max_workers": "max_workers", "gpus": "gpus_per_worker",
    "gpu_type": "generations", "environment": "environment", "env": "variables", "priority": "priority",
    "preemptible": "preemptible", "label": "labels", "port": "port", "cpu": "cpu", "memory": "memory", "shm": "shm",
    "working_directory": "working_directory", "expected_hours": "expected_hours",
    "deadline_hours": "deadline_hours", "time_limit": "time_limit_hours", "secret": "secrets",
}  # fmt: skip
PAIRS = {"env", "label", "secret"}
_OPTIONS = [
    click.option("-n", "--name", help="Name of the job. By default that of the script or program."),
    click.option("-w", "--workers", type=int, help="Number of workers, which start together."),
    click.option("--max-workers", type=int, help="Most workers of an elastic job; --workers is the least."),
    click.option("-g", "--gpus", type=int, help="GPUs of each worker."),
    click.option("--gpu-type", multiple=True, help="Accepted GPU type, such as A100. Repeat for several."),
    click.option("-i", "--environment", "--image", "environment", help="Container image or environment."),
    click.option("-e", "--env", type=PAIR, multiple=True, help="Environment variable of the job."),
    click.option("-p", "--priority", type=int, help="Priority among your team's jobs."),
    click.option(
        "--preemptible/--not-preemptible", default=None, help="Run only on GPUs that nobody else wants."
    ),
    click.option("-l", "--label", type=PAIR, multiple=True, help="Label of the job."),
    click.option(
        "--secret", type=PAIR, multiple=True, help="Variable with the value of a secret: VARIABLE=SECRET."
    ),
    click.option("--port", type=int, help="Port at which the first worker answers."),
    click.option(
        "-r",
        "--requirements",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="File with the Python packages that are installed first, such as requirements.txt.",
    ),
    click.option("--cpu", type=float, help="CPUs of each worker."),
    click.option("--memory", help="Memory of each worker, such as 64Gi."),
    click.option("--shm", help="Shared memory of each worker, such as 8Gi."),
    click.option("-C", "--working-directory", help="Folder in which the command runs."),
    click.option("--expected-hours", type=float, help="Expected run time."),
    click.option("--deadline-hours", type=float, help="Hours from now until the job should have ended."),
    click.option(
        "--time-limit", type=HOURS, help="Longest time on GPUs, after which the job stops: 90m, 36h or 2d."
    ),
    click.option(
        "--set",
        "fields",
        type=PAIR,
        multiple=True,
        help="Any field of the job specification, with a YAML value, such as checkpoint_grace_seconds=60.",
    ),
]
_PLACE = [
    click.option("-t", "--team", help="Team that pays. Not needed if you are in only one."),
    click.option("--cluster", help="Cluster to run on. Not needed if there is only one."),
]
_ANYWAY = click.option(
    "--even-if-never", is_flag=True, help="Queue the job even if it can never run here now."
)
_CODE = [
    click.option(
        "--code",
        type=click.Path(exists=True, path_type=Path),
        help="File, folder or archive that is uploaded, and in which the command starts.",
    ),
    click.option(
        "--no-requirements",
        is_flag=True,
        help="Do not install the packages of a requirements.txt in the code's folder.",
    ),
    click.option("--git", help="https:// URL of a Git repository, in which the command starts."),
    click.option("--ref", help="Branch, tag or commit of the repository."),
]
_FILE = click.option("-f", "--file", type=click.File(), help="Job specification as YAML; - is stdin.")
_SCRIPT = click.argument("command", nargs=-1, type=click.UNPROCESSED)


def spec_options(command: C) -> C:
    """Adds the options of the job specification, and those of the team and the cluster."""
    for option in reversed([*_OPTIONS, *_PLACE]):
        command = option(command)
    return command


def job_options(command: C) -> C:
    """Adds the arguments of all commands that submit something: -f, the options of a job, and the command."""
    command = spec_options(_ANYWAY(_SCRIPT(command)))
    for option in reversed(_CODE):
        command = option(command)
    return _FILE(command)


def read_options(
    *,
    file: Any,
    command: Sequence[str],
    options: Mapping[str, Any],
    base: Mapping[str, Any] | None = None,
    directives: Mapping[str, Any] | None = None,
    may_be_incomplete: bool = False,
    parameters: Collection[str] = (),
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the job specification, and the team and cluster as far as they are given.

    `base`, a specification to change, counts least; then the file, `directives` or the lines of the script, and the
    options. `parameters` are the names that may stand as `{name}` in the words of the command. Raises UsageError if
    there is nothing to run, unless the specification may be incomplete.
    """
    spec = dict(base or {}) | (read_file(file) if file else {})
    _lay_over(spec, directives or {})
    place = place_of(directives or {})
    words = list(command)
    if words and words[0].startswith("-") and words[0] != "-":
        raise click.UsageError(
            f"Options stand before the command, so {words[0]} would be a command. Move it forward."
        )
    script = script_of(words)
    if script is not None:
        text, source = script
        directives = directives_of(text, source)
        if SBATCH.search(text) and not directives and not _any_option(options):
            raise click.UsageError(
                f"{source} has #SBATCH lines, which this command does not read. Run: fairlot submit {source}."
                " To run it as it is, add a line such as #FAIRLOT --gpus 1."
            )
        _lay_over(spec, directives)
        place |= place_of(directives)
        spec["command"] = as_command(text, source, words[1:], parameters)
        spec.setdefault("name", "stdin" if source == "-" else Path(source).stem)
    elif words:
        spec["command"] = words[0] if len(words) == 1 else joined(words, parameters)
        spec.setdefault("name", name_of(shlex.split(words[0]) if len(words) == 1 else words))
    _lay_over(spec, options)
    place |= place_of(options)
    if not may_be_incomplete:
        require_command(spec)
    return spec, place


def joined(words: Sequence[str], parameters: Collection[str] = ()) -> str:
    """Returns the words as a shell command. Each `{name}` of a parameter stays outside of quotes, as the portal quotes
    the value that it puts there."""
    if not parameters:
        return shlex.join(words)
    names = "|".join(map(re.escape, parameters))
    # `{{name}}`, which stands for {name}, and `${name}`, which is a variable, are text.
    placeholder = re.compile(rf"\{{\{{(?:{names})\}}\}}|(?<!\$)(?P<bare>\{{(?:{names})\}})")

    def quoted(word: str) -> str:
        parts, end = [], 0
        for found in placeholder.finditer(word):
            if found["bare"]:
                parts += [word[end : found.start()], found["bare"]]
                end = found.end()
        parts.append(word[end:])
        texts = [part if at % 2 else part and shlex.quote(part) for at, part in enumerate(parts)]
        return "".join(texts) or shlex.quote("")

    return " ".join(map(quoted, words))


def name_of(words: Sequence[str]) -> str:
    """Returns the name of a job with this command: that of the first script, or else of the program."""
    script = next((word for word in words if SCRIPT.search(word)), words[0] if words else "")
    path = Path(script)
    return (path.stem if SCRIPT.search(script) else path.name) or "job"


def require_command(spec: Mapping[str, Any]) -> None:
    """Raises UsageError if the specification has nothing to run."""
    if not spec.get("command"):
        raise click.UsageError(
            "There is nothing to run. Give a command after --, the path of a script, or -f FILE.",
            click.get_current_context(silent=True),
        )


def place_of(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in ("team", "cluster") if options.get(name)}


def foreign_text(
    file: Any, words: Sequence[str], options: Mapping[str, Any]
) -> tuple[str, Any, tuple[str, ...]]:
    """Returns the text that may be a file of another system, the file of -f, still to be read, and the words of the
    command. The last two are used if the text is in no known format.

    The text is "" for a command, for Python files and scripts without #SBATCH lines or with #FAIRLOT lines, and beside
    options of a job.
    """
    alone = not (_any_option(options) or any(options.get(name) for name in ("code", "git", "requirements")))
    file, words = opened(file, words)
    if file is None:
        text = text_of(words[0]) if alone and len(words) == 1 and words[0] != "-" else None
        if not text or directives_of(text, words[0]):
            return "", None, words
        is_own = is_python(words) or script_of(words) is not None
        return ("" if is_own and not SBATCH.search(text) else text), None, words
    try:
        text = file.read()
    except UnicodeDecodeError:
        raise click.UsageError(f"{file.name} is not UTF-8 text.") from None
    again = io.StringIO(text)
    again.name = file.name
    return (text if alone and not words else ""), again, words


def read_file(file: Any) -> dict[str, Any]:
    """Returns the specification in a YAML file. Raises UsageError if it is not a mapping."""
    from fairlot_client.cli.yaml_core import NotYaml, read  # noqa: PLC0415 - the program must start quickly

    try:
        spec = read(file.read())
    except NotYaml as error:
        raise click.UsageError(f"{file.name} is not valid YAML: {error}") from None
    except UnicodeDecodeError:
        raise click.UsageError(f"{file.name} is not UTF-8 text.") from None
    if not isinstance(spec, dict):
        raise click.UsageError(
            f"{file.name} must have the fields of a job specification, such as name and command."
        )
    return spec


def script_of(words: Sequence[str]) -> tuple[str, str] | None:
    """Returns the text of the script that the command names, and its path. None if the command is no script.

    A script is a file on this machine whose name ends like that of a shell script, that begins with `#!` or has
    `#FAIRLOT` lines, or - for stdin.
    """
    if not words:
        return None
    if words[0] == "-":
        return sys.stdin.read(), "-"
    text = text_of(words[0])
    if text is None:
        return None
    is_script = words[0].endswith(SHELLS) or text.startswith("#!") or f"\n{MARK} " in f"\n{text}"
    return (text, words[0]) if is_script else None


def directives_of(text: str, source: str) -> dict[str, Any]:
    """Returns the options in the `#FAIRLOT` lines of a script. They end at the first line that is no comment.

    Raises UsageError, which names the line, if a line is wrong.
    """
    found: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            break
        if line.split(maxsplit=1)[:1] != [MARK]:
            continue
        try:
            arguments = shlex.split(line.removeprefix(MARK), comments=True)
            options = _directive.make_context(MARK, arguments).params
        except (click.UsageError, ValueError) as error:
            text_of = error.format_message() if isinstance(error, click.UsageError) else str(error)
            raise click.UsageError(f"{source}, line {number}: {text_of}") from None
        for name, value in options.items():
            if isinstance(value, tuple):
                found[name] = (*found.get(name, ()), *value)
            elif value is not None:
                found[name] = value
    return found


def as_command(text: str, source: str, arguments: Sequence[str], parameters: Collection[str] = ()) -> str:
    """Returns a shell command that runs a script with arguments, without its file. `parameters` are as in `joined`.

    Raises UsageError if the script's interpreter cannot be given a script as text.
    """
    first = text.split("\n", maxsplit=1)[0]
    interpreter = shlex.split(first[2:]) if first.startswith("#!") else []
    if interpreter and Path(interpreter[0]).name == "env":
        interpreter = interpreter[1:]
    program = Path(interpreter[0]).name if interpreter else "sh"
    if program == "sh" and len(interpreter) < 2 and not arguments:
        return text
    if program not in WITH_C:
        raise click.UsageError(
            f"{source} is a script for {program}. Accepted: {', '.join(sorted(WITH_C))}. Run other programs with a "
            "command: fairlot submit -- PROGRAM ARGUMENTS."
        )
    run = [*(interpreter or ["sh"]), "-c", text]
    # A shell takes the first argument after its script as the script's name; Python does not.
    name = [] if program.startswith("python") else ["script" if source == "-" else source]
    return " ".join(
        ["exec", shlex.join([*run, *name]), *([joined(arguments, parameters)] if arguments else [])]
    )


def _any_option(options: Mapping[str, Any]) -> bool:
    """Returns whether an option sets a field of the specification."""
    return any(options.get(name) not in (None, ()) for name in (*FIELDS, "fields"))


def _lay_over(spec: dict[str, Any], options: Mapping[str, Any]) -> None:
    for option, field in FIELDS.items():
        value = options.get(option)
        if value is None or value == ():
            continue
        if option in PAIRS:
            spec[field] = {**(spec.get(field) or {}), **dict(value)}
        else:
            spec[field] = list(value) if isinstance(value, tuple) else value
    if path := options.get("requirements"):
        try:
            spec["requirements"] = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise click.UsageError(f"{path} cannot be read: {error}") from None
    for field, text in options.get("fields") or ():
        from fairlot_client.cli.yaml_core import NotYaml, read  # noqa: PLC0415 - the program must start quickly

        try:
            spec[field] = read(text)
        except NotYaml as error:
            raise click.UsageError(f"--set {field}: the value is not valid YAML: {error}") from None


@click.command(MARK, add_help_option=False)
@spec_options
def _directive(**options: Any) -> None:
    """Reads the options in one `#FAIRLOT` line."""
