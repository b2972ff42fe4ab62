"""Metrics as pure functions on scorecards, comparisons and weights."""
