"""What groups are called where people read: by their experiment, and by what tells one from another of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from evaluation.record import PLACED

MOST_KEYS, LONGEST = 3, 48
"""Settings in a label, and its characters, above which it has the first of the group's id instead."""


def labels_of(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the label of each group, such as ``study alpha=0.5 train-seed=1``; each is another's.

    Parameters
    ----------
    groups : mapping of str to mapping
        Flat settings, with their experiment as ``name``, by the group's id.
    """
    siblings: dict[str, list[str]] = defaultdict(list)
    for group, settings in groups.items():
        siblings[str(settings.get("name", ""))].append(group)
    labels = {}
    for name, ids in siblings.items():
        differing = _differing([groups[group] for group in ids])
        for group in ids:
            parts = [name, *(f"{key}={groups[group].get(key, '')}" for key in differing)]
            label = " ".join(parts)
            fits = len(differing) <= MOST_KEYS and len(label) <= max(LONGEST, len(name))
            labels[group] = label if fits else f"{name} {group[:4]}"
    return labels


def _differing(siblings: list[Mapping[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for settings in siblings for key in settings if key not in (*PLACED, "name"))
    return [key for key in keys if len({str(settings.get(key, "")) for settings in siblings}) > 1]
