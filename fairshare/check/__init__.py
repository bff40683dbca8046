"""Checks any scheduling policy from outside: random economies, a driver, and a predicate for each promise.

Nothing here reads how a policy works. The judge sees where gangs run after each quantum, and compares that with an
independent oracle: linear programs for what accounts are due, a search for whether all jobs fit, and a stride
scheduler on divisible hardware for how far whole gangs must lag. The package needs scipy, which only developers
install.
"""
