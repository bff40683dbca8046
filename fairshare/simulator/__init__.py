"""Replays jobs on a simulated cluster, from event to event; the same input always gives the same result."""
