"""The command line of this package: `python -m embedded up`, and `python -m embedded run -- COMMAND …`.

The command `guard SUPERVISOR_PID` is internal: only the supervisor starts it.
"""

import argparse
import signal
import subprocess
import sys

from embedded.environment import Home, servers_running
from embedded.leftovers import guard
from embedded.processes import StartError
from embedded.supervisor import up


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m embedded", description="Runs Fairlot on one machine, with its data in var/."
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("up", help="start Fairlot with its servers in the foreground; Ctrl-C stops all of them")
    run = verbs.add_parser(
        "run",
        help="run one command with the settings of the data folder var/, while its servers run",
    )
    run.add_argument("command", nargs=argparse.REMAINDER, help="-- COMMAND …")
    watcher = verbs.add_parser("guard")  # for the supervisor only, which starts it
    watcher.add_argument("supervisor", type=int)
    options = parser.parse_args()
    if options.verb == "up":
        return up()
    if options.verb == "guard":
        guard(Home.from_environment(), options.supervisor)
        return 0
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("the command after run -- is missing; for example, write: run -- python manage.py check")
    return run_command(command)


def run_command(command: list[str]) -> int:
    """Runs `command` with the servers and settings of the data folder (`var/` by default).

    Returns the exit status of the command; 128 + N if signal N ended the command. Ignores Ctrl-C, because the terminal
    also sends it to the command. Passes SIGTERM and SIGHUP on to the command. If the servers cannot be started, prints
    an error and returns 1.
    """
    try:
        with servers_running(Home.from_environment()) as environment:
            process = subprocess.Popen(command, env=environment)
            signal.signal(signal.SIGINT, lambda *_: None)
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, lambda number, _: process.send_signal(number))
            code = process.wait()
            return code if code >= 0 else 128 - code
    except StartError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1


if __name__ == "__main__":
    sys.exit(main())
