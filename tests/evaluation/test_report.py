"""The report of a run: what a person finds in its folder."""

from __future__ import annotations

import itertools
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from evaluation.report.figures import _near, _together
from evaluation.report.grid import distances
from evaluation.report.latex import escape
from evaluation.report.palette import FIXED, looks
from evaluation.report.sections import sections_of
from evaluation.report.write import write_report
from evaluation.results import COLUMNS, write_results
from evaluation.runs import Run
from partitions.errors import BadInput
from strategies.history import HistoryWriter, RoundRecord, SiteRecord
from unlearning.state import update_of

SPLITS = ("forget", "retain", "test")
GONE = "patient-1: the parameter norm went from 14.6 to 554"
UNFIT = "not applicable to a client request: it <prunes> & forgets classes only"
PLACES = {"original": 0.8, "retrain": 0.5, "fine-tuning": 0.61, "ga": 0.1234567, "fedquit": 0.52, "prune": math.nan}
FIGURES = ("plane", "heat", "cost")


def model(method: str, checkpoint: str, seed: int = 0, **changes: Any) -> list[dict[str, Any]]:
    place = PLACES[method]
    far = abs(place - PLACES["retrain"])
    values = {f"{split}_accuracy": place for split in SPLITS} | {"retain_train_accuracy": place}
    values |= {f"delta_{split}_accuracy": place - PLACES["retrain"] for split in SPLITS}
    values |= {"population_mia_auc": place, "retrain_gap_l2": far, "retrain_gap_kl_forget": far}
    values |= {"client_examples": 0.0 if method == "fine-tuning" else 1000 * place, "seconds_total": 9.0}
    values |= {"seconds_unlearn": 2.0, "speedup": 10.0, "speedup_total": 3.0}
    label = dict.fromkeys(COLUMNS, "") | {"cell": f"{method}-{seed}", "experiment": "methods", "dataset": "lung-ct"}
    label |= {"partition": "natural", "request": "client:patient-1", "granularity": "client", "method": method}
    label |= {"model": "cnn", "status": "ok", "checkpoint": checkpoint, "alpha": math.nan, "train_seed": seed}
    label |= {"unlearn_seed": 0, "evaluate_seed": 0, "n": 50, "ci_low": math.nan, "ci_high": math.nan} | changes
    rows = [label | {"metric": name, "value": value} for name, value in values.items()]
    if label["status"] == "ok":
        blind = {"metric": "population_mia_tpr", "value": math.nan, "status": "underpowered", "reason": "4 negatives"}
        rows.append(label | blind)
    return rows


def run_of(folder: Path, make_state: Any) -> Path:
    """Write a run of one request: an original with two kept rounds, gold, and methods good, diverged and unfit."""
    rows = model("original", "trained")
    for checkpoint in ("unlearned", "recovered"):
        rows += model("retrain", checkpoint) + model("fine-tuning", checkpoint) + model("fedquit", checkpoint)
        rows += model("ga", checkpoint, status="diverged", reason=GONE)
        rows += model("prune", checkpoint, status="not_applicable", reason=UNFIT)
    run = folder / "run"
    write_results(run, rows)
    start, end = make_state(0.0), make_state(1.0)
    writer = HistoryWriter(folder / "stages" / "history")
    for round_ in (1, 2):
        sites = {f"site-{n}": SiteRecord(weight=0.5, num_examples=7, loss=1 / round_, metric=0.4) for n in (1, 2)}
        record = RoundRecord(round=round_, lr=0.1, seconds=1.0, sites=sites)
        writer.write(record, start, end, {name: update_of(end, start) for name in sites})
    cell = {"cell": "original-0", "method": "original", "preset": "", "request": "client:patient-1", "train_seed": 0}
    cell |= {"unlearn_seed": 0, "checkpoints": {"trained": str(folder / "stages" / "model.safetensors")}}
    settings = {"name": "methods", "cap": 120, "rounds": 20, "lr": 0.01, "home": "/secret/place"}
    environment = {"host": "my-host", "commit": "c0ffee", "cpus": 2, "memory_bytes": 2**33, "python": "3.11"}
    record_ = {"created": 1796036033.0, "environment": environment, "groups": {"g": settings}}
    (run / "run.json").write_text(json.dumps(record_ | {"cells": [cell | {"settings": settings}]}))
    return run


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, make_state: Any) -> Path:
    folder = tmp_path_factory.mktemp("report")
    return write_report(run_of(folder, make_state), folder / "out")


@pytest.fixture(scope="module")
def html(report: Path) -> str:
    return (report / "report.html").read_text(encoding="utf-8")


class Tags(HTMLParser):
    """Every tag with its attributes; tags that stay open."""

    VOID = ("meta", "img")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture(scope="module")
def tags(html: str) -> Tags:
    return Tags(html)


def test_the_page_loads_nothing(tags: Tags) -> None:
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in tags.found}
    loaded = [str(a[name]) for _, a in tags.found for name in ("src", "srcset", "poster", "data") if name in a]
    assert loaded
    assert all(source.startswith("data:") for source in loaded)


def test_the_style_asks_for_nothing_and_knows_the_dark(html: str) -> None:
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert "prefers-color-scheme: dark" in style


def test_every_figure_has_its_three_files_and_every_link_leads_somewhere(report: Path, tags: Tags) -> None:
    linked = {str(a["href"]) for a in tags.of("a")}
    files = {f"figures/{path.name}" for path in (report / "figures").iterdir()}
    assert {name for name in linked if not name.startswith("#")} == files
    assert {name[1:] for name in linked if name.startswith("#")} <= {str(a["id"]) for _, a in tags.found if "id" in a}
    stems = {Path(name).stem for name in files}
    assert files == {f"figures/{stem}.{kind}" for stem in stems for kind in ("png", "svg", "csv")}
    kinds = {stem.removeprefix("01-lung-ct-natural-client-patient-1-") for stem in stems if stem.startswith("01")}
    assert kinds == {f"{point}-{kind}" for point in ("unlearned", "recovered") for kind in FIGURES}


def test_ids_are_unique_and_tags_closed(tags: Tags) -> None:
    ids = [a["id"] for _, a in tags.found if "id" in a]
    assert len(ids) == len(set(ids))
    assert not tags.open


def test_headings_go_down_one_step_at_a_time(tags: Tags) -> None:
    levels = [int(tag[1]) for tag, _ in tags.found if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_tables_have_captions_and_scoped_heads_and_scroll_by_keyboard(html: str, tags: Tags) -> None:
    assert (
        len(tags.of("table")) == html.count("<caption>") == html.count('<div class="scroll" role="region" tabindex="0"')
    )
    assert all(a.get("scope") in ("row", "col") for a in tags.of("th"))


def test_figures_are_told_to_those_who_do_not_see_them(tags: Tags) -> None:
    texts = [str(a["alt"]) for a in tags.of("img")]
    assert len(texts) == 2 * len(FIGURES) + 2
    assert all(len(text) > 40 for text in texts)
    assert any("retrain is at forget 0.50, retain 0.50" in text for text in texts)


def test_a_phone_is_not_shown_a_desktop_and_the_language_is_told(tags: Tags) -> None:
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in tags.of("meta")
    assert tags.of("html") == [{"lang": "en"}]


def test_the_page_says_what_was_asked_when_and_with_what(html: str) -> None:
    for fact in ("client:patient-1 (client)", "2026-11-30", "c0ffee", "2 cores, 8 GiB memory", "20 rounds", "lr 0.01"):
        assert fact in html


def test_names_of_hosts_and_folders_stay_where_they_are(html: str) -> None:
    assert "my-host" not in html
    assert "/secret/place" not in html


def test_diverged_and_unfit_methods_are_explained_and_markup_in_reasons_is_text(html: str) -> None:
    unfit = '<th scope="row">prune</th><td>both checkpoints</td><td>not applicable</td><td>' + UNFIT.replace(
        "&", "&amp;"
    )
    assert unfit.replace("<prunes>", "&lt;prunes&gt;") in html
    assert f'<th scope="row">ga</th><td>unlearned</td><td>diverged</td><td>{GONE}</td>' in html
    assert "<td>underpowered</td><td>7 models</td><td>4 negatives</td>" in html


def test_values_of_the_table_are_those_of_the_results(html: str) -> None:
    table = html[html.index('<table id="table-01-lung-ct-natural-client-patient-1-unlearned"') :]
    row = table[table.index('<th scope="row">fedquit</th>') :].split("</tr>")[0]
    values = [float(found) for found in re.findall(r'<data value="([^"]+)"', row)]
    place, gold = PLACES["fedquit"], PLACES["retrain"]
    beside = [place, place - gold] * 3
    assert values == [*beside, place, abs(place - gold), abs(place - gold), 1000 * place, 2.0, 10.0]
    assert f'<data value="{place}">0.52</data>' in row
    assert "+0.02" in row


def test_the_recovered_table_has_times_with_recovery_and_no_speedup_of_gold(report: Path) -> None:
    recovered = (report / "tables.md").read_text().split("### ")[2]
    assert "after recovery" in recovered
    rows = {line.split("|")[1].strip(): line for line in recovered.splitlines() if line.startswith("| ")}
    assert rows["fedquit"].split("|")[-4:-1] == [" 9.0s ", " 3.0x ", " ok "]
    assert rows["**retrain**"].split("|")[-4:-1] == [" 9.0s ", "  ", " ok "]
    assert "prune" not in rows


def test_markdown_and_latex_have_the_same_numbers(report: Path) -> None:
    md, tex = ((report / f"tables.{ending}").read_text() for ending in ("md", "tex"))
    numbers = re.compile(r"\d+\.\d+|\d{2,}")
    for name in ("fedquit", "ga", "fine-tuning"):
        in_md = [numbers.findall(line) for line in md.splitlines() if line.startswith(f"| {name} |")]
        in_tex = [numbers.findall(line) for line in tex.splitlines() if line.startswith(f"{name} &")]
        assert in_md == in_tex
        assert len(in_md) == 2


def test_latex_tables_have_booktabs_rules_and_a_label_each(report: Path) -> None:
    tex = (report / "tables.tex").read_text()
    assert all(tex.count(rf"\{rule}") == 2 for rule in ("toprule", "midrule", "bottomrule", "label{tab:"))
    assert all(line.count("&") == 10 for line in tex.splitlines() if line.endswith(r"\\"))


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("50 % of a_b", r"50 \% of a\_b"),
        ("0.50 (-0.02)", "0.50 ($-$0.02)"),
        ("client:patient-1", "client:patient-1"),
        (">999x", r"\textgreater{}999x"),
    ],
)
def test_latex_prints_text_as_it_is(text: str, printed: str) -> None:
    assert escape(text) == printed


def test_a_figures_csv_has_the_numbers_of_the_figure(report: Path) -> None:
    data = pd.read_csv(next((report / "figures").glob("*unlearned-plane.csv"))).set_index("model")
    assert data["forget"].to_dict() == pytest.approx({name: place for name, place in PLACES.items() if name != "prune"})
    assert data.loc["ga", "status"] == "diverged"


def test_kept_rounds_are_drawn_site_by_site(report: Path) -> None:
    data = pd.read_csv(next((report / "figures").glob("training-*-rounds.csv")))
    assert list(data["site"]) == ["site-1", "site-2"] * 2
    assert list(data["loss"]) == [1.0, 1.0, 0.5, 0.5]


def test_sites_are_compared_in_the_last_round(report: Path) -> None:
    data = pd.read_csv(next((report / "figures").glob("training-*-sites.csv")))
    assert data[["round", "site", "num_examples", "metric"]].to_numpy().tolist() == [
        [2, "site-1", 7, 0.4],
        [2, "site-2", 7, 0.4],
    ]


def test_marks_that_cover_each_other_are_named() -> None:
    data = pd.DataFrame({"model": ["a", "b", "c", "d"], "x": [0.0, 0.5, 0.001, 1], "y": [0.0, 0.5, 0.0, 1]})
    assert _together(data, "x", "y") == " On one spot: a, c."


@pytest.mark.parametrize(("spread", "drawn"), [(0.01, True), (0.4, False)])
def test_models_close_to_gold_are_shown_larger_where_others_are_far(spread: float, drawn: bool) -> None:
    places = [0.5, *(0.5 + spread * step / 8 for step in range(-4, 4)), 1.0]
    data = pd.DataFrame({"forget": places, "retain": places, "method": "ga", "status": "ok"})
    data.loc[0, "method"] = "retrain"
    assert (_near(data, data[:1]) is not None) == drawn


def test_a_method_keeps_its_colour_and_those_to_compare_with_have_their_own() -> None:
    names = [f"method-{number:02d}" for number in range(30)]
    found = looks([*names, "retrain"])
    assert len({(look.colour, look.marker) for look in found.values()}) == len(found) == 30 + len(FIXED)
    assert not {found[name].colour for name in names} & {look.colour for look in FIXED.values()}


def test_seeds_are_averaged_and_said_to_be(tmp_path: Path, make_state: Any) -> None:
    run = run_of(tmp_path, make_state)
    more = [row | {"value": 0.62} for row in model("fedquit", "unlearned", seed=1)]
    write_results(run, more)
    grid = distances(sections_of(Run(run))[0], "unlearned")
    line = next(line for line in grid.lines if line.name == "fedquit")
    assert line.cells[0].value.value == pytest.approx((0.52 + 0.62) / 2)
    assert any("2 combinations of seeds" in note for note in grid.notes)


def test_a_taken_folder_is_refused_and_left_alone(tmp_path: Path, make_state: Any) -> None:
    run, taken = run_of(tmp_path, make_state), tmp_path / "taken"
    taken.mkdir()
    with pytest.raises(BadInput, match="a folder that does not exist yet"):
        write_report(run, taken)
    assert list(taken.iterdir()) == []


@pytest.mark.parametrize("rows", ["none", "header"])
def test_a_run_without_results_is_refused_and_leaves_nothing(tmp_path: Path, make_state: Any, rows: str) -> None:
    run = run_of(tmp_path, make_state)
    file = run / "results.csv"
    file.write_text(file.read_text().splitlines()[0] + "\n") if rows == "header" else file.unlink()
    with pytest.raises(BadInput, match=r"results\.csv"):
        write_report(run, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"run", "stages"}


def test_a_run_whose_gold_is_missing_and_whose_rounds_are_gone_still_has_a_report(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_results(run, model("ga", "unlearned", status="diverged", reason=GONE))
    (run / "run.json").write_text(json.dumps({"created": 0.0, "cells": []}))
    text = (write_report(run, tmp_path / "out") / "report.html").read_text()
    assert GONE in text
    assert "No rounds of a training are left to show" in text
