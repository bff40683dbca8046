"""Reports for operators: GPU use, unmet demand, nodes, waiting times of jobs, wasted GPU time, prices, and
chargeback."""
