"""Judges any scheduling policy from outside: random economies, a driver, and each promise as a predicate.

Nothing here reads how a policy works. The judge sees where gangs run after each quantum, and compares that with
an oracle of its own: linear programs for what is due, a search for whether all jobs fit, and a stride on
divisible hardware for how far whole gangs must lag. It needs scipy, which only developers install.
"""
