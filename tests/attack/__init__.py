"""Attacks on a running portal. `python -m tests.attack` runs all of them and prints what got through.

One module a subject; each attack is a function marked with `@attack` that takes a `Target`, does what an
attacker would do, and asserts that it did not work. `test_attacks.py` runs each of them as a test.
"""
