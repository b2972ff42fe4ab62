"""Tables of what there is: methods, data sets, how a split's records lie on the sites. Starts no run."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flower_apps.settings import GroupSettings

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from partitions.partition import Partition
    from partitions.records import LoadedData

Row = dict[str, Any]
MOST_COLUMNS = 11
"""Class columns that fit beside the totals in 100 columns."""
NEEDS = {
    "history": "history",
    "history helps": "history (optional)",
    "every round": "every round",
    "forget data": "forget",
    "retain data": "retain",
    "logits": "logits",
    "departed online": "u online",
}
"""What a method needs, in the words of the table."""
METHODS_INTRODUCTION = """# The methods

Every method starts from the original model, runs its own rounds, and then gets the same recovery rounds as every other
one (`unlearned` and `recovered` in the results). The table says what each can forget and what it needs; below it are
the settings of each, with their sources. `lethe methods NAME` prints the same.

`lethe` is the default preset: the study's values where it gives one. `original` is the method's own paper, `common` the
training optimiser for five epochs, `safe` what keeps the method from diverging. A setting is changed with
`--set NAME.SETTING=VALUE` or under `methods:` in a manifest. Letters in brackets after a fact: [C] read in the authors'
code, [3P] in third-party code, [L] stated by the Lethe paper, [A] from an abstract, [M] from memory of the paper, [OC]
our choice.

Of method `x`, the mathematics is `unlearning/x.py`, the server half `strategies/x.py`, and the site half, where it has
one, `clients/x.py` ([add one](adding-a-method.md)). This page is made by
`python -m flower_apps.explain > docs/methods.md` from what each method declares; a test keeps it current.
"""


def method_rows() -> list[Row]:
    """Return one row a registered method, by name."""
    from strategies.registry import METHODS

    methods = [METHODS.get(name) for name in METHODS.names()]
    return [
        {
            "name": method.name,
            "title": method.title,
            "family": method.family,
            "granularities": list(method.granularities),
            "needs": [_plain(field.name) for field in fields(method.needs) if getattr(method.needs, field.name)],
            "not_for": dict(method.not_for),
            "presets": sorted(method.presets),
            "settings": {
                key: {"default": _default(field.default), "meaning": field.description or ""}
                for key, field in method.Config.fields_by_key().items()
            },
            "provenance": method.provenance,
            "citation": method.citation,
        }
        for method in methods
    ]


def methods_table(rows: Sequence[Row]) -> Table:
    """Return the methods as a table that reads at 100 columns."""
    table = new_table("Unlearning methods", "method", "family", "forgets", "needs", "from")
    for row in rows:
        needs = [NEEDS[need] for need in row["needs"] if need in NEEDS]
        table.add_row(row["name"], row["family"], _forgets(row), ", ".join(needs) or "nothing", row["citation"])
    table.caption = (
        "needs: history = the recorded rounds of the original training (optional: used where there are any); forget, "
        "retain = sites open those records; u online = the departing site takes part.\n"
        "One method with its settings: `lethe methods NAME`. Where every fact was checked: docs/methods.md."
    )
    table.caption_justify = "left"
    return table


def method_page(row: Row, width: int = 100) -> str:
    """Return everything about one method as text, in lines of at most `width` characters where words allow it."""
    lines = [
        f"{row['name']}: {row['title']} ({row['family']})",
        row["citation"],
        f"Checked: {row['provenance']}.",
        f"Forgets: {_forgets(row)}. Needs: {_needs(row)}. Presets: {', '.join(row['presets'])}.",
        *(f"Not for {kind} requests: {why}." for kind, why in row["not_for"].items()),
        "",
        *(
            line
            for key, one in row["settings"].items()
            for line in (f"  {row['name']}.{key} = {one['default']}", f"      {one['meaning']}")
        ),
    ]
    return "\n".join(_wrapped(line, width) for line in lines)


def _wrapped(line: str, width: int) -> str:
    """Return a line as several, those that follow indented as it is."""
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def methods_markdown(rows: Sequence[Row]) -> str:
    """Return ``docs/methods.md``: one row a method, then its settings with the source of each default."""
    head = ["| method | what it is | family | forgets | needs | presets | source |", "|---|---|---|---|---|---|---|"]
    table = [
        f"| [`{row['name']}`](#{row['name']}) | {row['title']} | {row['family']} | {_forgets(row)} | "
        f"{_needs(row)} | {', '.join(row['presets'])} | {row['citation']} |"
        for row in rows
    ]
    return "\n".join([METHODS_INTRODUCTION, *head, *table, "", *(line for row in rows for line in _section(row))])


def _section(row: Row) -> list[str]:
    return [
        f"## {row['name']}",
        "",
        f"{row['title']}. {row['citation']}. Provenance: {row['provenance']}.",
        *([""] if row["not_for"] else []),
        *(f"Not for {kind} requests: {why}." for kind, why in row["not_for"].items()),
        "",
        "| setting | default | meaning and source |",
        "|---|---|---|",
        *(
            f"| `{key}` | {one['default']} | {one['meaning'].replace('|', chr(92) + '|')} |"
            for key, one in row["settings"].items()
        ),
        "",
    ]


def _in_cell(text: str) -> str:
    return text.replace("|", "\\|")


def _needs(row: Row) -> str:
    return ", ".join(row["needs"]).replace("history helps", "history where there is one") or "nothing"


def _forgets(row: Row) -> str:
    return "anything" if len(row["granularities"]) == 4 else ", ".join(row["granularities"])


def _default(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def dataset_rows(home: Path) -> list[Row]:
    """Return one row a registered data set, by name."""
    from partitions.catalogue import DATASETS

    datasets = [DATASETS.get(name) for name in DATASETS.names()]
    facts = ("name", "title", "modality", "packaged", "licence", "source", "citation", "layout")
    return [
        {**{fact: getattr(dataset, fact) for fact in facts}, "here": is_fetched(dataset.name, home)}
        for dataset in datasets
    ]


def is_fetched(name: str, home: Path) -> bool:
    """Tell whether anything of the data set lies in the data folder."""
    folder = home / "data" / name
    return folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir())


def datasets_table(rows: Sequence[Row]) -> Table:
    """Return the data sets as a table that reads at 100 columns; larger sizes share a line with the smallest."""
    table = new_table("Data sets", "name", "here", "comes", "licence", "what it is")
    for family in _families(rows):
        first = family[0]
        sizes = [row["name"].removeprefix(first["name"]) for row in family[1:]]
        table.add_row(
            _lines(first["name"], " ".join(sizes)),
            ", ".join(row["name"].removeprefix(first["name"]) or "yes" for row in family if row["here"]) or "-",
            "by name" if first["packaged"] else "by name or by hand",
            first["licence"],
            first["title"],
        )
    table.caption = (
        "by name: `lethe data fetch NAME`; by hand: where that fails, it says which file to put where. Sizes share a "
        "line: pathmnist-64, ...\nSources and expected files: --json."
    )
    table.caption_justify = "left"
    return table


@dataclass(frozen=True)
class MadeSplit:
    """One data set spread over its sites.

    Attributes
    ----------
    summary : dict
        Data set, split, sites, records, dropped, fingerprint, and the difficulty of the group's requests.
    frame : DataFrame
        Sites by classes and totals, as `partitions.makeup.makeup` gives it.
    """

    summary: Row
    frame: pd.DataFrame

    @property
    def rows(self) -> list[Row]:
        """One flat row a site."""
        return [
            {"site": str(site), **{str(column): int(value) for column, value in row.items()}}
            for site, row in self.frame.iterrows()
        ]


def splits_of(groups: Sequence[GroupSettings]) -> list[GroupSettings]:
    """Return the first group of each different split, in order."""
    keys = ("dataset", "cap", "split", "sites", "alpha", "sole_holder", "holdout", "split_seed")
    return list({tuple(getattr(group, key) for key in keys): group for group in reversed(groups)}.values())[::-1]


def make_split(settings: GroupSettings, home: Path) -> MadeSplit:
    """Spread a group's records over its sites; fetches and prepares the data set at first use."""
    from flower_apps.depot import depot_url
    from flower_apps.sites import split_spec
    from partitions.loading import load_data
    from partitions.makeup import makeup
    from partitions.partition import make_partition

    data = load_data(settings.dataset, home, settings.cap, depot_url(settings))
    partition = make_partition(data, split_spec(settings))
    seed = settings.train_seed if settings.request_seed < 0 else settings.request_seed
    summary = {
        "dataset": settings.dataset,
        "split": settings.split,
        "num_sites": len(partition.sites),
        "records": len(data.targets),
        "available": data.available,
        "reference": len(partition.reference),
        "dropped": partition.dropped,
        "fingerprint": partition.fingerprint,
        "requests": {text: _difficulty(data, partition, text, seed) for text in settings.request_texts()},
    }
    return MadeSplit(summary, makeup(data, partition))


def _difficulty(data: LoadedData, partition: Partition, text: str, seed: int) -> Row:
    """Return how hard a request is by what it takes from whom; of one that takes or leaves nothing, the reason."""
    from partitions.difficulty import request_difficulty
    from partitions.requests import parse_request

    request = parse_request(text)
    try:
        return request_difficulty(data, partition, request, seed).to_json()
    except ValueError as error:
        return {"level": "impossible", "reason": str(error)}


def draw_split(made: MadeSplit, png: Path) -> None:
    """Draw the heat map of sites and classes."""
    from partitions.makeup import draw_heatmap

    draw_heatmap(made.frame, png)


def makeup_table(made: MadeSplit, width: int = 100) -> Table:
    """Return the make-up as a table of `width` columns; many classes become the three largest of each site."""
    from partitions.makeup import TOTALS

    facts = made.summary
    classes = [str(name) for name in made.frame.columns if name not in TOTALS]
    named = [name if name == str(index) else f"{index} {name}" for index, name in enumerate(classes)]
    numbers = [str(index) for index in range(len(classes))]
    longest = [max(len(str(int(count))) for count in made.frame[name]) for name in classes]
    totals = ("train", "held out", "patients")
    left = (
        width - 2 - sum(max(map(len, column)) + 3 for column in (("site", *map(str, made.frame.index)), *zip(totals)))
    )

    def fits(heads: Sequence[str]) -> bool:
        return sum(max(len(head), count) + 3 for head, count in zip(heads, longest, strict=True)) <= left

    many = len(classes) > MOST_COLUMNS or not fits(numbers)
    roomy = not many and fits(named)
    heads = ["largest classes"] if many else named if roomy else numbers
    title = f"{facts['dataset']}, {facts['split']} split: {facts['records']} records at {facts['num_sites']} sites"
    table = new_table(title, "site", *totals, *heads)
    for column in table.columns[1 : 4 if many else None]:
        column.justify, column.no_wrap = "right", True
    for site, row in made.frame.iterrows():
        counts = [int(row[name]) for name in classes]
        cells = [_largest(counts)] if many else [str(count) for count in counts]
        table.add_row(str(site), *(str(int(row[total])) for total in TOTALS), *cells)
    notes = [f"{facts['available']} records before the cap"] if facts["available"] != facts["records"] else []
    notes += [f"{facts['dropped']} dropped for the sole holder"] if facts["dropped"] else []
    notes += [f"classes: {', '.join(named)}"] if not roomy else []
    difficulties = [f"{text}: {found['level']}: {found['reason']}" for text, found in facts["requests"].items()]
    table.caption = "\n".join(["; ".join([*notes, f"fingerprint {facts['fingerprint'][:12]}"]), *difficulties])
    table.caption_justify = "left"
    return table


def _largest(counts: Sequence[int]) -> str:
    """Return the three largest classes with their counts, and how many others a site holds."""
    order = sorted((index for index, count in enumerate(counts) if count), key=lambda index: -counts[index])
    others = f" and {len(order) - 3} others" if len(order) > 3 else ""
    return ", ".join(f"class {index}: {counts[index]}" for index in order[:3]) + others


def _families(rows: Sequence[Row]) -> Iterable[list[Row]]:
    """Gather ``name``, ``name-64``, ``name-128`` ... into one list each, smallest first."""
    names = {row["name"] for row in rows}
    gathered: dict[str, list[Row]] = {}
    for row in rows:
        sized = re.fullmatch(r"(.+)-(\d+)", row["name"])
        gathered.setdefault(sized[1] if sized and sized[1] in names else row["name"], []).append(row)
    return [sorted(family, key=lambda row: (len(row["name"]), row["name"])) for family in gathered.values()]


def _plain(name: str) -> str:
    return name.replace("_", " ")


def _lines(*texts: str) -> str:
    return "\n".join(text for text in texts if text)


def new_table(title: str, *columns: str) -> Table:
    """Return an empty table as `lethe` prints them: the first column on one line, the others folded."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=number == 0)
    return table


if __name__ == "__main__":
    print(methods_markdown(method_rows()), end="")
