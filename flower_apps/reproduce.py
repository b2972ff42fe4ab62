"""`lethe reproduce`: computes one cell of a kept run again, from nothing, and compares every value of it."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from rich import box
from rich.console import RenderableType
from rich.table import Table

from evaluation.catalogue import is_timed
from evaluation.results import COLUMNS, read_results
from evaluation.runs import Run, find_run, read_record
from evaluation.tables import short
from flower_apps.cases import SEARCHED
from flower_apps.cells import CONTROL, GOLD, ORIGINAL
from flower_apps.depot import depot_url
from flower_apps.runs import KEPT
from flower_apps.settings import GroupSettings
from partitions.depot import NO_DEPOT
from partitions.errors import BadInput, RunFailed, unknown_name
from partitions.loading import load_data
from partitions.requests import parse_request

CELL = re.compile(r"[0-9a-f]{12}")
COMMIT = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28}\b")
GIVEN = "RUN:CELL, RUN:CELL:METRIC, or --run RUN with --where KEY=VALUE"
SAME = ("checkpoint", "evaluate_seed", "metric")
"""What tells the rows of one cell apart."""
DEVICES = "devices"
Judgement = Literal["identical", "within tolerance", "within interval", "differs", "gone", "new", "clock"]
Execute = Callable[[GroupSettings], None]


@dataclass(frozen=True)
class Chosen:
    """The rows to reproduce: all of one cell, or some.

    Attributes
    ----------
    run : Path
        Run folder.
    cell : mapping
        Of the run's record.
    rows : DataFrame
        Rows of its results.
    """

    run: Path
    cell: Mapping[str, Any]
    rows: pd.DataFrame


@dataclass(frozen=True)
class Compared:
    """One value then and now.

    Attributes
    ----------
    checkpoint, metric : str
        Of the row.
    evaluate_seed : int or None
        Of the row.
    then, now : float or None
        None where there is no value.
    judgement : str
        ``identical``; ``within tolerance`` where one was given; ``within interval``: not equal, but inside the 95 %
        interval of the kept row; ``differs``, in value, status or number of records; ``gone`` or ``new``: only one
        side has the row; ``clock``: a time, not judged.
    """

    checkpoint: str
    metric: str
    evaluate_seed: int | None
    then: float | None
    now: float | None
    judgement: Judgement


@dataclass(frozen=True)
class Reproduction:
    """What came of it.

    Attributes
    ----------
    cell, method, request : str
        Which was computed again.
    kept, again : str
        The run folder it was kept in, and the one of the new computation.
    compared : tuple of Compared
        In the order of the kept rows.
    changes : tuple of (str, str, str)
        What of the environment is not as it was: what, then, now.
    """

    cell: str
    method: str
    request: str
    kept: str
    again: str
    compared: tuple[Compared, ...]
    changes: tuple[tuple[str, str, str], ...]

    @property
    def equal(self) -> bool:
        """Whether every judged value is identical, or within the tolerance that was asked for."""
        return all(one.judgement in ("identical", "within tolerance", "clock") for one in self.compared)

    @property
    def verdict(self) -> str:
        """What came of it in one line."""
        judged = [one for one in self.compared if one.judgement != "clock"]
        kinds = dict.fromkeys(one.judgement for one in judged)
        counts = {kind: sum(one.judgement == kind for one in judged) for kind in kinds}
        found = ", ".join(f"{count} {name}" for name, count in counts.items())
        what = f"{self.method} {self.request} ({self.cell})"
        verdict = "reproduced" if self.equal else "NOT reproduced"
        return f"{verdict}: {what}: {len(judged)} values, {found or 'none judged'}"

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        plain = {name: value for name, value in asdict(self).items() if name != "changes"}
        changes = [{"what": what, "then": then, "now": now} for what, then, now in self.changes]
        return {**plain, "changes": changes, "equal": self.equal, "verdict": self.verdict}


def choose(row: str, run: str, where: Sequence[str], home: Path) -> Chosen:
    """Return the rows that a person means.

    Parameters
    ----------
    row : str
        ``RUN:CELL`` or ``RUN:CELL:METRIC``; empty where `run` is given.
    run : str
        A run folder, a name below ``runs/``, or ``latest``.
    where : sequence of str
        ``key=value`` conditions on columns of the results, which must leave rows of one cell.
    home : Path
        LETHE_HOME.

    Raises
    ------
    BadInput
        When it is not one cell of a run, naming what there is.
    """
    if bool(row) == bool(run):
        raise BadInput("ROW", row, GIVEN, "give one of the two")
    conditions = [_condition(text) for text in where]
    if row:
        run, cell, metric = _parsed(row)
        conditions += [("cell", cell), *([("metric", metric)] if metric else [])]
    folder = find_run(run, home)
    results, cells = read_results(folder), {str(cell["cell"]): cell for cell in read_record(folder)["cells"]}
    if not cells:
        raise BadInput("run", str(folder), "a run with a finished cell", "finish it with `lethe run`")
    rows = results
    for key, value in conditions:
        kept = rows[rows[key].astype(str) == value]
        if kept.empty:
            raise unknown_name(key, value, rows[key].dropna().astype(str).unique())
        rows = kept
    found = [str(cell) for cell in rows["cell"].unique()]
    if len(found) > 1:
        raise _several(rows, found)
    if found[0] not in cells:
        raise BadInput("cell", found[0], "a finished cell of the run: " + ", ".join(cells))
    return Chosen(folder, cells[found[0]], rows.drop_duplicates(list(SAME)))


def settings_of(chosen: Chosen, home: Path, out: Path) -> GroupSettings:
    """Return the settings of a group that computes one cell, and what it is read against, with its own cache.

    There is no depot, which could hold the old stages, whatever the environment says. What a search chose is given to
    the method, and comes out under the preset's label. The search itself is repeated where that is not enough: its
    choice is not known, later steps of a sequence go on from those of earlier ones, or shadows have forgotten with the
    preset's settings.

    Parameters
    ----------
    chosen : Chosen
        The cell.
    home : Path
        A LETHE_HOME without stages.
    out : Path
        Run folder.
    """
    kept = GroupSettings.parse(chosen.cell["settings"])
    method, request = str(chosen.cell["method"]), str(chosen.cell["request"])
    own, searched = kept.method_overrides().get(method, {}), chosen.cell["preset"] == SEARCHED
    seeds, search = [int(chosen.cell["unlearn_seed"])], ""
    if searched and ("search" not in chosen.cell or kept.shadows or len(parse_request(request).steps) > 1):
        seeds, search = [kept.seeds("unlearn")[0], *seeds], json.dumps({method: kept.searched()[method]})
    elif searched:
        own = {name.rstrip("_").replace("_", "-"): value for name, value in chosen.cell["config"].items()}
    changes = {
        "home": str(home),
        "out": str(out),
        "depot": NO_DEPOT,
        "methods": CONTROL if method in (ORIGINAL, GOLD) else method,
        "overrides": json.dumps({method: own}) if own else "",
        "exclude": "",
        "search": search,
        "requests": request,
        "unlearn-seeds": ",".join(map(str, dict.fromkeys(seeds))),
        "evaluator": "",
        "track": "",
        "keep-histories": False,
    }
    return GroupSettings.parse({**kept.to_run_config(), **changes})


def reproduce(
    chosen: Chosen, home: Path, execute: Execute, *, tolerance: float = 0.0, keep: bool = False
) -> Reproduction:
    """Compute a cell again, its original and retrained model included, and compare.

    Nothing of the old result is used: the work is done in a folder below ``reproductions`` of `home`, whose stage cache
    is empty and goes afterwards, and which has no depot; only the data sets are shared, those of the run's depot too.

    Parameters
    ----------
    chosen : Chosen
        What to compute.
    home : Path
        LETHE_HOME.
    execute : callable
        Runs a group of settings and returns when it is done.
    tolerance : float
        Largest difference that counts as equal, relative to values above 1.
    keep : bool
        Keep the new stages; `flower_apps.clean` then leaves them too.

    Raises
    ------
    BadInput
        For settings that cannot run any more.
    RunFailed
        When the run failed.
    """
    place = home / "reproductions" / f"{datetime.now():%Y%m%d-%H%M%S}-{chosen.cell['cell']}"
    for suffix in range(2, 1000):
        if not place.exists():
            break
        place = place.with_name(f"{place.name.partition('+')[0]}+{suffix}")
    out = place / "run"
    out.mkdir(parents=True)
    (home / "data").mkdir(exist_ok=True)
    (place / "data").symlink_to(home / "data", target_is_directory=True)
    if keep:
        (place / KEPT).touch()
    try:
        _take_data(GroupSettings.parse(chosen.cell["settings"]), home)
        execute(settings_of(chosen, place, out))
        if not (out / "results.csv").exists():
            raise RunFailed(f"no results came of it; run folder: {out}")
        return compare(chosen, out, tolerance)
    except BadInput:
        shutil.rmtree(place, ignore_errors=True)
        raise
    finally:
        if not keep:
            shutil.rmtree(place / "stages", ignore_errors=True)


def compare(chosen: Chosen, again: Path, tolerance: float = 0.0) -> Reproduction:
    """Compare the rows of a cell with those that a new run has of the same method, request and seeds.

    Raises
    ------
    RunFailed
        When the new run has not exactly one such cell.
    """
    cell = chosen.cell
    new = read_results(again)
    for key in ("method", "request", "unlearn_seed"):
        new = new[new[key] == cell[key]]
    if new["cell"].nunique() > 1:  # a repeated search has the preset's cell beside its own
        new = new[new["preset"] == cell["preset"]]
    if (count := new["cell"].nunique()) != 1:
        what = f"{cell['method']} {cell['request']}, unlearning seed {cell['unlearn_seed']}"
        raise RunFailed(f"{count} cells of {what} came out, and one is needed to compare; run folder: {again}")
    new = new.drop_duplicates(list(SAME))
    asked = {str(row[0]) for row in chosen.rows[["metric"]].itertuples(index=False)}
    points = {str(row[0]) for row in chosen.rows[["checkpoint"]].itertuples(index=False)}
    whole = len(chosen.rows) == len(_rows_of(chosen))
    if not whole:
        new = new[new["metric"].isin(asked) & new["checkpoint"].isin(points)]
        new = new[new["evaluate_seed"].isin(chosen.rows["evaluate_seed"])]
    then, now = _by_key(chosen.rows), _by_key(new)
    compared = [_compared(key, then.get(key), now.get(key), tolerance) for key in dict.fromkeys([*then, *now])]
    return Reproduction(
        cell=str(cell["cell"]),
        method=str(cell["method"]),
        request=str(cell["request"]),
        kept=str(chosen.run),
        again=str(again),
        compared=tuple(compared),
        changes=tuple(_changes(Run(chosen.run), Run(again))),
    )


def comparison_table(found: Reproduction, *, everything: bool = False) -> RenderableType:
    """Return what was judged and is not identical as a table, or every row; else the caption, which counts the rest.

    Clock times are listed where nothing else was asked for.
    """
    about = f"{found.method}, {found.request}"
    table = Table(box=box.SIMPLE_HEAD, title=about, title_justify="left", title_style="bold", caption_justify="left")
    for name, justify in (("checkpoint", "left"), ("metric", "left"), ("seed", "right"), ("then", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column("now", justify="right")
    table.add_column("", justify="left")
    styles = {"differs": "bold red", "gone": "bold red", "new": "bold red", "within interval": "yellow", "clock": "dim"}
    counts = Counter(one.judgement for one in found.compared)
    left_out = set() if everything else {"identical", *({"clock"} if counts["clock"] < counts.total() else ())}
    for one in found.compared:
        if one.judgement in left_out:
            continue
        seed = "" if one.evaluate_seed is None else str(one.evaluate_seed)
        values = (_shown(one.then), _shown(one.now))
        if one.then != one.now and values[0] == values[1]:  # as many digits as it takes
            values = (repr(one.then), repr(one.now))
        words = "clock time, not judged" if one.judgement == "clock" else one.judgement
        table.add_row(one.checkpoint, one.metric, seed, *values, words, style=styles.get(one.judgement, ""))
    names: dict[Judgement, str] = {"identical": "identical", "clock": "clock times (not judged)"}
    hidden = [f"{counts[kind]} {name}" for kind, name in names.items() if kind in left_out and counts[kind]]
    caption = f"not shown: {', '.join(hidden)}; --all shows them" if hidden else ""
    table.caption = caption or None
    return table if table.row_count else f"{about}: {caption}"


def changes_table(found: Reproduction) -> Table | None:
    """Return what of the environment is not as it was; None when all of it is."""
    if not found.changes:
        return None
    table = Table("environment", "then", "now", box=box.SIMPLE_HEAD)
    for change in found.changes:
        table.add_row(*change)
    return table


def _take_data(kept: GroupSettings, home: Path) -> None:
    """Get what is not here of the data set from the run's depot: the reproduction itself has none."""
    if url := depot_url(kept):
        load_data(kept.dataset, home, kept.cap, url)


# ---------------------------------------------------------------------- which cell
def _parsed(row: str) -> tuple[str, str, str]:
    parts = row.split(":")
    for length in (1, 2):
        if len(parts) > length and CELL.fullmatch(parts[-length]):
            return ":".join(parts[:-length]), parts[-length], parts[-1] if length == 2 else ""
    raise BadInput("ROW", row, f"{GIVEN}; CELL is 12 hex digits of results.csv")


def _condition(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise BadInput("--where", text, "key=value, such as method=ga")
    if key not in COLUMNS:
        raise unknown_name("--where", key, COLUMNS)
    return key, value


def _several(rows: pd.DataFrame, cells: Sequence[str]) -> BadInput:
    """Make the error for rows of more than one cell, with what tells the cells apart."""
    keys = ("experiment", "dataset", "partition", "request", "method", "preset", "train_seed", "unlearn_seed")
    telling = {key: sorted(rows[key].dropna().astype(str).unique()) for key in keys if rows[key].nunique() > 1}
    choices = "; ".join(
        f"--where '{key}={' | '.join(values)}'" for key, values in (telling or {"cell": [*cells]}).items()
    )
    return BadInput("--where", "", f"conditions that one cell meets, and {len(cells)} do", f"add {choices}")


def _rows_of(chosen: Chosen) -> pd.DataFrame:
    results = read_results(chosen.run)
    own: pd.DataFrame = results[results["cell"] == chosen.cell["cell"]]
    return own.drop_duplicates(list(SAME))


# ---------------------------------------------------------------------- comparing
Key = tuple[str, int | None, str]


def _by_key(rows: pd.DataFrame) -> dict[Key, dict[str, Any]]:
    found = {}
    for row in rows.to_dict("records"):
        seed = row["evaluate_seed"]
        found[str(row["checkpoint"]), None if pd.isna(seed) else int(seed), str(row["metric"])] = row
    return {key: {str(name): value for name, value in row.items()} for key, row in found.items()}


def _compared(key: Key, then: Mapping[str, Any] | None, now: Mapping[str, Any] | None, tolerance: float) -> Compared:
    checkpoint, seed, metric = key
    judgement = "clock" if is_timed(metric) else _judged(then, now, tolerance)
    return Compared(checkpoint, metric, seed, _value(then), _value(now), judgement)


def _judged(then: Mapping[str, Any] | None, now: Mapping[str, Any] | None, tolerance: float) -> Judgement:
    if then is None or now is None:
        return "new" if then is None else "gone"
    if then["status"] != now["status"] or _whole(then["n"]) != _whole(now["n"]):
        return "differs"
    old, new = float(then["value"]), float(now["value"])
    if old == new or (math.isnan(old) and math.isnan(new)):
        return "identical"
    if abs(new - old) <= tolerance * max(1.0, abs(old)):
        return "within tolerance"
    inside = then["ci_low"] <= min(old, new) and max(old, new) <= then["ci_high"]
    return "within interval" if inside else "differs"


def _whole(number: Any) -> int | None:
    return None if pd.isna(number) else int(number)


def _value(row: Mapping[str, Any] | None) -> float | None:
    return None if row is None or not math.isfinite(row["value"]) else float(row["value"])


def _shown(value: float | None) -> str:
    return short(value)


def _changes(then: Run, now: Run) -> list[tuple[str, str, str]]:
    """Return what differs in environment and devices: what, then, now."""
    old, new = _environment(then), _environment(now)
    if DEVICES not in old.keys() & new.keys():  # the rounds of one are gone
        old.pop(DEVICES, None), new.pop(DEVICES, None)
    names = dict.fromkeys([*old, *new])
    both = [(name, old.get(name, "unknown"), new.get(name, "unknown")) for name in names]
    return [change for change in both if change[1] != change[2]]


def _environment(run: Run) -> dict[str, str]:
    found = run.manifest["environment"]
    plain = {name: str(found[name]) for name in ("commit", "python", "platform", "host", "cpus") if name in found}
    if "commit" in plain:
        plain["commit"] = COMMIT.sub(r"\1", plain["commit"])
    libraries = {name: str(version) for name, version in found.get("libraries", {}).items()}
    rounds = run.rounds
    devices = sorted({" ".join(filter(None, pair)) for pair in _pairs(rounds)} - {""})
    return {**plain, **libraries, **({DEVICES: ", ".join(devices)} if devices else {})}


def _pairs(rounds: pd.DataFrame) -> list[tuple[str, str]]:
    if not {"device", "gpu"} <= set(rounds.columns):
        return []
    return [(str(device), str(gpu)) for device, gpu in rounds[["device", "gpu"]].itertuples(index=False)]
