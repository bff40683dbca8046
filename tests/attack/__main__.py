"""python -m tests.attack [--list] [SUBJECT | WORD …]: attacks a new portal and prints which attacks succeed.

Starts a whole portal in a temporary folder and runs the attacks whose subject or name contains one of the words.
Without words, it runs all attacks. Exits with 1 if an attack succeeded.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from tests.attack.attacks import Attack, NotTried, Target, all_attacks
from tests.proof.portal import running_portal

HELD, THROUGH, NOT_TRIED = "held", "GOT THROUGH", "not tried"


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
    """Runs the attacks on one portal, one after another. Returns the exit code: 1 if an attack succeeded,
    otherwise 0."""
    words = Counter[str]()
    with running_portal() as portal:
        target = Target(portal)
        for attack in attacks:
            started = time.monotonic()
            word, why = outcome(attack, target)
            words[word] += 1
            print(f"{word:<12} {time.monotonic() - started:6.1f} s  {attack}", flush=True)
            if why:
                print(why, flush=True)
        target.close()
    print(", ".join(f"{words[word]} {word.lower()}" for word in (HELD, THROUGH, NOT_TRIED)))
    return int(words[THROUGH] > 0)


def outcome(attack: Attack, target: Target) -> tuple[str, str]:
    """Runs an attack. Returns one of these pairs (result, reason):

    - HELD, "": the attack failed.
    - THROUGH and the attacker's gain or a traceback: the attack succeeded or crashed.
    - NOT_TRIED and the reason: the attack is impossible on this portal.
    """
    try:
        attack.run(target)
    except NotTried as error:
        return NOT_TRIED, str(error)
    except AssertionError as error:
        return THROUGH, str(error) or traceback.format_exc(limit=-1)
    except Exception:  # an error in one attack must not stop the other attacks
        return THROUGH, traceback.format_exc()
    return HELD, ""


if __name__ == "__main__":
    sys.exit(main())
