"""Checks any scheduling policy as a black box: random economies, a simulation, and a predicate for each promise.

An economy is a random test case: nodes, accounts and jobs. A promise is a property that a policy must keep. The checks
see only where gangs run after each quantum, not how the policy decides. They compare this with independent
computations: linear programs for the GPUs that each account is due, a search for a placement of all jobs, and a simple
stride scheduler that shows how far whole gangs must deviate from exact shares. The package needs scipy, which only
developers install.
"""
