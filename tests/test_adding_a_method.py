"""The page on adding a method is complete: its files, taken from the text as they stand, are a working distribution."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from small_federation import REQUESTS, Original
from third_party import third_party

from flower_apps.explain import method_rows
from partitions.errors import BadInput
from strategies.registry import METHODS
from unlearning.state import State

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "adding-a-method.md"
BLOCK = re.compile(r"^`([\w./-]+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = dict(BLOCK.findall(PAGE.read_text(encoding="utf-8")))
CODE = [name for name in FILES if name.endswith(".py") and not name.startswith("test_")]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("confusion")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    with third_party(ROOT / "tests" / "conformance" / "plugin"), third_party(folder):
        yield folder
    for module in [
        module for module in sys.modules if module.partition(".")[0] in ("lethe_confusion", "test_confusion")
    ]:
        del sys.modules[module]


@pytest.fixture(scope="module")
def original(project: Path) -> Original:
    return Original("mlp-bn")


def test_the_page_shows_every_block_as_a_file_and_stays_short() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.count("```") == 2 * len(FILES)
    assert sorted(CODE) == [f"lethe_confusion/{name}.py" for name in ("maths", "server", "site")]
    assert sum(len(FILES[name].splitlines()) for name in CODE) < 60


def test_the_oracle_of_the_page_holds(project: Path) -> None:
    oracles = importlib.import_module("test_confusion")
    found = [oracle for name, oracle in vars(oracles).items() if name.startswith("test_")]
    assert found
    for oracle in found:
        oracle()


def test_it_is_listed_with_the_other_methods(project: Path) -> None:
    (row,) = [row for row in method_rows() if row["name"] == "confusion"]
    assert row["needs"] == ["forget data", "logits", "departed online"]
    with pytest.raises(BadInput, match="weight of the objective"):
        METHODS.get("confusion").resolve_config("lethe", {"strength": -1})


@pytest.mark.parametrize("granularity", REQUESTS)
def test_it_runs_on_every_kind_of_request_and_does_what_it_says(original: Original, granularity: str) -> None:
    run = original.unlearn("confusion", REQUESTS[granularity], recover=True, unlearn_epochs=10)
    assert run.outcome.status == "ok" and run.recovery is not None and run.recovery.status == "ok"
    confusion = importlib.import_module("lethe_confusion.maths").confusion

    def of_forget_records(state: State) -> float:
        found = []
        for site in run.grid.sites.values():
            forget = site.records("forget", REQUESTS[granularity], 0)
            x, _ = site.worker.batch(site.train.inputs, site.train.targets, forget)
            found.append(float(confusion(site.worker.scorer(state)(x))) * len(forget) if len(forget) else 0.0)
        return sum(found)

    assert of_forget_records(run.outcome.state) < of_forget_records(original.state) * 0.7


def test_no_strength_is_no_change(original: Original) -> None:
    run = original.unlearn("confusion", REQUESTS["class"], overrides={"strength": 0.0})
    assert all(torch.equal(run.outcome.state.params[n], t) for n, t in original.state.params.items())
