"""Makes the command of a job from the body of a batch script: gives the script what it expects of Slurm."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from accounting.core.wording import counted
from scheduling.importers.draft import JobDraft
from scheduling.importers.report import Fate, Report
from scheduling.importers.slurm import tools
from scheduling.importers.slurm.arrays import Tasks
from scheduling.importers.slurm.directives import BatchScript
from scheduling.importers.slurm.resources import Request
from scheduling.importers.slurm.settings import NO_FOLDERS, put_image

# What comes before the name of a program: the beginning of a line or of a command, and variables for the program.
BEGINS = (
    r"(?:^|[;&|(`!]|\b(?:then|do|else|exec|time|eval|if|while|sudo)\b|\$\(|(?<!\w)[A-Z_]{1,60}=\S{0,200}\s)[ \t]*"
    r"(?:timeout\s+\S{1,60}\s+)?"
)
SRUN = re.compile(rf"{BEGINS}srun\b(?P<rest>[^;&|]*)", re.MULTILINE | re.ASCII)
SUBMITS = re.compile(rf"{BEGINS}(?P<program>sbatch|salloc|scancel|sattach)\b", re.MULTILINE | re.ASCII)
ASKS = re.compile(
    rf"{BEGINS}(?P<program>squeue|sacct|sinfo|seff|sstat|sacctmgr|sprio|sshare|scontrol(?!\s+show\s+hostname))\b",
    re.MULTILINE | re.ASCII,
)
ELSEWHERE = re.compile(
    rf"{BEGINS}(?P<program>mpirun|mpiexec|horovodrun|pdsh|ssh|clush|deepspeed(?=\s[^\n]*--hostfile))\b",
    re.MULTILINE | re.ASCII,
)
MODULES = re.compile(rf"{BEGINS}(?P<program>module|ml|spack)\s+(?P<rest>[^\n;&|#]*)", re.MULTILINE | re.ASCII)
CONDA = re.compile(
    rf"{BEGINS}(?:(?:conda|mamba|micromamba|source|\.)\s+activate\s|(?:source|\.)\s+\S*(?:/bin/activate|conda\.sh))",
    re.MULTILINE | re.ASCII,
)
CONTAINERS = re.compile(
    rf"{BEGINS}(?P<program>singularity|apptainer|docker|podman|shifter|enroot)\b", re.MULTILINE | re.ASCII
)
PATHS = re.compile(
    r"(?<![\w.$}/-])/(?:home|scratch|gpfs|lustre|work|project|projects|nfs|data|mnt|users?|fs\w*|p|u)\d*/[\w.+-]+",
    re.ASCII,
)
VARIABLE = re.compile(r"\$\{?(SLURM\w*)", re.ASCII)
FROM_HOSTNAME = re.compile(
    r"^([ \t]*(?:export[ \t]+)?\w+=)([\"']?)(?:\$\(hostname\b[^)\n]*\)|`hostname\b[^`\n]*`)\2[ \t]*$",
    re.MULTILINE | re.ASCII,
)
# A reference to an argument of the script. Functions have arguments of their own, and programs such as awk fields.
ARGUMENT = re.compile(r"\$(?:[1-9@*#]|\{[1-9@*#][^{}\n]*\})")
FUNCTION = re.compile(r"^[ \t]*(?:function[ \t]+[\w-]+|[\w-]+[ \t]*\(\))", re.MULTILINE | re.ASCII)
IN_QUOTES = re.compile(r"'[^'\n]*'")
# A call of srun with options that have no effect if it runs one task in a job of one worker.
GAP = r"(?:[ \t]|\\\n)+"
VALUE = r"""(?:"[^"\n]*"|'[^'\n]*'|[^\s"'\\;&|]+)"""
ONE = rf"(?:-n|-N|--ntasks|--nodes|--ntasks-per-node|--tasks-per-node)(?:=|{GAP}|(?<=-[nN]))0*1(?![^\s\\])"
WITHOUT_EFFECT = (
    r"(?:-u|-Q|-v|-K\d*|--unbuffered|--exclusive|--overlap|--exact|--pty|--quiet|--verbose|--kill-on-bad-exit(?:=[01])?"
    r"|--export=ALL)(?![^\s\\])"
)
OF_NODES = (
    r"(?:--(?:cpu-bind|cpus-per-task|cpus-per-gpu|gpu-bind|gres|gpus|gpus-per-node|gpus-per-task|hint|job-name|mem"
    rf"|mem-per-cpu|mem-per-gpu|mpi|time|distribution|container-image)(?:=|{GAP})|-[cGJtm](?:{GAP})?){VALUE}"
)
ONE_TASK = re.compile(
    rf"(?P<before>{BEGINS})srun(?:{GAP}(?:{ONE}|{WITHOUT_EFFECT}|{OF_NODES}))*{GAP}(?=[^-\s\\#;&|<>)])",
    re.MULTILINE | re.ASCII,
)
MOST_REMARKS, MOST_VARIABLES = 30, 60
SHARED_GPUS = (
    "Each step sees all GPUs of its worker. If steps run at the same time, let each set CUDA_VISIBLE_DEVICES, or give"
    " its tasks --gpus-per-task."
)
# Options of srun without effect, by both of their names, with the consequence.
OF_STEPS = {
    **dict.fromkeys(("--cpus-per-task", "-c", "--cpus-per-gpu", "--mem", "--mem-per-cpu", "--mem-per-gpu"),
                    "All steps have the processors and the memory of their worker."),
    **dict.fromkeys(("--time", "-t"), "A step has no time limit of its own."),
    **dict.fromkeys(("--output", "-o", "--error", "-e"), "The output is in the worker's log."),
    **dict.fromkeys(("--input", "-i"), "The step reads the standard input of the script."),
}  # fmt: skip
GPUS_OF_STEPS = ("--gres", "--gpus", "-G", "--gpus-per-node")
# Options of srun that choose nodes or parts of the job.
PLACED = {
    "-w",
    "--nodelist",
    "-r",
    "--relative",
    "--het-group",
    "--pack-group",
    "-x",
    "--exclude",
    "-F",
    "--nodefile",
}


@dataclass(frozen=True)
class Step:
    """A call of srun in the body: its line, its options by name, with their values, and the program that it runs."""

    line: int
    options: dict[str, str]
    program: str

    @property
    def looks_up(self) -> bool:
        """Returns whether the call only asks for the name or the address of a node."""
        return self.program == "hostname" and bool({"-w", "--nodelist"} & self.options.keys())


def put_command(script: BatchScript, request: Request, draft: JobDraft, tasks: Tasks | None = None) -> None:
    """Sets the command, and the variables that Slurm would set and that the script uses.

    `tasks` are those of an array. Their variables are set in any case, because a program may use them.
    """
    body, report = script.body, draft.report
    if not _commands_of(body).strip():
        report.refused_at("script", "The script has no commands.", "command")
        return
    body = _first_worker(body, request, report)
    plain = _commands_of(body)
    lines = _Lines(script.text)
    steps = list(_steps(plain, lines))
    _refuse_what_cannot_run(plain, steps, request, report, lines)
    launcher = ELSEWHERE.search(plain) if request.workers > 1 and _launches(plain, steps) else None
    if launcher is not None:
        draft.put(
            "launch", "mpi", lines.source(launcher["program"]),
            f"The script runs on one worker, where {launcher['program']} finds the others. The image needs an ssh"
            " server.", Fate.APPROXIMATED,
        )  # fmt: skip
        # As on the first node of Slurm. The processes get their ranks from MPI, so the variables are not exported.
        body = f"RANK=0 WORLD_SIZE={request.workers}\n{body}"
    _images(steps, plain, draft)
    plain_body = _without_srun(body, request, steps)
    if plain_body != body:
        for step in steps:
            report.mapped(
                f"line {step.line}: srun", "command", "It would run one task, so its program runs without it."
            )
        body, plain, steps = plain_body, _commands_of(plain_body), []
    for step in steps:
        _options(step, request, report)
    variables = list(dict.fromkeys(VARIABLE.findall(plain)))[:MOST_VARIABLES]
    exports = tools.set_variables(script, request, draft, variables, lines.first, tasks=tasks)
    _remarks(plain, report, lines)
    wanted = _tools(plain, steps, variables, request)
    draft.command(
        tools.wrapped(script, body, request, exports, wanted),
        "script",
        _how_it_runs(request, steps, wanted),
        Fate.APPROXIMATED if wanted or request.workers > 1 else Fate.MAPPED,
    )
    if "environment" not in draft:
        report.defaulted(
            "environment", "The script names no image. Choose an image or environment of the cluster."
        )


class _Lines:
    """Finds the lines of the text that the report names."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")

    def first(self, pattern: str) -> int:
        """Returns the number of the first line that is no comment and contains the pattern; 0 if there is none."""
        for number, line in enumerate(self.lines, 1):
            if not line.lstrip().startswith("#") and re.search(pattern, line):
                return number
        return 0

    def source(self, program: str) -> str:
        number = self.first(rf"\b{re.escape(program)}\b")
        return f"line {number}: {program}" if number else program


def _commands_of(body: str) -> str:
    """Returns the body without comment lines, and with continued lines joined."""
    kept = "\n".join("" if line.lstrip().startswith("#") else line for line in body.split("\n"))
    return re.sub(r"\\\n[ \t]*", " ", kept)


def _first_worker(body: str, request: Request, report: Report) -> str:
    """Lets variables that are set to the name of the first node have it in all workers."""
    if request.workers == 1:
        return body
    changed = FROM_HOSTNAME.sub(r'\1"$MASTER_ADDR"', body)
    if changed != body:
        report.approximated(
            "script: hostname", "command",
            "Slurm runs the script on the first node. Here every worker runs it, so the name of the first worker,"
            " MASTER_ADDR, replaces hostname.",
        )  # fmt: skip
    return changed


def _options(step: Step, request: Request, report: Report) -> None:
    """Says what became of the options of a step that concern GPUs, and of those without effect."""
    for name, value in step.options.items():
        source, number = f"line {step.line}: srun {name}", _gpus_in(value)
        if name == "--gpus-per-task" and number is not None:
            few = number > request.gpus_per_worker
            said = f" A worker has {request.gpus_per_worker}." if few else ""
            report.add(
                Fate.APPROXIMATED if few else Fate.MAPPED, source, "command",
                f"Each task sees {counted(number, 'GPU')} of its worker.{said}",
            )  # fmt: skip
        elif name == "--gpus-per-task" or (name in GPUS_OF_STEPS and number != request.gpus_per_worker):
            report.approximated(source, "command", SHARED_GPUS)
        elif name in OF_STEPS:
            report.dropped(source, OF_STEPS[name])


def _gpus_in(value: str) -> int | None:
    """Returns the number of GPUs that an option of srun asks for; None if it is not known."""
    last = value.rpartition(":")[2]
    if value == "gpu":
        return 1
    return int(last) if last.isascii() and last.isdigit() and len(last) < 6 else None


def _without_srun(body: str, request: Request, steps: list[Step]) -> str:
    """Returns the body with the program of each srun in its place, if each runs one task, with all GPUs of the worker.
    Otherwise returns the body unchanged."""
    if request.workers > 1 or request.tasks_per_worker > 1:
        return body
    given = {name: value for step in steps for name, value in step.options.items()}
    if given.keys() & {"--chdir", "-D"} or _gpus_in(given.get("--gpus-per-task", "")) not in {
        None,
        request.gpus_per_worker,
    }:
        return body
    changed = ONE_TASK.sub(lambda found: found["before"], body)
    return body if re.search(r"\bsrun\b", _commands_of(changed), re.ASCII) else changed


def _steps(plain: str, lines: _Lines) -> Iterator[Step]:
    pattern = re.compile(r"^[^#\n]*\bsrun\b", re.ASCII)
    numbers = [at for at, line in enumerate(lines.lines, 1) if pattern.match(line)]
    for seen, found in enumerate(SRUN.finditer(plain)):
        options: dict[str, str] = {}
        program = ""
        words = iter(_words(found["rest"]))
        for word in words:
            if not word.startswith("-"):
                program = word.rstrip(")`")
                break
            name, equals, value = word.partition("=")
            if not name.startswith("--") and len(name) > 2:
                name, value, equals = name[:2], name[2:], "="
            takes = (
                name[2:] in tools.WITH_VALUE
                if name.startswith("--")
                else name[1:] in tools.LETTERS_WITH_VALUE
            )
            options[name] = value if equals else next(words, "") if takes else ""
        yield Step(numbers[min(seen, len(numbers) - 1)] if numbers else 0, options, program)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _refuse_what_cannot_run(
    plain: str, steps: list[Step], request: Request, report: Report, lines: _Lines
) -> None:
    """Adds refused lines for what would do something else than on Slurm."""
    if found := SUBMITS.search(plain):
        program = found["program"]
        report.refused_at(
            lines.source(program),
            f"The script calls {program}. A job of Fairlot cannot submit or cancel jobs.",
        )
    for step in steps:
        source = f"line {step.line}: srun"
        if {"--container-mounts", "--container-mount"} & step.options.keys():
            report.refused_at(
                f"{source} --container-mounts",
                NO_FOLDERS,
                "volumes",
            )
        if request.workers == 1:
            continue
        if step.looks_up:
            report.approximated(
                source, "command", "The address of the node is looked up. Nothing runs there."
            )
            continue
        nodes = step.options.get("--nodes") or step.options.get("-N") or ""
        part = nodes.isdigit() and int(nodes) != request.workers
        tasks = step.options.get("--ntasks") or step.options.get("-n") or ""
        part = part or (tasks.isdigit() and int(tasks) % request.workers != 0)
        if part or PLACED & step.options.keys():
            report.refused_at(
                source,
                f"srun runs a program on some of the {request.workers} nodes only. All workers of a job run the same"
                " command. Decide in the program by the variable RANK.",
                "command",
            )
    if request.workers > 1 and (found := ELSEWHERE.search(plain)) and not _launches(plain, steps):
        report.refused_at(
            lines.source(found["program"]),
            f"On several nodes, {found['program']} starts programs on other nodes. A worker can log in to others only"
            " in a job with launch: mpi, which a script becomes that calls mpirun and no srun. Otherwise every worker"
            " runs the whole script: start the program with srun or torchrun.",
            "command",
        )


def _launches(plain: str, steps: list[Step]) -> bool:
    """Returns whether the script reaches other nodes by mpirun alone, so that it runs in the launcher of an MPI job."""
    return not steps and {found["program"] for found in ELSEWHERE.finditer(plain)} <= {"mpirun", "mpiexec"}


def _images(steps: list[Step], plain: str, draft: JobDraft) -> None:
    """Sets the environment from the image that all steps with an image name."""
    named = [step for step in steps if step.options.get("--container-image")]
    images = {_resolved(step.options["--container-image"], plain): step for step in named}
    if len(images) > 1:
        step = list(images.values())[-1]
        draft.report.refused_at(
            f"line {step.line}: srun --container-image", "The steps run in different images. A job has one image.",
            "environment",
        )  # fmt: skip
    for image, step in images.items():
        source = f"line {step.line}: srun --container-image"
        if "$" in image:
            draft.report.dropped(source, "The image is in a variable. Enter it in the field environment.")
        elif "environment" not in draft:
            put_image(image, source, draft)


def _resolved(text: str, plain: str) -> str:
    """Returns the text with variables replaced that the script sets once, to a plain value."""

    def value(found: re.Match[str]) -> str:
        pattern = rf"^[ \t]*(?:export[ \t]+)?{found[1]}=(['\"]?)([^'\"$`\s;]+)\1[ \t]*$"
        values = re.findall(pattern, plain, re.MULTILINE)
        return str(values[0][1]) if len(values) == 1 else found[0]

    return re.sub(r"\$\{?([A-Za-z_]\w*)\}?", value, text, flags=re.ASCII)


def _remarks(plain: str, report: Report, lines: _Lines) -> None:
    """Adds a line for what the script expects of the cluster and of its nodes."""
    modules = dict.fromkeys((one["program"], one["rest"].strip()[:50]) for one in MODULES.finditer(plain))
    for program, rest in list(modules)[:MOST_REMARKS]:
        report.approximated(
            f"line {lines.first(re.escape(rest) or program)}: {program} {rest}".strip(), "environment",
            "Fairlot has no modules, so this has no effect. Choose an image that contains the software.",
        )  # fmt: skip
    for pattern, what in (
        (CONDA, "The script activates an environment of Python. The image must contain it at this path."),
        (CONTAINERS, "The script starts a container, which does not work inside a job. Name its image in the field"
                     " environment, and run the program itself."),
        (ASKS, "The script asks Slurm for its state, and there is no Slurm. The call fails."),
    ):  # fmt: skip
        if found := pattern.search(plain):
            said = found[0].strip(" \n;&|()`$!").split("\n")[-1][:60]
            report.approximated(f"line {lines.first(re.escape(said.split(' ')[0]))}: {said}", "command", what)
    found = None if FUNCTION.search(plain) else ARGUMENT.search(IN_QUOTES.sub("''", plain))
    if found:
        report.approximated(
            f"line {lines.first(re.escape(found[0]))}: {found[0][:40]}", "command",
            "sbatch passes arguments to a script. Here it has none: write the values into the script, for example with"
            " set -- VALUE as its first line.",
        )  # fmt: skip
    paths = list(dict.fromkeys(PATHS.findall(plain)))
    if paths:
        named = ", ".join(paths[:4])
        report.approximated(
            "script: paths", "volumes",
            f"The script uses {named}{' and others' if len(paths) > 4 else ''}. The image or a volume must have them.",
        )  # fmt: skip


def _tools(plain: str, steps: list[Step], variables: list[str], request: Request) -> list[str]:
    wanted = ["srun"] if steps or re.search(r"\bsrun\b", plain, flags=re.ASCII) else []
    if re.search(r"\bscontrol\b", plain, flags=re.ASCII) or any("NODELIST" in name for name in variables):
        wanted.append("scontrol")
    if MODULES.search(plain):
        wanted += [
            name for name in ("module", "ml", "spack") if re.search(rf"\b{name}\b", plain, flags=re.ASCII)
        ]
    return wanted


def _how_it_runs(request: Request, steps: list[Step], wanted: list[str]) -> str:
    said = []
    if request.workers > 1:
        said.append(
            "Slurm runs the script on the first node only. Fairlot runs it in every worker, so commands outside of srun"
            f" run {request.workers} times."
        )
    if steps:
        said.append(
            f"A small program named srun starts {request.tasks_per_worker} "
            f"{'task' if request.tasks_per_worker == 1 else 'tasks'} in each worker."
        )
    others = [name for name in wanted if name != "srun"]
    if others:
        said.append(f"Small programs stand in for {', '.join(others)}.")
    return " ".join(said) or "The script without its #SBATCH lines."
