"""What the recorded updates of a training say: how far each site pushed, in which direction, and who moved what.

Only parameters count; running statistics are no update of anybody's. Sums are taken in fp64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import pandas as pd
from torch import Tensor

from evaluation.rounds import Round
from partitions.errors import BadInput
from unlearning.state import State, Tensors, Update, norm


def layer_of(parameter: str) -> str:
    """Return the layer that a parameter belongs to: ``conv1`` of ``conv1.weight``."""
    return parameter.rpartition(".")[0] or parameter


def norms(rounds: Iterable[Round]) -> pd.DataFrame:
    """Return how far every site pushed in every round.

    Parameters
    ----------
    rounds : iterable of Round
        Such as ``run.history(cell)``; read one after the other, one update at a time.

    Returns
    -------
    DataFrame
        Columns round, site, weight (share in the aggregate) and norm (L2 norm of the update, in the unit of the
        weights).
    """
    rows = [
        {"round": one.number, "site": site, "weight": weight, "norm": norm(one.update(site).params)}
        for one in rounds
        for site, weight in one.weights.items()
    ]
    return pd.DataFrame(rows, columns=["round", "site", "weight", "norm"])


def cosines(round_: Round) -> pd.DataFrame:
    """Return the cosine between the updates of every two sites in a round: 1 the same direction, 0 unrelated.

    Returns
    -------
    DataFrame
        Sites by sites, symmetric, float64 in [-1, 1]; NaN where an update is nought.
    """
    updates = {site: round_.update(site) for site in round_.sites}
    table = {a: {b: cosine(mine.params, other.params) for b, other in updates.items()} for a, mine in updates.items()}
    return pd.DataFrame(table, index=list(updates), columns=list(updates))


def agreement(rounds: Iterable[Round]) -> pd.DataFrame:
    """Return how much every site agreed with the others in every round.

    Returns
    -------
    DataFrame
        Columns round, site and cosine: between its update and the weighted sum of the others' (not the whole
        aggregate, of which it is a part itself); NaN for a site on its own.
    """
    rows = []
    for one in rounds:
        weighted = _weighted(one)
        whole = _sum(weighted.values())
        for site, mine in weighted.items():
            others = {name: tensor - mine[name] for name, tensor in whole.items()}
            alone = len(weighted) == 1
            rows.append({"round": one.number, "site": site, "cosine": math.nan if alone else cosine(mine, others)})
    return pd.DataFrame(rows, columns=["round", "site", "cosine"])


def contributions(rounds: Iterable[Round]) -> pd.DataFrame:
    """Return who moved which layer in every round.

    The share of site k in a layer is <w_k u_k, a> / <a, a>, with a = sum_k w_k u_k the aggregate, u_k the site's update
    and w_k its weight: the part of the step that the site's push accounts for. The shares of a layer sum to one; a site
    that pushed the other way has a negative one.

    Returns
    -------
    DataFrame
        Columns round, layer, site, share (NaN where the layer did not move) and step (L2 norm of the aggregate in the
        layer).
    """
    rows = []
    for one in rounds:
        weighted = _weighted(one)
        whole = _sum(weighted.values())
        layers: dict[str, list[str]] = {}
        for name in whole:
            layers.setdefault(layer_of(name), []).append(name)
        for layer, names in layers.items():
            moved = sum(_dot(whole[name], whole[name]) for name in names)
            for site, mine in weighted.items():
                along = sum(_dot(mine[name], whole[name]) for name in names)
                share = along / moved if moved else math.nan
                rows.append(
                    {"round": one.number, "layer": layer, "site": site, "share": share, "step": math.sqrt(moved)}
                )
    return pd.DataFrame(rows, columns=["round", "layer", "site", "share", "step"])


def left_out(rounds: Iterable[Round], site: str) -> pd.DataFrame:
    """Return what every round's step would have been without a site, beside what it was.

    Returns
    -------
    DataFrame
        Columns round, share (the site's weight in the aggregate), step and step_without (L2 norms of the aggregate
        with and without it, the others' weights scaled to sum to one) and cosine (between the two). Rounds in which the
        site had no update, or was alone, are left out.

    Raises
    ------
    BadInput
        When it took part in no round beside others.
    """
    rows, seen = [], set()
    for one in rounds:
        seen |= set(one.sites)
        if site not in one.sites or len(one.sites) == 1:
            continue
        weighted = _weighted(one)
        share = one.weights[site]
        whole = _sum(weighted.values())
        without = {name: (tensor - weighted[site][name]) / (1 - share) for name, tensor in whole.items()}
        rows.append(
            {
                "round": one.number,
                "share": share,
                "step": norm(whole),
                "step_without": norm(without),
                "cosine": cosine(whole, without),
            }
        )
    if not rows:
        raise BadInput("site", site, "a site that trained beside others: " + (", ".join(sorted(seen)) or "none did"))
    return pd.DataFrame(rows)


def layer_distances(models: Mapping[str, State], reference: State) -> pd.DataFrame:
    """Return how far models lie from a reference, layer by layer.

    Returns
    -------
    DataFrame
        Columns model, layer, distance (L2) and relative (distance over the L2 norm of the reference's layer; NaN where
        that is nought).

    Raises
    ------
    BadInput
        When a model has other parameters than the reference.
    """
    rows = []
    for model, state in models.items():
        if state.params.keys() != reference.params.keys():
            raise BadInput("model", model, "a model with the parameters of the reference")
        layers: dict[str, list[str]] = {}
        for name in reference.params:
            layers.setdefault(layer_of(name), []).append(name)
        for layer, names in layers.items():
            own = norm({name: reference.params[name] for name in names})
            apart = norm({name: state.params[name].double() - reference.params[name].double() for name in names})
            rows.append(
                {"model": model, "layer": layer, "distance": apart, "relative": apart / own if own else math.nan}
            )
    return pd.DataFrame(rows, columns=["model", "layer", "distance", "relative"])


def cosine(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """Return the cosine between two sets of tensors of the same names; NaN when one is nought."""
    lengths = norm(a) * norm(b)
    return max(-1.0, min(1.0, sum(_dot(a[name], b[name]) for name in a) / lengths)) if lengths else math.nan


def _weighted(round_: Round) -> dict[str, Tensors]:
    """Return every site's update times its weight, fp64."""
    return {site: _scaled(round_.update(site), weight) for site, weight in round_.weights.items()}


def _scaled(update: Update, weight: float) -> Tensors:
    return {name: tensor.double() * weight for name, tensor in update.params.items()}


def _sum(parts: Iterable[Tensors]) -> Tensors:
    total: Tensors = {}
    for part in parts:
        total = {name: tensor + total[name] for name, tensor in part.items()} if total else part
    return total


def _dot(a: Tensor, b: Tensor) -> float:
    return float((a.double() * b.double()).sum())
