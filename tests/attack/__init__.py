"""Attacks on a running portal. `python -m tests.attack` runs all of them and prints the attacks that succeed.

There is one module per subject. An attack is a function marked with `@attack` that takes a `Target`. The function does
what an attacker would do, and asserts that the attacker gains nothing. `test_attacks.py` runs each attack as a test.
"""
