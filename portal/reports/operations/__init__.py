"""Reports for operators: use of GPUs, unmet demand, nodes, waits and waste of jobs, prices, chargeback."""
