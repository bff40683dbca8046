"""Installs a job's requirements, then replaces itself with the job's command. Runs as the job, in its environment.

    python -I -c THIS_FILE REQUIREMENTS COMMAND ...

The packages go to a folder in the job's home that is named after the Python version and the requirements, so the next
attempts find them. The workers of a job share the folder: one installs, the others wait. A folder is renamed to its
name when it is complete, so an interrupted installation is repeated from its beginning.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys


def main(requirements: str, command: list[str]) -> None:
    place = os.path.join(os.path.expanduser("~"), ".local", "job-requirements")
    os.makedirs(place, exist_ok=True)
    name = hashlib.sha256(f"{sys.version}\0{requirements}".encode()).hexdigest()[:32]
    folder = os.path.join(place, name)
    with open(f"{folder}.lock", "w", encoding="utf-8") as lock:  # the end of this process releases it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.isdir(folder):
            install(requirements, folder)
    environment = dict(os.environ)
    for variable, first in (("PYTHONPATH", folder), ("PATH", os.path.join(folder, "bin"))):
        environment[variable] = ":".join(filter(None, (first, environment.get(variable, ""))))
    os.execvpe(command[0], command, environment)  # noqa: S606


def install(requirements: str, folder: str) -> None:
    new, listed = f"{folder}.new", f"{folder}.txt"
    shutil.rmtree(new, ignore_errors=True)
    with open(listed, "w", encoding="utf-8") as file:
        file.write(requirements)
    print("Fairlot: installing the requirements", flush=True)  # noqa: T201
    pip = [sys.executable, "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "--progress-bar", "off", "--root-user-action", "ignore", "--target", new, "-r", listed],
        check=False,
    )
    if done.returncode:
        print("Fairlot: the requirements could not be installed; pip says why above", flush=True)  # noqa: T201
        sys.exit(1)
    os.makedirs(new, exist_ok=True)  # for requirements that name nothing
    os.rename(new, folder)
    print("Fairlot: the requirements are installed", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
