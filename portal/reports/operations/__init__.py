"""What operators look at: how well GPUs are used, what is wanted beyond them, nodes, jobs' waits and waste, prices."""
