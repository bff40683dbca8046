"""Attacks on a running portal. `python -m tests.attack` runs all of them and prints those that succeed.

There is one module per subject. Each attack is a function marked with `@attack` that takes a `Target`, does what an
attacker would do, and asserts that it fails. `test_attacks.py` runs each of them as a test.
"""
