"""What the server answers: idempotent posts, refusals that name the field, the same bytes as in process."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from bundles import Bundles
from fastapi.testclient import TestClient
from posting import RECORD, post, put_blob, put_run, score_all, upload

from evaluation.curves import read_curves
from evaluation.evaluator import InProcess
from evaluation.results import read_results
from evaluation.service.app import make_app
from evaluation.service.formats import TABLE, TENSORS, table_bytes
from evaluation.service.limits import Limits
from evaluation.service.sources import Runs
from evaluation.service.store import Store
from evaluation.service.store_runs import StoreRuns
from evaluation.service.tensors import arrays_bytes, state_bytes
from unlearning.state import State

LOCAL = "http://127.0.0.1"


def sha_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def refused(reply: Any, field: str, *words: str, status: int = 422) -> None:
    assert reply.status_code == status, reply.text
    told = reply.json()
    assert told["field"] == field, told
    assert "\n" not in told["message"]
    for word in words:
        assert word in told["message"], told


# ---------------------------------------------------------------------- results
def test_the_tables_of_a_run_are_those_of_scoring_in_process(
    client: TestClient, store: Store, bundles: Bundles, tmp_path: Path
) -> None:
    put_run(client)
    here = InProcess(tmp_path / "here")
    submissions = [bundles("ga"), bundles.of_gold(), bundles("fedquit", 2), bundles.unfit(), bundles("ga", 3)]
    for submission in submissions:
        here.submit(submission)
        assert post(client, upload(client, submission)).status_code == 202
    assert client.get("/api/runs").json()[0]["status"] == "scoring"
    assert score_all(store) == len(submissions)
    for name in ("results.csv", "curves.csv"):
        answer = client.get(f"/api/runs/run/{name}")
        assert answer.headers["content-type"].startswith("text/csv")
        assert answer.content == (tmp_path / "here" / name).read_bytes()
    line = client.get("/api/runs").json()[0]
    assert (line["status"], line["models"], line["experiments"]) == ("done", 5, ["small"])


def test_the_model_posted_last_is_the_one_that_counts_as_in_process(
    client: TestClient, store: Store, bundles: Bundles, tmp_path: Path
) -> None:
    put_run(client)
    here = InProcess(tmp_path)
    for submission in (bundles("ga", 1), bundles("ga", 2), bundles("ga", 1)):
        here.submit(submission)
        post(client, upload(client, submission))
    score_all(store)
    assert client.get("/api/runs/run/results.csv").content == (tmp_path / "results.csv").read_bytes()
    assert client.get("/api/runs/run/curves.csv").content == (tmp_path / "curves.csv").read_bytes()


def test_the_same_bundle_twice_is_one_result_in_whichever_run(
    client: TestClient, store: Store, bundles: Bundles
) -> None:
    put_run(client), put_run(client, "other")
    first = post(client, upload(client, bundles()))
    again, elsewhere = post(client, upload(client, bundles())), post(client, upload(client, bundles()), "other")
    assert (first.status_code, again.status_code, elsewhere.status_code) == (202, 200, 200)
    assert (first.json()["new"], again.json()["new"], elsewhere.json()["new"]) == (True, False, False)
    assert first.json()["id"] == again.json()["id"] == elsewhere.json()["id"]
    assert score_all(store) == 1
    assert client.get("/api/runs/run/results.csv").content == client.get("/api/runs/other/results.csv").content
    assert len(client.get("/api/runs/run").json()["submissions"]) == 1


def test_what_is_known_is_not_uploaded_again(client: TestClient, bundles: Bundles) -> None:
    first = upload(client, bundles("ga", 1))
    second = [sha for _, sha, _ in upload(client, bundles("ga", 2)).references()]
    assert client.post("/api/blobs/missing", json={"sha256": second}).json() == {"sha256": []}
    assert len(set(second) & set(first.blobs())) >= 5


def test_rows_come_with_their_submission_and_infinities_in_words(
    client: TestClient, store: Store, bundles: Bundles
) -> None:
    put_run(client)
    submission = bundles()
    id = post(client, upload(client, submission)).json()["id"]
    waiting = client.get(f"/api/submissions/{id}").json()
    assert (waiting["status"], waiting["rows"]) == ("queued", [])
    score_all(store)
    scored = client.get(f"/api/submissions/{id}", params={"wait": 5}).json()
    assert scored["status"] == "done"
    assert [row["metric"] for row in scored["rows"]] == [row["metric"] for row in submission.rows()]
    for row, expected in zip(scored["rows"], submission.rows(), strict=True):
        value = float(np.nan if row["value"] is None else row["value"])
        assert value.hex() == float(expected["value"]).hex()


def test_pages_get_the_same_from_the_store(client: TestClient, store: Store, bundles: Bundles, tmp_path: Path) -> None:
    rounds = pd.DataFrame({"method": ["original"] * 2, "round": [1, 2], "site": ["a", "a"], "loss": [0.5, np.nan]})
    data = table_bytes(rounds)
    put_blob(client, sha_of(data), TABLE, data).raise_for_status()
    sent = {"name": "R", "record": RECORD, "rounds": sha_of(data)}
    client.put("/api/runs/run", json=sent).raise_for_status()
    post(client, upload(client, bundles()))
    score_all(store)
    source: Runs = StoreRuns(store)
    (info,) = source.runs()
    assert (info.id, info.name, info.created, info.experiments, info.models, info.status) == (
        "run", "R", 1.5e9, ("small",), 1, "done",
    )  # fmt: skip
    run = source.open("run")
    assert run.manifest == RECORD
    pd.testing.assert_frame_equal(run.rounds, rounds)
    InProcess(tmp_path).submit(bundles())
    pd.testing.assert_frame_equal(run.results, read_results(tmp_path))
    pd.testing.assert_frame_equal(run.curves, read_curves(tmp_path))
    with pytest.raises(ValueError, match="nowhere"):
        source.open("nowhere")


def test_a_run_without_anything_has_empty_tables(client: TestClient, store: Store) -> None:
    put_run(client)
    assert client.get("/api/runs/run/results.csv").text.startswith("cell,experiment")
    assert client.get("/api/runs/run").json()["status"] == "empty"
    assert StoreRuns(store).open("run").curves.empty


# ---------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda b: b["labels"].pop("cell"), "bundle.labels.cell"),
        (lambda b: b["labels"].update(column="x"), "bundle.labels.column"),
        (lambda b: b["labels"].update(alpha="0.1"), "bundle.labels.alpha"),
        (lambda b: b["labels"].update(train_seed=-1), "bundle.labels.train_seed"),
        (lambda b: b["labels"].update(train_seed=2**63), "bundle.labels.train_seed"),
        (lambda b: b["labels"].update(train_seed=True), "bundle.labels.train_seed"),
        (lambda b: b["labels"].update(cell=""), "bundle.labels.cell"),
        (lambda b: b["labels"].update(cell="a\0b"), "bundle.labels.cell"),
        (lambda b: b["labels"].update(dataset="\ud800"), "bundle.labels.dataset"),
        (lambda b: b["labels"].update(method="other"), "bundle.labels.method"),
        (lambda b: b["labels"].update(preset="other"), "bundle.labels.preset"),
        (lambda b: b["labels"].update(checkpoint="recovered"), "bundle.labels.checkpoint"),
        (lambda b: b["labels"].update(granularity="class"), "bundle.labels.granularity"),
        (lambda b: b["labels"].update(request="x" * 501), "bundle.labels.request"),
        (lambda b: b.update(version=2), "bundle.version"),
        (lambda b: b.update(granularity="hospital"), "bundle.granularity"),
        (lambda b: b.update(metric_name="../x"), "bundle.metric_name"),
        (lambda b: b.update(higher_is_better=1), "bundle.higher_is_better"),
        (lambda b: b.update(has_reference=None), "bundle.has_reference"),
        (lambda b: b.update(evaluate_seeds=[]), "bundle.evaluate_seeds"),
        (lambda b: b.update(evaluate_seeds=[0.5]), "bundle.evaluate_seeds.0"),
        (lambda b: b.update(earlier=["all"]), "bundle.earlier.0"),
        (lambda b: b.update(more=1), "bundle.more"),
        (lambda b: b.update(comparison="0" * 63), "bundle.comparison"),
        (lambda b: b.update(comparison="../../etc/passwd"), "bundle.comparison"),
        (lambda b: b.update(comparison="0" * 64), "bundle.comparison"),
        (lambda b: b["model"].update(scorecard="1" * 64), "bundle.model.scorecard"),
        (lambda b: b["model"].update(state=b["model"]["scorecard"]), "bundle.model.state"),
        (lambda b: b["model"].update(scorecard=b["model"]["state"]), "bundle.model.scorecard"),
        (lambda b: b["model"].update(checkpoint="later"), "bundle.model.checkpoint"),
        (lambda b: b["model"].update(status=""), "bundle.model.status"),
        (lambda b: b["model"]["cost"].update(host=["h"]), "bundle.model.cost.host"),
        (lambda b: b["model"]["tables"].update(probe="2" * 64), "bundle.model.tables.probe"),
        (lambda b: b["model"]["tables"].update(probe=b["model"]["state"]), "bundle.model.tables.probe"),
        (lambda b: b["gold"].update(method="ga"), "bundle.gold.method"),
        (lambda b: b["gold"].update(state="3" * 64), "bundle.gold.state"),
        (lambda b: b["other_gold"].update(scorecard="4" * 64), "bundle.other_gold.scorecard"),
        (lambda b: b["shadows"].update(records="5" * 64), "bundle.shadows.records"),
        (lambda b: b["shadows"].update(records=b["comparison"]), "bundle.shadows.records.client"),
        (lambda b: b["shadows"].update(arrays=b["comparison"]), "bundle.shadows.arrays"),
        (lambda b: b["shadows"].update(arrays=b["model"]["state"]), "bundle.shadows.arrays"),
    ],
)  # fmt: skip
def test_a_bad_bundle_is_refused_with_the_field_and_nothing_is_stored(
    client: TestClient, store: Store, bundles: Bundles, change: Any, field: str
) -> None:
    put_run(client)
    bundle = upload(client, bundles()).model_dump()
    change(bundle)
    reply = client.post(
        "/api/submissions",
        content=_json({"run": "run", "bundle": bundle}),
        headers={"Content-Type": "application/json"},
    )
    assert reply.status_code == 422, reply.text
    assert reply.json()["field"].startswith(field), reply.text
    assert store.counts() == {}
    assert client.get("/api/runs/run").json()["submissions"] == []


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_label_that_is_not_finite_is_refused(client: TestClient, store: Store, bundles: Bundles, number: str) -> None:
    put_run(client)
    sent = _json({"run": "run", "bundle": upload(client, bundles()).model_dump()}).replace(
        b'"alpha": 0.1', f'"alpha": {number}'.encode()
    )
    reply = client.post("/api/submissions", content=sent, headers={"Content-Type": "application/json"})
    assert reply.json()["field"].startswith("bundle.labels.alpha")
    assert store.counts() == {}


def changed_card(bundles: Bundles, change: Any) -> Any:
    card = change(bundles().model.scorecard)
    return bundles(model=bundles.model("ga", "unlearned", scorecard=card), comparison=None, shadows=None)


@pytest.mark.parametrize(
    ("change", "field", "word"),
    [
        (lambda t: t.drop(columns="loss"), "loss", "missing"),
        (lambda t: t.assign(extra=1.0), "extra", "unknown column"),
        (lambda t: t.assign(loss="much"), "loss", "floating"),
        (lambda t: t.assign(loss=1), "loss", "int64"),
        (lambda t: t.assign(selected=1), "selected", "booleans"),
        (lambda t: t.assign(step=1.0), "step", "whole numbers"),
        (lambda t: t.assign(record=range(len(t))), "record", "text"),
        (lambda t: t.assign(site=t["site"].where(t.index > 0)), "site", "1 missing"),
        (lambda t: t.assign(record="r"), "record", "once"),
        (lambda t: t.assign(split="validation"), "split", "train, holdout, reference"),
    ],
)
def test_a_bad_scorecard_is_refused_with_its_column(
    client: TestClient, store: Store, bundles: Bundles, change: Any, field: str, word: str
) -> None:
    put_run(client)
    reply = post(client, upload(client, changed_card(bundles, change)))
    refused(reply, f"bundle.model.scorecard.{field}", word)
    assert store.counts() == {}


def test_tensors_that_are_not_golds_are_refused_with_their_name(client: TestClient, bundles: Bundles) -> None:
    put_run(client)
    other = State({"head.weight": torch.zeros(2)}, {}, {})
    refused(post(client, upload(client, bundles(model=bundles.model(state=other)))), "bundle.gold.state", "bn.")
    gold = bundles.gold.state
    shape = State({**gold.params, "layer0.weight": torch.zeros(3)}, gold.float_buffers, gold.int_buffers)
    reply = post(client, upload(client, bundles(model=bundles.model(state=shape))))
    refused(reply, "bundle.model.state", "layer0.weight", "(3,)")


def test_a_comparison_of_other_records_is_refused(client: TestClient, bundles: Bundles) -> None:
    put_run(client)
    other = bundles().comparison.assign(record=lambda t: "x" + t["record"])
    refused(post(client, upload(client, bundles(comparison=other))), "bundle.comparison.record", "not among")


@pytest.mark.parametrize(
    ("arrays", "field"),
    [
        ({"trained": None}, "bundle.shadows.arrays"),
        ({"more": np.zeros(1)}, "bundle.shadows.arrays"),
        ({"forgotten": np.zeros((4, 60))}, "bundle.shadows.arrays.forgotten"),
        ({"trained": np.zeros((4, 7))}, "bundle.shadows.arrays.trained"),
        ({"retrained": np.zeros(60)}, "bundle.shadows.arrays.retrained"),
        ({"seed_gaps": np.zeros((1, 1))}, "bundle.shadows.arrays.seed_gaps"),
    ],
)
def test_bad_shadows_are_refused_with_the_array(
    client: TestClient, bundles: Bundles, arrays: dict[str, Any], field: str
) -> None:
    put_run(client)
    bundle = upload(client, bundles()).model_dump()
    sent = bundles().shadows
    assert sent is not None
    known = {"forgotten": sent.forgotten, "trained": sent.trained, "retrained": sent.retrained}
    known |= {"seed_gaps": np.zeros(2), "forgot": sent.forgot} | arrays
    data = arrays_bytes({name: array for name, array in known.items() if array is not None})
    put_blob(client, sha_of(data), TENSORS, data).raise_for_status()
    bundle["shadows"]["arrays"] = sha_of(data)
    refused(post(client, bundle), field)


def test_blobs_are_checked_while_they_come(store: Store, bundles: Bundles) -> None:
    good = table_bytes(pd.DataFrame({"a": [1]}))
    with TestClient(make_app(store, limits=Limits(upload_bytes=5000)), base_url=LOCAL) as client:
        refused(put_blob(client, "0" * 64, TABLE, good), "sha256", sha_of(good))
        refused(put_blob(client, sha_of(b"x"), TABLE, b"x"), "content", "parquet")
        refused(put_blob(client, sha_of(good), TENSORS, good), "content", "safetensors")
        refused(put_blob(client, sha_of(good), "text/plain", good), "Content-Type", TABLE, status=415)
        refused(put_blob(client, "..%2f..%2fetc", TABLE, good), "/api/blobs/../../etc", status=404)
        refused(put_blob(client, "A" * 64, TABLE, good), "sha256")
        large = state_bytes(State({"a": torch.zeros(5000)}, {}, {}))
        reply = put_blob(client, sha_of(large), TENSORS, large)
        refused(reply, "content", "5000 bytes", "--max-upload", status=413)
        assert (reply.json()["limit"], reply.json()["setting"][:12]) == (5000, "--max-upload")
        pieces = client.put(
            f"/api/blobs/{sha_of(large)}",
            content=(large[at : at + 1000] for at in range(0, len(large), 1000)),
            headers={"Content-Type": TENSORS},
        )
        refused(pieces, "content", "5000 bytes", status=413)
    files = [path for path in store.blobs.folder.rglob("*") if path.is_file() and "sqlite" not in path.name]
    assert [path.name for path in files] == ["store-id"]


def polyglot(table: bytes) -> bytes:
    """Return safetensors whose only tensor ends in a table: both kinds at once."""
    head = json.dumps({"x": {"dtype": "U8", "shape": [len(table)], "data_offsets": [0, len(table)]}}).encode()
    return len(head).to_bytes(8, "little") + head + table


def test_nothing_is_read_as_a_kind_as_which_it_was_not_checked(
    client: TestClient, store: Store, bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_run(client)
    good = table_bytes(pd.DataFrame({"record": ["a", "b"], "loss": [0.5, 1.0]}))
    crafted = polyglot(good.replace(b"\x06record\x15\x00", b"\x06record\x15\x2e"))  # ends whoever reads it as a table
    sha = sha_of(crafted)
    refused(put_blob(client, sha, TABLE, crafted), "content", "ends the reader")
    put_blob(client, sha, TENSORS, crafted).raise_for_status()
    sent = {"name": "R", "record": RECORD, "rounds": sha}
    refused(client.put("/api/runs/other", json=sent), "rounds", "another kind")
    bundle = upload(client, bundles()).model_dump()
    for part, name in (("model", "scorecard"), ("gold", "scorecard"), ("shadows", "records")):
        changed = {**bundle, part: {**bundle[part], name: sha}}
        refused(post(client, changed), f"bundle.{part}.{name}", TABLE, "another kind")
    for changed in ({**bundle, "comparison": sha}, {**bundle, "model": {**bundle["model"], "tables": {"probe": sha}}}):
        assert "another kind" in post(client, changed).json()["message"]
    with pytest.raises(KeyError):
        store.blobs.read(sha, TABLE)
    assert client.get("/api/health").status_code == 200


def test_bytes_of_both_kinds_are_kept_as_each_they_were_uploaded_as(client: TestClient, store: Store) -> None:
    both = polyglot(table_bytes(pd.DataFrame({"method": ["a"], "round": [1], "site": ["s"]})))
    sha = sha_of(both)
    for kind in (TENSORS, TABLE):
        assert kind not in store.blobs.kinds(sha)
        reply = put_blob(client, sha, kind, both)
        if kind == TABLE and reply.status_code == 422:  # Arrow minds what stands before the table
            return
        assert store.blobs.read(sha, kind) == both


def test_documents_have_a_limit_too(store: Store) -> None:
    with TestClient(make_app(store, limits=Limits(document_bytes=1000)), base_url=LOCAL) as client:
        sent = {"name": "r", "record": {**RECORD, "more": "x" * 2000}}
        refused(client.put("/api/runs/run", json=sent), "content", "1000 bytes", status=413)
        sent_in_pieces = client.put(
            "/api/runs/run", content=iter([b'{"name": "', b"x" * 2000]), headers={"Content-Type": "application/json"}
        )
        refused(sent_in_pieces, "content", "1000 bytes", status=413)
    assert store.runs() == []


CELL = {"cell": "c", "method": "ga", "checkpoints": {"trained": "/a/model"}}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_a_record_that_was_taken_can_be_answered(client: TestClient) -> None:
    put_run(client, record={**RECORD, "cells": [CELL], "more": nested(48)})
    for path in ("/api/runs", "/api/runs/run", "/api/runs/run/results.csv"):
        assert client.get(path).status_code == 200


@pytest.mark.parametrize(
    ("run", "record", "field"),
    [
        ("a b", RECORD, "run"),
        ("x" * 201, RECORD, "run"),
        ("run", {**RECORD, "created": "today"}, "record.created"),
        ("run", {**RECORD, "groups": []}, "record.groups"),
        ("run", {"created": 1}, "record.groups"),
        ("run", {**RECORD, "cells": None}, "record.cells"),
        ("run", {**RECORD, "more": "a\ud800"}, "record"),
        ("run", {**RECORD, "groups": {"g": 1}}, "record.groups.g"),
        ("run", {**RECORD, "groups": {"g": {"name": 1}}}, "record.groups.g.name"),
        ("run", {**RECORD, "cells": ["x"]}, "record.cells.0"),
        ("run", {**RECORD, "cells": [{"method": "ga"}]}, "record.cells.0.cell"),
        ("run", {**RECORD, "cells": [{**CELL, "checkpoints": 3}]}, "record.cells.0.checkpoints"),
        ("run", {**RECORD, "cells": [{**CELL, "checkpoints": {"trained": 5}}]}, "record.cells.0.checkpoints.trained"),
        ("run", {**RECORD, "cells": [{**CELL, "settings": [1]}]}, "record.cells.0.settings"),
        ("run", {**RECORD, "cells": [{**CELL, "train_seed": "0"}]}, "record.cells.0.train_seed"),
        ("run", {**RECORD, "environment": [1]}, "record.environment"),
        ("run", {**RECORD, "more": nested(60)}, "record"),
        ("run", {**RECORD, "more": nested(900)}, "record"),
    ],
)
def test_a_bad_run_record_is_refused(
    client: TestClient, store: Store, run: str, record: dict[str, Any], field: str
) -> None:
    headers = {"Content-Type": "application/json"}
    refused(client.put(f"/api/runs/{run}", content=_json({"name": "r", "record": record}), headers=headers), field)
    assert store.runs() == []


def test_what_is_not_there_is_said_so(client: TestClient, bundles: Bundles) -> None:
    bundle = upload(client, bundles())
    refused(post(client, bundle, "nowhere"), "run", "nowhere", status=404)
    refused(client.get("/api/runs/nowhere"), "run", "nowhere", status=404)
    refused(client.get("/api/runs/nowhere/results.csv"), "run", "nowhere", status=404)
    refused(client.get("/api/submissions/" + "0" * 64), "id", status=404)
    refused(client.get("/api/nothing"), "/api/nothing", status=404)
    refused(client.get("/api/submissions/short"), "id")
    refused(client.get("/api/submissions/" + "0" * 64, params={"wait": 31}), "wait")


@pytest.mark.parametrize("run", ["%2e%2e", "%2e", "...", "..%2f"])
def test_dots_alone_name_no_run(client: TestClient, store: Store, run: str) -> None:
    reply = client.put(f"/api/runs/{run}", json={"name": "r", "record": RECORD})
    assert reply.status_code in (404, 405, 422)
    assert store.runs() == []


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b'{"name": ', "character"),
        (b'{"name": "\xff"}', "UTF-8"),
        (b'{"name": ' + b"[" * 100_000, "nested"),
    ],
)
def test_what_is_no_json_is_told_with_a_remedy(client: TestClient, content: bytes, word: str) -> None:
    reply = client.put("/api/runs/run", content=content, headers={"Content-Type": "application/json"})
    refused(reply, "body", word, "application/json")


def test_long_values_come_back_short(client: TestClient) -> None:
    long = "x" * 400_000
    for sent in ({"name": "r", "record": {**RECORD, "created": long}}, {"name": "r", "record": RECORD, long: 1}):
        reply = client.put("/api/runs/run", json=sent)
        assert reply.status_code == 422 and len(reply.content) < 1000
    assert len(client.get("/api/runs/" + "x" * 5000).content) < 1000


def test_a_head_is_answered_as_a_get(client: TestClient) -> None:
    for path, status in (("/api/health", 200), ("/api/runs", 200), ("/api/runs/nowhere", 404)):
        reply = client.head(path)
        assert (reply.status_code, reply.content) == (status, b"")
        assert reply.headers["content-length"] == client.get(path).headers["content-length"]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_deleted_database_is_said_and_nothing_is_written_into_nowhere(
    client: TestClient, store: Store, replaced: bool
) -> None:
    put_run(client)
    file = Path(str(store.url.database))
    file.rename(file.with_name("elsewhere"))
    if replaced:
        file.write_bytes(b"")
    for reply in (client.get("/api/health"), client.put("/api/runs/b", json={"name": "b", "record": RECORD})):
        refused(reply, "store", "deleted or replaced", status=503)
    assert file.exists() is replaced
    file.with_name("elsewhere").rename(file)
    assert client.get("/api/health").status_code == 200
    assert [one["id"] for one in store.runs()] == ["run"]


# ---------------------------------------------------------------------- description
def test_the_description_names_every_answer(client: TestClient) -> None:
    described = client.get("/openapi.json").json()
    assert described["info"]["title"] == "Lethe evaluator"
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"] and operation["tags"], (path, method)
            ok = next(code for code in operation["responses"] if code.startswith("2"))
            assert operation["responses"][ok]["description"]
    blob = described["paths"]["/api/blobs/{sha256}"]["put"]
    assert set(blob["requestBody"]["content"]) == {TABLE, TENSORS}
    assert {"413", "415", "422"} <= set(blob["responses"])


def test_health_tells_what_waits_and_what_is_measured(client: TestClient, bundles: Bundles) -> None:
    put_run(client)
    post(client, upload(client, bundles()))
    found = client.get("/api/health").json()
    assert found["submissions"] == {"queued": 1}
    assert found["status"] == "ok" and "forget_{metric}" in found["metrics"]


def test_the_description_of_the_api_loads_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/docs").text
    assert "Lethe evaluator" in page
    assert not re.findall(r"(?:src|href)=.https?:", page)
    for address in re.findall(r'(?:src|href)="(/[^"]+)"', page):
        assert client.get(address).status_code == 200
