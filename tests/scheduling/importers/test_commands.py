"""Commands that are built from foreign scripts, run by a real shell."""

from __future__ import annotations

import subprocess

import pytest
import yaml

from scheduling.importers.commands import HOSTS, in_bash, in_subshell, put_command, script_of
from scheduling.importers.draft import JobDraft
from scheduling.importers.registry import convert
from scheduling.importers.report import Fate, Report

OF_BASH = """\
names=(one "two three")
for name in "${names[@]}"; do echo "<$name>"; done
cat <<'END_OF_SCRIPT'
a ) quote " and $HOME
END_OF_SCRIPT
[[ $1 == "" ]] && echo )done( | tr -d '()'
"""


def _run(command: str, **variables: str) -> str:
    return subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, check=True, input="from outside\n",
        env={"PATH": "/usr/bin:/bin", **variables},
    ).stdout  # fmt: skip


def _command(script: str, given: dict[str, str] | None = None) -> str:
    draft = JobDraft(Report())
    put_command(draft, script, "run", given=given)
    return str(draft.spec.get("command", ""))


def test_a_script_of_bash_runs_with_bash_word_by_word() -> None:
    script = OF_BASH.replace("echo )done( | tr -d '()'", "echo ')done(' | tr -d '()'")
    assert _run(_command(script)) == '<one>\n<two three>\na ) quote " and $HOME\ndone\n'


def test_a_plain_script_stays_as_it_is() -> None:
    assert _command("echo a\npython train.py\n") == "echo a\npython train.py"


def test_a_script_of_bash_still_reads_standard_input() -> None:
    assert _run(in_bash("read -r line; [[ $line ]] && echo $line")) == "from outside\n"


def test_only_variables_that_the_script_uses_are_exported() -> None:
    command = _command("echo $NODES", {"NODES": '"$WORLD_SIZE"', "NODE": "1"})
    assert _run(command, WORLD_SIZE="3") == "3\n"
    assert "NODE=" not in command


def test_a_failed_setup_ends_the_job() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        _run(f"{in_subshell('false # nothing more')}\necho no")
    assert _run(f"{in_subshell('cd /; x=1 # only a comment follows')}\necho $x.") == ".\n"


def test_hosts_come_from_the_host_file_or_the_first_worker() -> None:
    assert _run(f"echo {HOSTS}", MASTER_ADDR="first") == "first\n"


@pytest.mark.parametrize(
    ("words", "script"),
    [
        (["sh", "-c", "a && b"], "a && b"),
        (["/bin/bash", "-lc", "a"], "a"),
        (["bash", "-exc", "a"], "set -ex\na"),
        (["python", "a b.py", "--x=$HOME"], "python 'a b.py' '--x=$HOME'"),
    ],
)
def test_argument_lists_become_scripts(words: list[str], script: str) -> None:
    assert script_of(words) == script


def test_comments_alone_are_no_command() -> None:
    assert _command("# nothing\n\n") == ""


@pytest.mark.parametrize("script", ["sudo apt update", "cd x && apt-get install -y git", "mount a:/b /c"])
def test_a_command_that_needs_root_is_reported(script: str) -> None:
    draft = JobDraft(Report())
    put_command(draft, script, "run")
    assert any("needs root" in line.text for line in draft.report.lines)


@pytest.mark.parametrize(
    ("nodes", "command", "refused"),
    [
        (2, "mpirun --hostfile $DSTACK_MPI_HOSTFILE -n 2 ./a.out", False),
        (2, "if true; then\n  mpirun \\\n    --allow-run-as-root -H a:4,b:4 python a.py\nfi", True),
        (1, "horovodrun -np 8 -H master-0:4,worker-0:4 python a.py", True),
        (2, "deepspeed --hostfile=hosts a.py", True),
        (1, "mpirun --hostfile $DSTACK_MPI_HOSTFILE -n 2 ./a.out", False),
        (2, "horovodrun -np 4 -H localhost:4 python a.py", False),
        (2, "mpirun -n 4 ./all_reduce_perf -b 8 -e 8G -f 2", False),
    ],
)
def test_a_command_that_starts_programs_on_other_hosts_is_refused(
    nodes: int, command: str, refused: bool
) -> None:
    text = yaml.safe_dump(
        {"type": "task", "nodes": nodes, "commands": [command], "resources": {"gpu": "A100:4"}}
    )
    found = convert(text)
    said = [line.text for line in found.report if line.fate is Fate.REFUSED]
    assert (found.refused, any("on other hosts" in one for one in said)) == (refused, refused)
