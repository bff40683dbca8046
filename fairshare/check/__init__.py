"""Checks any scheduling policy as a black box: random economies, a simulation, and a predicate for each promise.

An economy is a random test case: nodes, accounts and jobs. A promise is a property that a policy must keep. The checks
see only where gangs run after each quantum, not how the policy decides.

Where gangs run is compared with the results of independent computations. Linear programs compute the GPUs that each
account is due. A search finds out whether all jobs fit at the same time. A simple stride scheduler shows by how much
accounts must deviate from their exact shares because gangs are indivisible. The package needs scipy, which only
developers install.
"""
