"""Builds the command of a job from the commands, scripts and argument lists of foreign texts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from scheduling.importers.documents import shown
from scheduling.importers.draft import JobDraft
from scheduling.importers.report import Fate

SHELLS = {"sh", "bash", "dash", "ash", "zsh"}
# What a plain /bin/sh, such as dash, does not understand.
OF_BASH = re.compile(
    r"^\s*(?:source|declare|typeset|mapfile|readarray|shopt|pushd|popd|function|let)\s|\[\[|<<<|&>|\|&|[<>]\(|\(\(|"
    r"\$\{\w+(?:\[|::|:-?\s*\d|//?|\^|,|@)|\$\{!|\w\+?=\(|set\s+-\S*o?\s*pipefail|-o\s+pipefail|\{\w+\.\.\w+\}|\$'|"
    r"\becho\s+-\w*e|\b(?:conda|mamba)\s+activate\b|\$\{?(?:RANDOM|BASH\w*|PIPESTATUS|SECONDS)\b|"
    r"[;&|]\s*source\s|\[\s[^\]\n]*\s==\s",
    re.MULTILINE | re.ASCII,
)
NEEDS_ROOT = re.compile(
    r"(?:^|[;&|(]|\bthen\b|\bdo\b)\s*(sudo|apt|apt-get|yum|dnf|apk|mount|modprobe|sysctl|service|systemctl|chown|docker)"
    r"\s+(?!-h|--help|--version)",
    re.MULTILINE | re.ASCII,
)
# The names of the workers' hosts, one a line, in order of rank.
HOSTS = '"$(if [ -r "${FAIRLOT_HOSTFILE:-}" ]; then cut -d " " -f 1 "$FAIRLOT_HOSTFILE"; else echo "$MASTER_ADDR"; fi)"'


def script_of(words: Sequence[str], *, expand: bool = False) -> str:
    """Returns an argument list as a shell script. An argument list that only calls a shell becomes its script.

    If `expand` is true, the shell replaces references to variables in the arguments.
    """
    if len(words) >= 3 and words[0].rsplit("/", 1)[-1] in SHELLS and re.fullmatch(r"-[a-z]*c", words[1]):
        shell, options = words[0].rsplit("/", 1)[-1], words[1]
        if len(words) == 3 and (shell == "sh" or options in {"-c", "-lc", "-ec", "-exc", "-xc"}):
            flags = "".join(letter for letter in options[1:-1] if letter in "eux")
            return f"set -{flags}\n{words[2]}" if flags else words[2]
    return " ".join(_quoted(word, expand=expand) for word in words)


def _quoted(word: str, *, expand: bool) -> str:
    if expand and "$" in word:
        return '"' + re.sub(r'(["\\`])', r"\\\1", word) + '"'
    return shlex.quote(word)


def used_in(script: str, names: Iterable[str]) -> list[str]:
    """Returns those of `names` that the script uses as variables, or passes on by name."""
    return [
        name for name in names if re.search(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", script)
    ]


def in_subshell(script: str) -> str:
    """Returns the script in a subshell. If it fails, the job fails."""
    return f"(\n:\n{script.rstrip()}\n) || exit 1"


def in_bash(script: str) -> str:
    """Returns a script of /bin/sh that runs `script` with bash. Standard input stays free."""
    end = "END_OF_SCRIPT"
    while f"\n{end}\n" in f"\n{script}\n":
        end += "_"
    return f"exec bash -c \"$(cat <<'{end}'\n{script.rstrip()}\n{end}\n)\""


def put_command(
    draft: JobDraft,
    script: str,
    source: str,
    *,
    given: Mapping[str, str] | None = None,
    text: str = "",
    fate: Fate = Fate.MAPPED,
) -> None:
    """Sets the command to `script`.

    `given` has, by variable, the shell expression that gives its value. Those that the script uses are exported first.
    A script that needs bash runs with bash, and the report says that the image must have it.
    """
    if not _does_something(script):
        draft.report.refused_at(source, "There is no command to run.", "command")
        return
    exports = {name: (given or {})[name] for name in used_in(script, given or {})}
    lines = [f"export {name}={value}" for name, value in exports.items()]
    needs_bash = bool(OF_BASH.search(script))
    draft.command("\n".join([*lines, in_bash(script) if needs_bash else script.strip()]), source, text, fate)
    if draft.report.refused and "command" not in draft:
        return
    for name, value in exports.items():
        draft.report.remark(
            Fate.APPROXIMATED,
            f"{source}: ${name}",
            "command",
            f"The command sets this variable to {shown(value)}.",
        )
    if found := NEEDS_ROOT.search(script):
        draft.report.remark(
            Fate.APPROXIMATED, source, "command",
            f"The command uses {found[1]}, which needs root. Programs run as an ordinary user: put the software"
            f" into the"
            " image.",
        )  # fmt: skip
    if needs_bash:
        draft.report.remark(
            Fate.APPROXIMATED, source, "command", "The script needs bash. The image must contain it."
        )


def _does_something(script: str) -> bool:
    return any(line.strip() and not line.strip().startswith("#") for line in script.splitlines())
