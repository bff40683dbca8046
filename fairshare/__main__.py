"""Command line of the library: `python -m fairshare check --seed N` checks a scheduling policy on random test cases.

Each test case simulates a small cluster. The check reports every case in which the policy breaks one of its promised
properties.
"""

from __future__ import annotations

import argparse
from itertools import islice

from fairshare.check.judge import judged, smallest
from fairshare.check.policies import DEFAULT, POLICIES
from fairshare.check.promises import PROMISES


def main() -> int:
    """Runs the command line. Returns the exit status: 1 if the policy broke a promise, otherwise 0.

    By default it stops at the first broken promise and prints a small test case that reproduces the breach. If no
    promise is broken, or with `--all`, it prints a table of all promises.
    """
    parser = argparse.ArgumentParser(prog="python -m fairshare")
    check = parser.add_subparsers(required=True).add_parser(
        "check",
        help="check whether a policy keeps its promises in random economies (small simulated clusters)",
    )
    check.add_argument(
        "--seed", type=int, required=True, help="seed (whole number) from which the random economies are made"
    )
    check.add_argument(
        "--economies", type=int, default=100, help="number of economies to simulate (default: 100)"
    )
    check.add_argument("--policy", choices=list(POLICIES), default=DEFAULT.name)
    names = [promise.name for promise in PROMISES]
    check.add_argument(
        "--promise",
        choices=names,
        action="append",
        help="check only this promise; may be repeated (default: all)",
    )
    check.add_argument(
        "--all", action="store_true", help="print the table of all promises, even if some are broken"
    )
    asked = parser.parse_args()
    policy = POLICIES[asked.policy]
    promises = [promise for promise in PROMISES if not asked.promise or promise.name in asked.promise]
    tallies, breaches = judged(policy, asked.seed, asked.economies, promises)
    found = list(breaches) if asked.all else list(islice(breaches, 1))
    if found and not asked.all:
        print(smallest(found[0], policy))
        return 1
    print(f"policy {policy.name}: {asked.economies} economies (simulated clusters) of seed {asked.seed}")
    print("\n".join(map(str, tallies)))
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
