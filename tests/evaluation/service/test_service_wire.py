"""What travels comes back bit for bit, and is the same bytes whoever sends it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
import torch
from bundles import Bundles

from evaluation.results import COLUMNS
from evaluation.service import checks, wire
from evaluation.service.formats import read_table, table_bytes
from evaluation.service.tensors import read_state, state_bytes
from evaluation.service.wire import Bundle, Encoder, Labels, decode
from evaluation.submission import Submission
from unlearning.state import State


def round_trip(submission: Submission) -> Submission:
    bundle, blobs = Encoder().encode(submission)
    received = Bundle.model_validate(json.loads(json.dumps(bundle.model_dump())))
    assert received.id == bundle.id
    return decode(received, lambda sha, kind: blobs[sha].make() if blobs[sha].kind == kind else b"")


def bits(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with every float as its bits, so that NaN equals NaN and -0.0 is not 0.0."""
    return [
        {key: float(value).hex() if isinstance(value, float | np.floating) else value for key, value in row.items()}
        for row in rows
    ]


@pytest.mark.parametrize("kind", ["full", "gold", "unfit", "bare"])
def test_rows_and_curves_are_the_same_bits_on_the_other_side(bundles: Bundles, kind: str) -> None:
    submission = {
        "full": lambda: bundles(evaluate_seeds=(0, 1)),
        "gold": bundles.of_gold,
        "unfit": bundles.unfit,
        "bare": lambda: bundles(gold=None, other_gold=None, comparison=None, shadows=None, earlier=()),
    }[kind]()
    received = round_trip(submission)
    assert bits(received.rows()) == bits(submission.rows())
    assert bits(received.curves()) == bits(submission.curves())


def test_gold_is_still_the_model_itself_where_it_was(bundles: Bundles) -> None:
    received = round_trip(bundles.of_gold())
    assert received.gold is received.model
    assert round_trip(bundles()).gold is not None


def test_tables_costs_and_shadows_come_back(bundles: Bundles) -> None:
    cost = {"seconds": math.nan, "bytes_up": 3, "host": "nan", "speed": math.inf, "on": True, "none": None}
    sent = bundles(model=bundles.model("ga", "unlearned", cost=cost, tables=bundles().model.tables))
    received = round_trip(sent)
    assert received.model.cost is not None
    assert str(dict(received.model.cost)) == str(cost)
    pd.testing.assert_frame_equal(received.model.tables["probe"], sent.model.tables["probe"], check_dtype=True)
    assert np.signbit(received.model.tables["probe"]["curve"][2])
    assert sent.shadows is not None and received.shadows is not None
    for name in ("records", "seed_gaps", "reason"):
        assert getattr(received.shadows, name) == getattr(sent.shadows, name)
    for name in ("unlearned", "clients", "forgotten", "trained", "forgot", "retrained"):
        mine, other = getattr(received.shadows, name), getattr(sent.shadows, name)
        assert mine.dtype.kind == other.dtype.kind
        np.testing.assert_array_equal(mine, other)


def test_a_state_keeps_its_order_dtypes_and_0d_shapes() -> None:
    state = State(
        {"z": torch.randn(2, 3), "a": torch.randn(3).to(torch.bfloat16), "m": torch.zeros(0)},
        {"mean": torch.randn(4, dtype=torch.float64)},
        {"count": torch.tensor(7)},
    )
    back = read_state(state_bytes(state))
    assert list(back.params) == ["z", "a", "m"]
    for mine, other in zip((back.params, back.float_buffers, back.int_buffers), vars(state).values(), strict=True):
        for name, tensor in other.items():
            assert mine[name].dtype == tensor.dtype and mine[name].shape == tensor.shape
            assert torch.equal(mine[name], tensor)


def test_the_same_submission_is_the_same_bytes_in_another_process(bundles: Bundles) -> None:
    script = """
import numpy as np, pandas as pd, torch
from evaluation.service.formats import table_bytes
from evaluation.service.tensors import state_bytes
from unlearning.state import State
import hashlib
names = [f"layer{i}.weight" for i in range(40)]
state = State({n: torch.arange(5.0) + i for i, n in enumerate(names)}, {"b": torch.ones(2)}, {"c": torch.tensor(1)})
table = pd.DataFrame({"record": [f"r{i}" for i in range(50)], "loss": np.arange(50) / 3, "ok": [True, False] * 25})
print(hashlib.sha256(state_bytes(state)).hexdigest(), hashlib.sha256(table_bytes(table)).hexdigest())
"""
    root = Path(__file__).resolve().parents[3]
    runs = [
        subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert runs[0] == runs[1]


def test_what_a_case_shares_travels_once(bundles: Bundles) -> None:
    encoder = Encoder()
    first, second = (set(encoder.encode(bundles("ga", seed))[1]) for seed in (1, 2))
    shared = {sha for _, sha, _ in encoder.encode(bundles.of_gold())[0].references()}
    assert len(first & second) >= 5, "gold's scorecard and weights, twice, and the shadows"
    assert shared & first


def test_the_id_is_that_of_the_content(bundles: Bundles) -> None:
    ids = {Encoder().encode(bundles("ga", seed))[0].id for seed in (1, 1, 2)}
    assert len(ids) == 2


def test_the_labels_are_the_columns_of_the_results_from_cell_to_unlearn_seed() -> None:
    assert tuple(Labels.model_fields) == COLUMNS[: COLUMNS.index("unlearn_seed") + 1]


def test_the_version_is_one_that_bundles_have() -> None:
    assert get_args(Bundle.model_fields["version"].annotation) == (wire.VERSION,)


def test_the_columns_wanted_are_those_that_sites_send() -> None:
    from clients import scoring
    from clients.tasks.base import DIVERGENCES, SCORES

    assert tuple(checks.SCORECARD) == ("record", *scoring._TOLD, *SCORES)
    assert tuple(checks.COMPARISON) == ("record", "split", "selected", "retained", *DIVERGENCES)


def test_a_column_without_any_value_travels_as_text() -> None:
    back = read_table(table_bytes(pd.DataFrame({"reason": [None, None], "n": [1, 2]})))
    assert back["reason"].isna().all() and back["n"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("column", "what"),
    [
        (pd.Categorical(["a", "b"]), "dictionary"),
        ([{"a": 1}, {"a": 2}], "struct"),
        (pd.to_datetime(["2020-01-01", "2020-01-02"]), "timestamp"),
        (pd.array([1, None], dtype="Int64"), "missing values"),
        ([b"x", b"y"], "binary"),
    ],
)
def test_a_column_that_cannot_travel_is_named(column: Any, what: str) -> None:
    with pytest.raises(ValueError, match=f"'odd'.*{what}"):
        table_bytes(pd.DataFrame({"odd": column}))
