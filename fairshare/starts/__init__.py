"""Forecasts, as an interval, when a waiting gang starts: past run times, simulated futures, and calibration."""
