"""Copies the files of an earlier session into a new one, before its program starts.

A short script does it as the job's user, so it can read and write nothing that the job itself could not. It notes when
it is done in a file beside the copy. If it is killed before, the next attempt copies everything again; nothing is lost,
because the program has not started yet. The image or environment needs sh, du and cp.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.backends.base import FilesToCopy, Gang

# $1 is the file that says that the copy is complete, $2 the most KiB, $3 the earlier session. Then come pairs of
# folders, from and to, until --; the rest is the command.
SCRIPT = """
done=$1 most=$2 what=$3
shift 3
if [ -e "$done" ]; then
    while [ "$1" != -- ]; do shift; done
else
    size=0 each=from
    for folder in "$@"; do
        [ "$folder" = -- ] && break
        if [ $each = from ]; then
            each=to
            one=$(du -sk "$folder" 2>/dev/null)
            one=${one%%[!0-9]*}
            size=$((size + ${one:-0}))
        else
            each=from
        fi
    done
    if [ "$size" -gt "$most" ]; then
        echo "Fairlot: the files of $what take $size KiB; at most $most KiB are copied. Start without them." >&2
        exit 1
    fi
    echo "Fairlot: copying the files of $what ($size KiB)"
    while [ "$1" != -- ]; do
        chmod -R u+rwX "$2" 2>/dev/null
        cp -a "$1/." "$2/" || {
            echo "Fairlot: the files of $what cannot be copied, as cp says above. Start without them." >&2
            exit 1
        }
        shift 2
    done
    rm -f "${done%/*}"/.fairlot-files-of-*
    : >"$done" || exit 1
    echo "Fairlot: copied $size KiB"
fi
shift
exec "$@"
"""
KIB = 1024


def with_copy(gang: Gang, copy: FilesToCopy, folders: Sequence[tuple[str, str]], *, notes_in: str) -> Gang:
    """Returns the gang with a command that first copies each pair of `folders`, unless an earlier attempt has.

    `notes_in` is a folder that all attempts of the job share.
    """
    done = f"{notes_in}/.fairlot-files-of-{copy.job_id}"
    most = str(copy.limit_bytes // KIB)
    pairs = [folder for pair in folders for folder in pair]
    what = f"session {copy.job_id}"
    return gang.run_by("/bin/sh", "-c", SCRIPT, "fairlot", done, most, what, *pairs, "--")
