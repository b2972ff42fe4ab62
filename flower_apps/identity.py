"""What identifies a result: the parts that stage keys and cell ids are hashed from."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from importlib.metadata import version
from typing import Any

from flower_apps.settings import GroupSettings
from flower_apps.sites import Facts, agreed
from flower_apps.stages import stage_key
from strategies.base import RequestPlan

CACHE_VERSION = 1
"""Raised when a change makes old stages wrong."""
SCORES_VERSION = 2
"""Raised when a change makes old scores wrong, or gives them other columns."""

Parts = dict[str, Any]


class Identity:
    """Everything that determines the results of a group; nothing of where and how fast they are computed.

    Parameters
    ----------
    settings : GroupSettings
        The group.
    facts : Facts
        What every site says of itself.
    """

    def __init__(self, settings: GroupSettings, facts: Facts) -> None:
        self._settings, self._facts = settings, facts
        self.num_sites = len(facts)

    @cached_property
    def training(self) -> Parts:
        """What determines the original model."""
        settings = self._settings
        server = {"fedprox": {"prox-mu": settings.prox_mu}, "fedadam": {"server-lr": settings.server_lr}}
        return {
            "cache": CACHE_VERSION,
            "torch": version("torch"),
            "flwr": version("flwr"),
            "sites": [[name, found["fingerprint"]] for name, found in self._facts.items()],
            "task": settings.task,
            "model": settings.model,
            "rounds": settings.rounds,
            "local-epochs": settings.local_epochs,
            "batch-size": settings.batch_size,
            "last-batch": settings.last_batch,
            "lr": settings.lr,
            "momentum": settings.momentum,
            "weight-decay": settings.weight_decay,
            "strategy": {settings.strategy: server.get(settings.strategy, {})},
            "fraction-train": settings.fraction_train,
            "train-seed": settings.train_seed,
            "precision": agreed(self._facts, "precision"),
            "channels-last": settings.channels_last,
            "threads": settings.threads,
            "device": agreed(self._facts, "device-kind"),
            "failure-policy": settings.failure_policy,
        }

    @property
    def network(self) -> Parts:
        """What the network is built for: the shape of a stored record, and the number of classes."""
        described = next(iter(self._facts.values()))
        return {"data-shape": [int(side) for side in described["data-shape"]], "num-classes": described["num-classes"]}

    def trained_with(self, seed: int) -> Parts:
        """What determines a training with another train seed."""
        return {**self.training, "train-seed": seed}

    def scoring(self, reference: str) -> Parts:
        """What determines the scores of given weights; `reference` is the reference set's fingerprint, or empty."""
        keys = ("cache", "torch", "sites", "task", "model", "threads", "device")
        return {**{key: self.training[key] for key in keys}, "reference": reference, "scores": SCORES_VERSION}

    def request(self, plan: RequestPlan, selection: Facts) -> Parts:
        """What a request means for training: which records, as one hash a site, and who leaves."""
        resolved = {site: str(found["train-hash"]) for site, found in selection.items()}
        return {"request": resolved, "departed": sorted(plan.departed)}

    def cell(
        self, method: str, config: Mapping[str, Any], plan: RequestPlan, unlearn_seed: int, *, searched: bool = False
    ) -> str:
        """Return the id of a cell, 12 hex digits.

        Settings that a search chose make a cell of their own, also where they are those of another cell.
        """
        settings = self._settings
        parts = {
            **self.training,
            "method": method,
            "config": dict(config),
            "request": plan.text,
            "request-seed": plan.seed,
            "unlearn-seed": unlearn_seed,
            "unlearn-epochs": settings.unlearn_epochs,
            "recovery": [settings.recovery_rounds, settings.recovery_epochs, settings.recovery_max_norm],
            "original": settings.original,
        }
        if settings.history_every > 1 or settings.history_half:
            parts["history"] = [settings.history_every, settings.history_half]
        if searched:
            parts["searched"] = True
        return stage_key(parts)[:12]
