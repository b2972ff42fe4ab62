"""Metrics, attacks, statistics, reports and reading runs back. No training, no images."""
