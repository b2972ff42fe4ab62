"""A run's results beside the published numbers: what has a counterpart, what has none, and why."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from evaluation.published.tables import ABOUT, published
from evaluation.results import SEEDS
from evaluation.tables import OF_VALUES, variants

COLUMNS = (
    *ABOUT,
    "published",
    "published_std",
    "our_dataset",
    "our_metric",
    "request",
    "preset",
    "checkpoint",
    "ours",
    "ours_std",
    "seeds",
    "difference",
    "note",
)
MODELS = {"fedavgcnn": "cnn"}
"""The studies' names of networks that have another one here."""
METHODS = {"cf-3": "cf-k", "unsir-stage2": "unsir"}
"""The studies' names of methods that have another one here."""
METRICS = {
    "mia_auc": ("population_mia_auc",),
    "u_lira_auc": ("ulira_auc",),
    "u_lira_tpr_at_1pct_fpr": ("ulira_tpr_at_1pct_fpr",),
    "retrain_gap_kl": ("retrain_gap_kl_forget", "retrain_gap_kl_retain"),
    "forgetting_score": ("forgetting_score_mufac",),
    "nomus": ("nomus_mufac",),
}
"""The studies' metrics under the names they have here, where those differ."""
NO_COUNTERPART = {
    "mean": "a mean over data sets: no single run to set beside it",
    "sole-class": "results.csv does not tell the departure of a sole holder from another one",
    "retain_accuracy_vlm": "the metric of a network that is not here",
    "unsir-stage1": "the half-way point of UNSIR is not kept",
}
"""Data sets, granularities, metrics and methods of the studies that nothing here can be set beside."""
NATURAL = frozenset({"camelyon17"})
"""Data sets with hospitals of their own, whatever concentration the study prints beside them."""
QUANTITY = frozenset({"segmentation", "localization"})
"""Tasks whose concentration is one of sizes, not of classes."""
REQUESTED = {"client": "client:site-0", "class": "class:2"}
"""What the study removes: the first site, the third class."""
STEP_ONLY = frozenset({"speedup"})
"""What the study measures of the unlearning step alone."""
KL_ON = {"retrain_gap_kl_forget": "on forget records", "retrain_gap_kl_retain": "on retain records"}
KEY = ("task", "dataset", "granularity", "method", "metric")
SETTING = ("task", "dataset", "partition", "alpha", "model", "request", "granularity")
OWN = (*SETTING, "method", "preset", "checkpoint", "variant", "metric")

Row = dict[str, Any]


def join_published(results: pd.DataFrame, *, other_datasets: bool = False) -> pd.DataFrame:
    """Set a run beside the published tables.

    The studies do not say on which records they report, so that a number of theirs has two counterparts where there
    are two: ``forget_accuracy`` on held-out records and ``forget_train_accuracy`` on trained ones. They report after
    the recovery rounds; both checkpoints are given, and `note` says which is the other one.

    Parameters
    ----------
    results : DataFrame
        As `evaluation.results.read_results` gives it.
    other_datasets : bool
        Whether a setting of the run that the studies do not have is set beside whatever data sets they have for the
        same task, kind of request, method and metric. Says something about the order of methods at best; each such
        row says so.

    Returns
    -------
    DataFrame
        `COLUMNS`: what the published number is about (`evaluation.published.tables.ABOUT`), ``published`` and
        ``published_std``; ``our_dataset``, ``our_metric``, ``request``, ``preset``, ``checkpoint``, ``ours`` (mean over
        seeds), ``ours_std`` (sample deviation) and ``seeds`` (how many combinations) of this run; ``difference``, ours
        minus published, in the metric's unit; ``note``. A published number without a counterpart, and a number of ours
        whose metric the studies have but not its setting, are rows too: NaN on the other side, and why in `note`.
    """
    ours, theirs = _rows(_ours(results)), _rows(_in_our_names(published()))
    used: set[int] = set()
    rows = [*_beside_theirs(theirs, ours, used)]
    alike = _by_method(theirs)
    methods: dict[str, set[str]] = {}
    for number in theirs:
        methods.setdefault(number["dataset"], set()).add(number["our_method"])
    for one in (one for place, one in enumerate(ours) if place not in used):
        rows += (other_datasets and [*_elsewhere(one, alike)]) or [_ours_alone(one, methods)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _beside_theirs(theirs: Sequence[Row], ours: Sequence[Row], used: set[int]) -> Iterator[Row]:
    """Yield every published number, once for each of ours it goes with, whose places are added to `used`, or alone."""
    at_hand: dict[tuple[str, ...], list[int]] = {}
    for place, one in enumerate(ours):
        at_hand.setdefault(tuple(one[name] for name in KEY), []).append(place)
    known = {key[:length] for key in at_hand for length in range(1, len(KEY) + 1)}
    for number in theirs:
        if why := _never(number):
            yield _alone(number, why)
            continue
        keys = [(*(number[name] for name in KEY[:3]), number["our_method"], name) for name in number["our_metrics"]]
        alike = [place for key in keys for place in at_hand.get(key, ())]
        kept = [place for place in alike if _same_setting(number, ours[place])]
        used |= set(kept)
        for place in kept:
            yield _pair(number, ours[place], _remarks(number, ours[place]))
        if not kept:
            yield _alone(number, _why_alone(number, keys, known, [ours[place] for place in alike]))


# ---------------------------------------------------------------------- both sides in one vocabulary
def _in_our_names(theirs: pd.DataFrame) -> pd.DataFrame:
    return theirs.assign(
        our_method=theirs["method"].map(lambda name: METHODS.get(name, name)),
        our_model=theirs["model"].map(lambda name: MODELS.get(name, name)),
        our_metrics=theirs["metric"].map(our_metrics),
        our_alpha=theirs["alpha"].mask(theirs["dataset"].isin(NATURAL)),
    )


def our_metrics(metric: str) -> tuple[str, ...]:
    """Return what a published metric is called here: on held-out and on trained records where both are told apart.

    >>> our_metrics("forget_accuracy"), our_metrics("mia_auc")
    (('forget_accuracy', 'forget_train_accuracy'), ('population_mia_auc',))
    """
    if metric in METRICS:
        return METRICS[metric]
    side, _, of_task = metric.partition("_")
    return (metric, f"{side}_train_{of_task}") if side in ("forget", "retain") else (metric,)


def _ours(results: pd.DataFrame) -> pd.DataFrame:
    """Return the mean over seeds of every metric that the studies have, of every model."""
    wanted = {ours for metric in published()["metric"].unique() for ours in our_metrics(metric)}
    rows = results.assign(variant=variants(results))
    rows = rows[rows["metric"].isin(wanted)]
    sound = rows["status"].isin(OF_VALUES)
    told = rows["reason"].where(~sound | rows["value"].isna())
    rows = rows.assign(ours=rows["value"], fault=rows["status"].mask(sound), why=told.replace("", None))
    seeds = rows[list(SEEDS)].astype(str).itertuples(index=False, name=None)
    rows = rows.assign(seed=[" ".join(map(str, of_row)) for of_row in seeds])
    groups = rows.groupby(list(OWN), dropna=False, sort=False)
    found = groups.agg(
        ours=("ours", "mean"), seeds=("seed", "nunique"), status=("fault", "first"), why=("why", "first")
    )
    found["ours_std"] = groups["ours"].std(ddof=1)
    found = found.fillna({"status": "ok", "why": ""}).reset_index()
    return found.assign(preset=(found["preset"] + " " + found["variant"]).str.strip())


# ---------------------------------------------------------------------- which belong together
def _never(number: Row) -> str:
    names = (number["dataset"], number["granularity"], number["metric"], number["method"])
    return next((NO_COUNTERPART[name] for name in names if name in NO_COUNTERPART), "")


def _same_setting(number: Row, one: Row) -> bool:
    return _same_split(number, one) and number["our_model"] in ("", one["model"])


def _same_split(number: Row, one: Row) -> bool:
    if math.isnan(number["our_alpha"]) or math.isnan(one["alpha"]):
        return math.isnan(number["our_alpha"]) and math.isnan(one["alpha"]) and one["partition"] == "natural"
    kind = "quantity" if number["task"] in QUANTITY else "dirichlet"
    return bool(number["our_alpha"] == one["alpha"] and one["partition"] == kind)


def _remarks(number: Row, one: Row) -> str:
    """Say what to keep in mind about a pair."""
    metric, checkpoint, removed = one["metric"], one["checkpoint"], REQUESTED.get(number["granularity"], "")
    notes = [_records(metric, number["granularity"])]
    if one["method"] == "retrain" and checkpoint == "recovered":
        notes.append("gold after recovery rounds of its own, which the study does not have")
    elif checkpoint == "unlearned" and one["method"] != "retrain" and metric not in STEP_ONLY:
        notes.append("before recovery; the study reports after it")
    if removed and one["request"] != removed and number["dataset"] not in NATURAL:
        notes.append(f"the study removes {removed}")
    if number["our_model"] == "":
        notes.append("the study does not name the network here")
    if one["status"] != "ok":
        notes.append(f"{one['status']}: {one['why']}")
    elif math.isnan(one["ours"]):
        notes.append(one["why"] or "no value")
    return "; ".join(note for note in notes if note)


def _records(metric: str, granularity: str) -> str:
    """Say which records a number of ours is about, where the study does not."""
    if metric in KL_ON:
        return KL_ON[metric]
    if not metric.startswith(("forget_", "retain_")):
        return ""
    if "_train_" in metric:
        return "on trained records"
    if granularity == "sample":
        return "on the removed records" if metric.startswith("forget_") else "on test records"
    return "on held-out records"


def _why_alone(number: Row, keys: Sequence[tuple[str, ...]], known: set[tuple[str, ...]], alike: Sequence[Row]) -> str:
    """Name the first thing that the run lacks; `known` has what it does have, from the task on."""
    texts = ("no run of task {}", "no run on {}", "no {} request on this data set", "{} was not run on it")
    for length, text in enumerate(texts, start=1):
        if keys[0][:length] not in known:
            return text.format(keys[0][length - 1])
    if not alike:
        return f"the results have no {' or '.join(number['our_metrics'])}"
    if any(_same_split(number, one) for one in alike):
        return f"run with another network than {number['our_model']}"
    alpha = number["our_alpha"]
    return "run with another split than " + ("the natural one" if math.isnan(alpha) else f"concentration {alpha:g}")


def _by_method(theirs: Iterable[Row]) -> dict[tuple[str, ...], list[Row]]:
    """Return the published numbers that may have a counterpart, by task, kind of request and method."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for number in theirs:
        if not _never(number):
            found.setdefault((number["task"], number["granularity"], number["our_method"]), []).append(number)
    return found


def _elsewhere(one: Row, by_method: Mapping[tuple[str, ...], Iterable[Row]]) -> Iterator[Row]:
    """Yield a number of ours beside each published one of its method, task and kind of request on another data set."""
    for number in by_method.get((one["task"], one["granularity"], one["method"]), ()):
        if number["dataset"] != one["dataset"] and one["metric"] in number["our_metrics"]:
            note = f"another data set ({one['dataset']}, not {number['dataset']}): no reproduction"
            yield _pair(number, one, "; ".join(part for part in (note, _remarks(number, one)) if part))


# ---------------------------------------------------------------------- rows
def _rows(frame: pd.DataFrame) -> list[Row]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def _pair(number: Row, one: Row, note: str) -> Row:
    return _alone(number, note) | {
        "our_dataset": one["dataset"],
        "our_metric": one["metric"],
        "difference": one["ours"] - number["value"],
        **{name: one[name] for name in ("request", "preset", "checkpoint", "ours", "ours_std", "seeds")},
    }


def _alone(number: Row, note: str) -> Row:
    empty: Row = {"our_dataset": "", "our_metric": "", "request": "", "preset": "", "checkpoint": ""}
    empty |= {"ours": math.nan, "ours_std": math.nan, "seeds": 0, "difference": math.nan}
    known = {name: number[name] for name in ABOUT}
    return known | {"published": number["value"], "published_std": number["std"]} | empty | {"note": note}


def _ours_alone(one: Row, methods: Mapping[str, set[str]]) -> Row:
    """Return a number of ours whose setting the studies do not have; `methods` are theirs, by data set."""
    if one["dataset"] not in methods:
        note = f"no published number on {one['dataset']}"
    elif one["method"] not in methods[one["dataset"]]:
        note = f"no published number of {one['method']} on {one['dataset']}"
    else:
        note = "no published number of this metric, split, network and kind of request"
    return _pair(one | {"table": "", "value": math.nan, "std": math.nan}, one, note)
