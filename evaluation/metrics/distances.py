"""Distances between the weights of two models (METRICS 3.4 and 5.1)."""

from __future__ import annotations

import math

import pandas as pd

from unlearning.state import State, norm


def layer_distances(model: State, gold: State) -> pd.DataFrame:
    """Return how far each parameter tensor is from gold's, in fp64; buffers are left out.

    Parameters
    ----------
    model, gold : State
        Two states of one network.

    Returns
    -------
    DataFrame
        Columns ``tensor``, ``distance`` (L2) and ``relative`` (over gold's norm), in gold's order.

    Raises
    ------
    ValueError
        When tensors are missing, extra or of another shape: such models cannot be compared.
    """
    if model.params.keys() != gold.params.keys():
        differing = sorted(model.params.keys() ^ gold.params.keys())
        raise ValueError(f"the models differ in {len(differing)} tensors, first {differing[0]!r}")
    rows = []
    for name, target in gold.params.items():
        tensor = model.params[name]
        if tensor.shape != target.shape:
            raise ValueError(f"{name}: shapes {tuple(tensor.shape)} and {tuple(target.shape)}")
        gap = norm({name: tensor.double() - target.double()})
        rows.append({"tensor": name, "distance": gap, "relative": gap / (norm({name: target}) + 1e-12)})
    return pd.DataFrame(rows, columns=["tensor", "distance", "relative"])


def l2_distance(model: State, gold: State) -> float:
    """Return the L2 distance over all parameters; range [0, inf), raises as `layer_distances`."""
    return math.hypot(*layer_distances(model, gold)["distance"])
