"""Replays of jobs on a cluster that does not exist: from event to event, always the same for the same input."""
