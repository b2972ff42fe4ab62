"""Every registered metric describes itself, and every example in a docstring is true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import evaluation.metrics
from evaluation.catalogue import METRICS

MODULES = [f"evaluation.metrics.{found.name}" for found in pkgutil.iter_modules(evaluation.metrics.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", METRICS.names())
def test_a_metric_says_what_it_is_its_range_and_what_is_better(name: str) -> None:
    metric = METRICS.get(name)
    assert metric.title
    assert metric.low < metric.high
    assert metric.better in ("gold", "low", "high", "none")
    assert metric.difference is None or metric.better == "gold"


def test_no_two_metrics_share_a_name() -> None:
    bound = [metric.name for module in MODULES for metric in getattr(importlib.import_module(module), "METRIC", [])]
    assert len(bound) == len(set(bound)) == len(METRICS.names())
