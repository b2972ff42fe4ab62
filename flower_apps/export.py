"""Writes one model of a run out for others: plain weights, a model card, and a script that loads them."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation.record import PLACED
from evaluation.runs import CHECKPOINTS
from flower_apps.places import outside_checkout
from flower_apps.settings import GroupSettings
from partitions.disk import sync_tree
from partitions.errors import BadInput, unknown_name

if TYPE_CHECKING:
    import pandas as pd

    from partitions.records import LoadedData

ANCHORS = ("retrain", "original")
_CELL_KEYS = ("cell", "request", "preset", "train_seed", "unlearn_seed")
_OF_SEARCH = ("search", *(f"search-{what}" for what in ("sampler", "trials", "seed", "rule", "checkpoint")))
_OF_METHODS = ("methods", "preset", "overrides", "exclude", *_OF_SEARCH, "unlearn-epochs", "unlearn-seeds", "requests")
_OF_SCORING = ("evaluate-seeds", "features", "shadows", "relearn-epochs")
_SECTIONS = {
    "On what was forgotten, on what was retained (held-out records; _train: trained ones) and on all held out": (
        "forget_",
        "forget_train_",
        "retain_",
        "retain_train_",
        "test_",
    ),
    "Membership and closeness to the retrained model": ("population_mia_auc", "retrain_gap_l2", "retrain_gap_kl_"),
    "Cost": ("seconds_", "speedup", "bytes_", "client_examples"),
}
"""What the card shows of the metrics; all of them are in ``metrics.csv`` beside it."""


@dataclass(frozen=True)
class _Chosen:
    """One checkpoint of one cell, with everything the card tells of it.

    `anchors` has the cell of the retrained and of the original model that it is read against, by method.
    """

    cell: Mapping[str, Any]
    anchors: Mapping[str, str]
    checkpoint: str
    weights: Path
    settings: GroupSettings
    data: LoadedData


def export_model(
    run: Path, method: str, *, checkpoint: str | None, where: Sequence[str], out: Path | None, home: Path
) -> Path:
    """Write ``weights.safetensors``, ``MODEL_CARD.md``, ``metrics.csv`` and ``load.py`` of one checkpoint.

    Parameters
    ----------
    run : Path
        A run folder.
    method : str
        Method of the cell, ``"retrain"`` or ``"original"``.
    checkpoint : str or None
        ``"trained"``, ``"unlearned"`` or ``"recovered"``; None takes the last one the cell has.
    where : sequence of str
        ``key=value`` conditions that single out one cell: ``cell``, ``request``, ``preset``, ``train_seed``,
        ``unlearn_seed`` or a setting.
    out : Path or None
        A folder that does not exist yet; None takes ``exports/<method>-<checkpoint>`` below the run.
    home : Path
        LETHE_HOME, for the data set's licence and classes.

    Returns
    -------
    Path
        The folder, which appears only once complete.

    Raises
    ------
    BadInput
        When no cell or more than one fits, the cell lacks the checkpoint, `out` is taken, or the run's weights are
        gone or cannot be read.
    """
    from evaluation.files import exists
    from evaluation.runs import read_record

    record = read_record(run)
    chosen = _choose(run, record["cells"], method, checkpoint, where, home)
    target = outside_checkout("out", out or run / "exports" / f"{method}-{chosen.checkpoint}")
    if exists(target):
        raise BadInput("out", str(target), "a folder that does not exist yet", "name another with --out")
    work = target.with_name(f".{target.name}-{uuid.uuid4().hex[:8]}")
    try:
        work.mkdir(parents=True)
    except OSError as error:
        raise BadInput(
            "out", str(target), f"a folder one can make ({error.strerror})", "name another with --out"
        ) from None
    try:
        _write_weights(chosen, work / "weights.safetensors")
        (work / "load.py").write_text(_loading_script(chosen), encoding="utf-8")
        figures = _figures(run, chosen)
        (work / "MODEL_CARD.md").write_text(_model_card(chosen, figures, record), encoding="utf-8")
        (work / "metrics.csv").write_text(_metrics_csv(figures), encoding="utf-8")
        sync_tree(work)
        work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _choose(
    run: Path,
    cells: Sequence[Mapping[str, Any]],
    method: str,
    checkpoint: str | None,
    where: Sequence[str],
    home: Path,
) -> _Chosen:
    from flower_apps.depot import depot_url
    from partitions.loading import load_data

    names = {str(cell["method"]) for cell in cells}
    if not names:
        raise BadInput("run", str(run), "a run with at least one finished cell", "finish it with `lethe run`")
    if method not in names:
        raise unknown_name("method", method, names)
    cell = _only([cell for cell in cells if cell["method"] == method and _fits(cell, where)], method, where)
    had = {name: path for name, path in cell["checkpoints"].items() if path}
    taken = checkpoint or next((name for name in reversed(CHECKPOINTS) if name in had), "")
    if taken not in had:
        reason = f"the cell is {cell['status']}" if cell["status"] != "ok" else ""
        raise BadInput("checkpoint", taken, "one of " + (", ".join(had) or "none"), reason)
    settings = GroupSettings.parse(cell["settings"])
    data = load_data(settings.dataset, home, settings.cap, depot_url(settings))
    return _Chosen(cell, _anchors(cell, cells), taken, Path(had[taken]), settings, data)


def _anchors(cell: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the cells of the same training, request and seeds that hold the retrained and the original model."""

    def training(of: Mapping[str, Any]) -> list[Any]:
        ignored = {*_OF_METHODS, *_OF_SCORING, *PLACED}
        own = sorted((key, value) for key, value in of["settings"].items() if key not in ignored)
        return [own, *(of[key] for key in ("request", "train_seed", "unlearn_seed"))]

    wanted = training(cell)
    return {str(c["method"]): str(c["cell"]) for c in cells if c["method"] in ANCHORS and training(c) == wanted}


def _fits(cell: Mapping[str, Any], where: Sequence[str]) -> bool:
    for condition in where:
        key, equals, value = condition.partition("=")
        if not equals:
            raise BadInput("--where", condition, "key=value, such as request=client:patient-1")
        facts = {**cell["settings"], **{name: cell[name] for name in _CELL_KEYS if name in cell}}
        if key not in facts:
            raise unknown_name("--where", key, facts)
        if str(facts[key]) != value:
            return False
    return True


def _only(cells: Sequence[Mapping[str, Any]], method: str, where: Sequence[str]) -> Mapping[str, Any]:
    """Return the one cell, or the first of several with one model; raises `BadInput` that tells several apart."""
    if cells and all(cell["checkpoints"] == cells[0]["checkpoints"] for cell in cells):
        return cells[0]
    if not cells:
        raise BadInput("--where", " ".join(where), f"conditions that a cell of {method} meets", "drop one")
    facts = [{**cell["settings"], **{name: cell.get(name, "") for name in _CELL_KEYS}} for cell in cells]
    differing = [key for key in facts[0] if len({str(fact.get(key)) for fact in facts}) > 1 and key != "cell"]
    values = {key: sorted({str(fact[key]) for fact in facts}) for key in differing or ["cell"]}
    choices = "; ".join(" or ".join(f"--where '{key}={one}'" for one in found) for key, found in values.items())
    raise BadInput("method", method, "a method with one cell", f"{len(cells)} fit: add {choices}")


def _write_weights(chosen: _Chosen, path: Path) -> None:
    """Write the tensors under plain ``state_dict`` names."""
    from safetensors.numpy import save_file

    from evaluation.runs import read_state

    arrays = read_state(chosen.weights).to_arrays()
    plain = {name.partition("/")[2]: array for name, array in arrays.items()}
    save_file(plain, path, metadata={"format": "pt", **{key: str(chosen.cell[key]) for key in ("cell", "method")}})
    path.chmod(0o644)


def _loading_script(chosen: _Chosen) -> str:
    settings, shape = chosen.settings, tuple(chosen.data.inputs.shape[1:])
    return f'''"""Loads the model in this folder. Needs Lethe to be installed: it defines the network."""

from pathlib import Path

import numpy as np
import torch
from clients.catalogue import TASKS
from safetensors.torch import load_file

CLASSES = {json.dumps(chosen.data.classes, ensure_ascii=False)}
IMAGE_SHAPE = {shape!r}  # as the sites have them: uint8

task = TASKS.get({json.dumps(settings.task)})
model = task.build({json.dumps(settings.model)}, IMAGE_SHAPE, len(CLASSES))
model.load_state_dict(load_file(Path(__file__).with_name("weights.safetensors")))
model.eval()

if __name__ == "__main__":
    images = np.zeros((1, *IMAGE_SHAPE), dtype=np.uint8)
    with torch.no_grad():
        outputs = model(task.to_inputs(images))
    print(f"loaded {{sum(p.numel() for p in model.parameters()):,}} parameters; output {{tuple(outputs.shape)}}")
'''


def _figures(run: Path, chosen: _Chosen) -> list[tuple[str, str, str, str]]:
    """Return (metric, this model, retrained, original) as text, from ``results.csv``; empty when there is none."""
    from evaluation.files import is_file
    from evaluation.results import read_results

    if not is_file(run / "results.csv"):
        return []
    results = read_results(run / "results.csv")
    mine = results[(results["cell"] == chosen.cell["cell"]) & (results["checkpoint"] == chosen.checkpoint)]
    if mine.empty:
        return []
    retrained, original = (results[results["cell"] == chosen.anchors.get(name, "none")] for name in ANCHORS)
    retrained = retrained[retrained["checkpoint"] == chosen.checkpoint]
    metrics = dict.fromkeys(mine["metric"])
    return [(name, *(_value(rows, name) for rows in (mine, retrained, original))) for name in metrics]


def _value(rows: pd.DataFrame, metric: str) -> str:
    found = rows.loc[rows["metric"] == metric, "value"].astype(float)
    return f"{found.mean():.4g}" if found.notna().any() else "-"


def _model_card(chosen: _Chosen, figures: Sequence[tuple[str, str, str, str]], record: Mapping[str, Any]) -> str:
    cell, settings, data = chosen.cell, chosen.settings, chosen.data
    hidden = (*PLACED, "original")
    lines = [
        f"# {settings.model} on {data.name}: {_title(str(cell['method']), str(cell['request']))}",
        "",
        _what_happened(chosen),
        "",
        *(
            [f"**The cell's status is `{cell['status']}`: do not use this model.**", ""]
            if cell["status"] != "ok"
            else []
        ),
        *(
            [
                f"**A backdoor was planted in the training records of {settings.backdoor_site}, to measure whether it "
                "is forgotten: do not use this model for anything else.**",
                "",
            ]
            if settings.backdoor_site
            else []
        ),
        "## What it was asked to forget",
        "",
        f"`{cell['request']}` ({_in_words(str(cell['request']))}).",
        "",
        "## Figures against the retrained model",
        "",
        *_figure_lines(figures),
        "",
        "An unlearned model is good when it is close to the retrained one, not when it forgets most. Figures come from "
        "one federation and one set of seeds; they prove nothing about records outside it. Not for clinical use.",
        "",
        "## What it is",
        "",
        *_origin_lines(chosen, record),
        "",
        "## How to load it",
        "",
        "`python load.py`, or `safetensors.torch.load_file('weights.safetensors')` for the plain `state_dict`.",
        "",
        "## Data",
        "",
        f"{data.name}: {len(data.targets)} records, classes {', '.join(data.classes)}.",
        f"Licence: {data.licence}. Source: {data.source}. Cite: {data.citation}.",
        "The licence of the data may bind what is derived from it, this model included.",
        "",
        *_method_lines(chosen),
        "## Settings of the run",
        "",
        f"Cell `{cell['cell']}`, checkpoint `{chosen.checkpoint}`, train seed {cell['train_seed']}, "
        f"unlearn seed {cell['unlearn_seed']}.",
        "",
        "| setting | value |",
        "|---|---|",
        *(f"| {key} | {value} |" for key, value in settings.to_run_config().items() if key not in hidden),
        "",
    ]
    return "\n".join(lines)


def _title(method: str, request: str) -> str:
    plain = {"original": "the original model", "retrain": f"retrained without {request}"}
    return plain.get(method, f"{request} forgotten by {method}")


def _what_happened(chosen: _Chosen) -> str:
    """Say in a sentence or two how this model came to be, with the method's citation."""
    from strategies.registry import METHODS

    settings, method = chosen.settings, str(chosen.cell["method"])
    trained = f"{settings.rounds} rounds of {settings.strategy}, split `{settings.split}`"
    start = f"Imported from `{Path(settings.original).name}`" if settings.original else f"Trained with {trained}"
    if method == "original":
        return f"{start}, on every record: it has forgotten nothing."
    recovery = f", then {settings.recovery_rounds} recovery rounds" if chosen.checkpoint == "recovered" else ""
    if method == "retrain":
        return f"Trained from scratch with {trained}, without the records below{recovery}: the gold standard."
    known = METHODS.get(method)
    return (
        f"{start}, then made to forget by {known.title} (`{method}`, preset `{chosen.cell['preset']}`)"
        f"{recovery}. Reference: {known.citation}. Provenance: {known.provenance}."
    )


def _figure_lines(figures: Sequence[tuple[str, str, str, str]]) -> list[str]:
    if not figures:
        return ["The run has no results for this checkpoint."]
    lines = []
    for title, leads in _SECTIONS.items():
        rows = [row for lead in leads for row in figures if _belongs(row[0], lead, leads)]
        head = [f"### {title}", "", "| metric | this model | retrained (gold) | original |", "|---|---|---|---|"]
        lines += [*head, *(f"| {' | '.join(row)} |" for row in rows), ""] if rows else []
    return [*lines, "Every metric is in `metrics.csv`."]


def _belongs(metric: str, lead: str, leads: Sequence[str]) -> bool:
    """Tell whether `lead` is the longest of `leads` that a metric starts with."""
    return lead == max((one for one in leads if metric.startswith(one)), key=len, default="")


def _metrics_csv(figures: Sequence[tuple[str, str, str, str]]) -> str:
    rows = [("metric", "this_model", "retrained", "original"), *figures]
    return "".join(",".join("" if value == "-" else value for value in row) + "\n" for row in rows)


def _method_lines(chosen: _Chosen) -> list[str]:
    """Return the method's settings as a table; what 0 or another value stands for is in its meaning."""
    from strategies.registry import METHODS

    config, method = chosen.cell["config"], str(chosen.cell["method"])
    if not config or method not in METHODS.names():
        return []
    made = METHODS.get(method).Config
    fields = made.fields_by_key()
    rows = [(made.key_of(name), value) for name, value in sorted(config.items())]
    return [
        "## The method's settings",
        "",
        "| setting | value | meaning |",
        "|---|---|---|",
        *(f"| {key} | {value} | {(fields[key].description or '') if key in fields else ''} |" for key, value in rows),
        "",
    ]


def _origin_lines(chosen: _Chosen, record: Mapping[str, Any]) -> list[str]:
    """Say when, where and with what it was made, and what goes in and comes out."""
    from clients.catalogue import TASKS

    made = datetime.fromtimestamp(float(record.get("created", 0)), UTC)
    environment = record.get("environment", {})
    libraries = ", ".join(f"{name} {number}" for name, number in environment.get("libraries", {}).items())
    commit = str(environment.get("commit", ""))
    shape = " x ".join(str(side) for side in chosen.data.inputs.shape[1:])
    preparation = TASKS.get(chosen.settings.task).preparation
    return [
        f"Input: a record as the sites have it, uint8 of shape {shape}; `load.py` prepares it ({preparation}).",
        f"Output: {len(chosen.data.classes)} classes, in the order {', '.join(chosen.data.classes)}.",
        "",
        f"Made {made:%Y-%m-%d} by Lethe{f' at commit `{commit[:12]}`' if commit else ''} on "
        f"{environment.get('platform', 'an unknown platform')}, with {libraries or 'unknown libraries'}.",
    ]


def _in_words(text: str) -> str:
    """Say what a request means, step by step; "nothing" for the empty request."""
    from partitions.requests import parse_request

    words = []
    for step in parse_request(text).steps if text else ():
        names = " and ".join(step.values)
        where = f"at {step.scope}" if step.scope else "at every site"
        words.append(
            {
                "client": f"every record of {names}",
                "class": f"every record of class {names}, at every site",
                "patient": f"every record of the patient {names}, at every site",
                "sample": f"a seeded {step.fraction:.0%} of the training records {where}",
            }[step.granularity]
        )
    return "; then ".join(words) or "nothing"
