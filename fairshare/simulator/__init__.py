"""Simulates jobs on a cluster, from event to event. The same input always gives the same result."""
