"""What happens in a pod between the start of its container and the job's command: installs the job's requirements, and
finds the checkpoint from which the attempt resumes.

Short scripts do this as the job, in its own container. So they need no rights in the cluster, and use the image's own
Python. The installation is new in each pod, as its files are.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.backends.base import Gang
from scheduling.spec.paths import UNFINISHED
from scheduling.spec.requirements import normalised

# $1 is the text of the requirements, the rest is the command. Python starts with -I, so that the files of the job's
# code hide no module that pip needs.
INSTALL = """
for python in python python3 ""; do
    [ -z "$python" ] || "$python" -I -m pip --version >/dev/null 2>&1 && break
done
if [ -z "$python" ]; then
    echo "Fairlot: the requirements cannot be installed, because the image has no Python with pip." \\
        "Choose an image that has both, or put the packages into the image." >&2
    exit 1
fi
place=$(mktemp -d "${TMPDIR:-/tmp}/requirements.XXXXXX") && printf %s "$1" >"$place/requirements.txt" || {
    echo "Fairlot: the requirements cannot be installed. The image needs mktemp and a writable /tmp." >&2
    exit 1
}
echo "Fairlot: installing the requirements"
"$python" -I -m pip install --no-input --disable-pip-version-check --no-cache-dir --progress-bar off \\
    --target "$place/packages" -r "$place/requirements.txt" || {
    echo "Fairlot: the requirements could not be installed; pip says why above" >&2
    exit 1
}
echo "Fairlot: the requirements are installed"
export PYTHONPATH="$place/packages${PYTHONPATH:+:$PYTHONPATH}" PATH="$place/packages/bin:$PATH"
shift
exec "$@"
"""
# $1 is the pattern of the names of checkpoints, $2 the file that marks a complete one, or empty. The rest is the
# command. The rules are those of backends/local/checkpoints.py. Shells read the patterns in the same way, because
# spec/checkpoints.py accepts only some characters. Of checkpoints of one second, some shells take the last by name.
RESUME = """
FAIRLOT_RESUME_FROM= newest=
for found in "$FAIRLOT_CHECKPOINT_DIR"/$1; do
    case "$found" in
    UNFINISHED | *[[:cntrl:]]*) continue ;;
    esac
    written=$found${2:+/$2}
    [ ! -L "$found" ] && [ ! -L "$written" ] || continue
    [ -f "$written" ] || { [ -z "$2" ] && [ -d "$written" ]; } || continue
    [ -n "$newest" ] && [ "$newest" -nt "$written" ] && continue
    newest=$written FAIRLOT_RESUME_FROM=$found
done
export FAIRLOT_RESUME_FROM
shift 2
exec "$@"
""".replace("UNFINISHED", " | ".join(f"*{ending}" for ending in UNFINISHED))
# Say from which checkpoint the attempt resumes: to the user in the log, and to Fairlot in the message with which the
# container ends. The latter never fails, so that no attempt fails by it.
SAY = """
[ -z "$FAIRLOT_RESUME_FROM" ] || echo "Fairlot: resuming from ${FAIRLOT_RESUME_FROM##*/}"
exec "$@"
"""
REPORT = 'printf %s "${FAIRLOT_RESUME_FROM##*/}" >"${1:-/dev/termination-log}" || true'


def with_requirements(gang: Gang) -> Gang:
    """Returns the gang with a command that installs its requirements first. Returns a gang without any unchanged."""
    if not (wanted := normalised(gang.requirements)):
        return gang
    return gang.run_by("/bin/sh", "-c", INSTALL, "fairlot", wanted)


def with_resume(gang: Gang) -> Gang:
    """Returns the gang with a command that first names the newest complete checkpoint in FAIRLOT_RESUME_FROM.

    Returns a gang unchanged if its job names no checkpoints.
    """
    if not gang.checkpoint:
        return gang
    return gang.run_by(*_finding(gang), "/bin/sh", "-c", SAY, "fairlot")


def resume_report(gang: Gang) -> Sequence[str]:
    """Returns the command of the init container that names the checkpoint from which the attempt resumes, in its
    termination message. Returns an empty sequence for a job that names no checkpoints.

    The state of the pod keeps this message, so it is neither lost nor late, and the job's program cannot change it.
    """
    return (*_finding(gang), "/bin/sh", "-c", REPORT) if gang.checkpoint else ()


def _finding(gang: Gang) -> Sequence[str]:
    name, _, marker = gang.checkpoint.partition("/")
    return "/bin/sh", "-c", RESUME, "fairlot", name, marker
