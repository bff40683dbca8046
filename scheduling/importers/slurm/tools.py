"""The variables and programs of Slurm that a converted script finds: SLURM_* and small programs such as srun."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from scheduling.importers.commands import OF_BASH
from scheduling.importers.draft import JobDraft
from scheduling.importers.slurm.arrays import Tasks
from scheduling.importers.slurm.directives import BatchScript
from scheduling.importers.slurm.resources import Request
from scheduling.spec.members import SWEEP_VARIABLE

# Options of srun whose value may be the next word.
WITH_VALUE = (
    "chdir", "constraint", "container-image", "container-mounts", "container-name", "container-workdir", "cpu-bind",
    "cpus-per-gpu", "cpus-per-task", "error", "exclude", "export", "gpu-bind", "gpus", "gpus-per-node", "gpus-per-task",
    "gres", "het-group", "hint", "input", "job-name", "jobid", "mem", "mem-per-cpu", "mem-per-gpu", "mpi", "nodelist",
    "nodes", "ntasks", "ntasks-per-node", "open-mode", "output", "partition", "relative", "signal", "tasks-per-node",
    "time",
)  # fmt: skip
# What bash and other shells understand in different ways, besides OF_BASH.
OTHERWISE_IN_BASH = re.compile(r"[{}]|\b(?:echo|time|source)\b|\$0", re.ASCII)
COUNTED = {"ntasks", "ntasks-per-node", "tasks-per-node", "nodelist", "gpus-per-task", "chdir", "export"}
LETTERS_WITH_VALUE = "ABCDEFGJLMNPSTWcdeimnopqrtwx"
_IGNORED = [f"--{name}" for name in WITH_VALUE if name not in COUNTED]
_JOINED = " | \\\n    ".join(" | ".join(_IGNORED[at : at + 6]) for at in range(0, len(_IGNORED), 6))
SRUN = f"""\
#!/bin/sh
# Runs the tasks of this worker. Other options that concern nodes and resources have no effect. The name and the address
# of another node are looked up, without running hostname there.
tasks=$SLURM_NTASKS_PER_NODE gpus=${{SLURM_GPUS_PER_TASK:-0}} node= names=
while [ $# -gt 0 ]; do
  case $1 in
    --ntasks-per-node=* | --tasks-per-node=*) tasks=${{1#*=}} ;;
    --ntasks-per-node | --tasks-per-node) tasks=$2; shift ;;
    --ntasks=*) tasks=$((${{1#*=}} / SLURM_WORKERS)) ;;
    --ntasks | -n) tasks=$(($2 / SLURM_WORKERS)); shift ;;
    -n?*) tasks=$((${{1#-n}} / SLURM_WORKERS)) ;;
    --nodelist=*) node=${{1#*=}} ;;
    --nodelist | -w) node=$2; shift ;;
    -w?*) node=${{1#-w}} ;;
    --gpus-per-task=*) gpus=${{1##*[=:]}} ;;
    --gpus-per-task) gpus=${{2##*:}}; shift ;;
    --export=*) names=${{1#*=}} ;;
    --export) names=$2; shift ;;
    --chdir=*) cd "${{1#*=}}" || exit 1 ;;
    --chdir | -D) cd "$2" || exit 1; shift ;;
    --*=*) ;;
    {_JOINED}) shift ;;
    -[{LETTERS_WITH_VALUE.translate(str.maketrans("", "", "nwD"))}]) shift ;;
    -*) ;;
    *) break ;;
  esac
  shift
done
if [ -n "$node" ] && [ "$1" = hostname ]; then
  case $2 in
    -i | -I | --ip-address | --all-ip-addresses)
      address=$(getent ahostsv4 "$node" 2>/dev/null | head -n 1 | cut -d ' ' -f 1)
      echo "${{address:-$node}}" ;;
    *) echo "$node" ;;
  esac
  exit
fi
[ "$tasks" -ge 1 ] || tasks=1
separator=$IFS IFS=,
set -f
for one in $names; do
  case $one in *=*) export "$one" ;; esac
done
set +f
IFS=$separator
workers=$SLURM_WORKERS worker=$SLURM_WORKER task=0 running=
while [ "$task" -lt "$tasks" ]; do
  (
    export SLURM_PROCID=$((worker * tasks + task)) SLURM_LOCALID=$task SLURM_NTASKS=$((workers * tasks))
    export SLURM_NODEID=$worker SLURM_NNODES=$workers SLURM_NPROCS=$((workers * tasks))
    if [ "$tasks" -gt 1 ]; then
      export RANK=$SLURM_PROCID LOCAL_RANK=$task WORLD_SIZE=$((workers * tasks))
    fi
    if [ "$gpus" -ge 1 ]; then
      first=$((task * gpus)) last=$(((task + 1) * gpus - 1))
      all=${{CUDA_VISIBLE_DEVICES:-$(seq -s , 0 "$last")}}
      export SLURM_GPUS_PER_TASK=$gpus
      export CUDA_VISIBLE_DEVICES=$(echo "$all" | cut -d , -f "$((first + 1))-$((last + 1))")
    fi
    exec "$@"
  ) &
  running="$running $!" task=$((task + 1))
done
trap 'kill $running 2>/dev/null' TERM INT
failed=0
for one in $running; do
  wait "$one" || failed=$?
done
exit "$failed"
"""
SCONTROL = """\
#!/bin/sh
# Prints the host names of the workers, the first one first.
case "$1 $2" in
  "show hostname" | "show hostnames")
    if [ -r "$FAIRLOT_HOSTFILE" ]; then cut -d ' ' -f 1 "$FAIRLOT_HOSTFILE"; else echo "$MASTER_ADDR"; fi ;;
  *) echo "scontrol $*: there is no Slurm here" >&2; exit 1 ;;
esac
"""
NOTHING = """\
#!/bin/sh
echo "$(basename "$0") $*: this has no effect here, the image must contain the software" >&2
"""
TEXTS = {"srun": SRUN, "scontrol": SCONTROL}
HOSTS = '"$(scontrol show hostnames | paste -s -d , -)"'
# By variable, the text in a shell script that gives its value at run time.
AT_RUN_TIME = {
    "SLURM_JOB_ID": '"$FAIRLOT_JOB_ID"',
    "SLURM_JOBID": '"$FAIRLOT_JOB_ID"',
    "SLURM_ARRAY_JOB_ID": '"$FAIRLOT_JOB_ID"',
    "SLURM_NODEID": '"$RANK"',
    "SLURM_PROCID": '"$RANK"',
    "SLURM_LOCALID": "0",
    "SLURM_SUBMIT_DIR": '"$PWD"',
    "SLURM_TMPDIR": '"${TMPDIR:-/tmp}"',
    "SLURM_JOB_NODELIST": HOSTS,
    "SLURM_NODELIST": HOSTS,
    "SLURM_STEP_NODELIST": HOSTS,
    "SLURM_LAUNCH_NODE_IPADDR": '"$MASTER_ADDR"',
    "SLURMD_NODENAME": '"$(hostname)"',
    "SLURM_JOB_GPUS": '"${CUDA_VISIBLE_DEVICES:-}"',
    "SLURM_STEP_GPUS": '"${CUDA_VISIBLE_DEVICES:-}"',
    "SLURM_RESTART_COUNT": '"$((FAIRLOT_EPOCH - 1))"',
    "SLURM_JOB_USER": '"$LOGNAME"',
}
Static = Callable[[BatchScript, Request], str]
# By variable, its value, if it is known before the job runs; "" if Slurm would not set it.
BEFORE: dict[str, Static] = {
    "SLURM_JOB_NAME": lambda script, request: script.value("job-name"),
    "SLURM_NNODES": lambda script, request: str(request.workers),
    "SLURM_JOB_NUM_NODES": lambda script, request: str(request.workers),
    "SLURM_NTASKS": lambda script, request: str(request.workers * request.tasks_per_worker),
    "SLURM_NPROCS": lambda script, request: str(request.workers * request.tasks_per_worker),
    "SLURM_NTASKS_PER_NODE": lambda script, request: str(request.tasks_per_worker),
    "SLURM_TASKS_PER_NODE": lambda script, request: str(request.tasks_per_worker),
    "SLURM_CPUS_PER_TASK": lambda script, request: str(request.cpus_per_task or ""),
    "SLURM_GPUS": lambda script, request: str(request.gpus_per_worker * request.workers),
    "SLURM_GPUS_ON_NODE": lambda script, request: str(request.gpus_per_worker),
    "SLURM_GPUS_PER_NODE": lambda script, request: str(request.gpus_per_worker),
    "SLURM_GPUS_PER_TASK": lambda script, request: str(request.gpus_per_task or ""),
    "SLURM_CPUS_ON_NODE": lambda script, request: str(request.cpus_per_task * request.tasks_per_worker or ""),
    "SLURM_JOB_CPUS_PER_NODE": lambda script, request: str(
        request.cpus_per_task * request.tasks_per_worker or ""
    ),
    "SLURM_JOB_PARTITION": lambda script, request: script.value("partition"),
    "SLURM_JOB_ACCOUNT": lambda script, request: script.value("account"),
    "SLURM_JOB_QOS": lambda script, request: script.value("qos"),
}
NO_ARRAY = (
    "This variable is not set, as the script has no array. If it was given to sbatch, add a line such as #SBATCH"
    " --array=1-10 to the script."
)
OF_ARRAYS = "SLURM_ARRAY_TASK_"
OF_ARRAY = "SLURM_ARRAY_JOB_ID"
# A job that is submitted again by itself is no member of the sweep any more.
SHARED = f'"${{{SWEEP_VARIABLE}:-$FAIRLOT_JOB_ID}}"'


def set_variables(
    script: BatchScript,
    request: Request,
    draft: JobDraft,
    names: list[str],
    line_of: Callable[[str], int],
    *,
    tasks: Tasks | None,
) -> dict[str, str]:
    """Sets the variables that the script uses and that are known now, and those of the tasks of an array. Returns the
    others, with the text that gives their value."""
    exports: dict[str, str] = {}
    if tasks is not None:
        exports |= tasks.exports
        draft.spec["variables"] = draft.spec.get("variables", {}) | tasks.variables
    for name in names:
        source = f"line {line_of(rf'[$]{{?{name}')}: ${name}"
        if tasks is not None and name == OF_ARRAY and len(tasks.numbers) > 1:
            exports[name] = SHARED
            draft.report.mapped(source, "command", "The number of the sweep, which all its members have.")
        elif tasks is not None and name.startswith(OF_ARRAYS):
            draft.report.mapped(source, f"variables.{name}", _of_tasks(tasks, name))
        elif name == OF_ARRAY and tasks is None:
            draft.report.dropped(source, NO_ARRAY)
        elif name in AT_RUN_TIME:
            exports[name] = AT_RUN_TIME[name]
            draft.report.approximated(
                source, "command", f"The command sets this variable to {AT_RUN_TIME[name]}."
            )
        elif name in BEFORE and (value := BEFORE[name](script, request)):
            draft.variable(name, value, source, f"Set to {value[:60]}, as Slurm would.")
        elif name.startswith(OF_ARRAYS):
            draft.report.dropped(source, NO_ARRAY)
        else:
            draft.report.dropped(source, "This variable is not set.")
    return exports


def _of_tasks(tasks: Tasks, name: str) -> str:
    value = tasks.variables.get(name)
    return "Each member has its own value." if value is None else f"Set to {value}, as Slurm would."


def wrapped(
    script: BatchScript, body: str, request: Request, exports: dict[str, str], wanted: list[str]
) -> str:
    """Returns the command that runs the body of a script with its variables and programs.

    The command of a job is a script of /bin/sh. A script for another interpreter is written to a file first.
    """
    lines = []
    runs = _runs(script.interpreter or ("bash",))
    if runs == "bash" and (command := _only_command(body)):
        runs, body = "", command
    if wanted or runs:
        lines.append("folder=$(mktemp -d)")
    for name in wanted:
        lines += [
            _file(name, TEXTS.get(name, NOTHING), f"END_OF_{name.upper()}"),
            f'chmod +x "$folder/{name}"',
        ]
    if wanted:
        lines.append('export PATH="$folder:$PATH"')
    if "srun" in wanted:
        tasks, gpus = request.tasks_per_worker, request.gpus_per_task
        lines += [
            f"export SLURM_NTASKS_PER_NODE={tasks}{f' SLURM_GPUS_PER_TASK={gpus}' if gpus else ''}",
            'export SLURM_WORKERS="$WORLD_SIZE" SLURM_WORKER="$RANK"  # scripts often set the two to other values',
        ]
    lines += [f"export {name}={value}" for name, value in exports.items()]
    if not runs:
        return "\n".join([*lines, body])
    return "\n".join([*lines, _file("script", body, "END_OF_SCRIPT"), f'exec {runs} "$folder/script"'])


def _only_command(body: str) -> str:
    """Returns the only command of a script for bash, if every /bin/sh understands it in the same way; otherwise ""."""
    kept = "\n".join(line for line in body.split("\n") if line.strip() and not line.lstrip().startswith("#"))
    plain = kept.replace("\\\n", "")
    is_plain = "\n" not in plain and not OF_BASH.search(plain) and not OTHERWISE_IN_BASH.search(plain)
    return kept.strip() if is_plain else ""


def _runs(interpreter: tuple[str, ...]) -> str:
    """Returns the words that run a script file; "" if /bin/sh can run the script itself."""
    words = list(interpreter)
    if words and words[0].endswith("/env"):
        words = [word for word in words[1:] if word != "-S"]
    if words and words[0].startswith(("/bin/", "/usr/bin/")):
        words[0] = words[0].rsplit("/", 1)[-1]
    return "" if words in ([], ["sh"]) else shlex.join(words)


def _file(name: str, text: str, end: str) -> str:
    while f"\n{end}\n" in f"\n{text}\n":
        end += "_"
    return f"cat > \"$folder/{name}\" <<'{end}'\n{text.rstrip(chr(10))}\n{end}"
