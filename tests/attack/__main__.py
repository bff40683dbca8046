"""python -m tests.attack [--list] [SUBJECT | WORD …]: attack a portal of one's own; print what got through.

Starts a whole portal in a temporary folder, runs the attacks whose subject or name has one of the words
(all without words), and exits with 1 when one got through.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.attack.attacks import Attack, Target, all_attacks
from tests.proof.portal import RunningPortal


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--list", action="store_true", help="only say which attacks there are")
    parser.add_argument("words", nargs="*")
    options = parser.parse_args()
    chosen = [
        attack
        for attack in all_attacks()
        if not options.words or any(word in str(attack) for word in options.words)
    ]
    if options.list:
        print(*chosen, sep="\n")
        return 0
    return run(chosen)


def run(attacks: list[Attack]) -> int:
    """Each on the same portal, one after the other; 1 when one got through."""
    folder = Path(tempfile.mkdtemp(prefix="fairlot-attack-", dir="/var/tmp"))
    folder.chmod(0o755)  # PostgreSQL's unprivileged user must enter it
    portal = RunningPortal(folder)
    through = 0
    try:
        target = Target(portal.start())
        for attack in attacks:
            started = time.monotonic()
            got_through = outcome(attack, target)
            through += got_through != ""
            word = "GOT THROUGH" if got_through else "held"
            print(f"{word:<12} {time.monotonic() - started:6.1f} s  {attack}", flush=True)
            if got_through:
                print(got_through, flush=True)
        target.close()
    finally:
        portal.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{len(attacks) - through} held, {through} got through")
    return int(through > 0)


def outcome(attack: Attack, target: Target) -> str:
    """Empty when it held; else what an attacker would have had, or where the attack itself broke off."""
    try:
        attack.run(target)
    except AssertionError as error:
        return str(error) or traceback.format_exc(limit=-1)
    except Exception:  # whatever broke off must not keep the others from being run
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    sys.exit(main())
