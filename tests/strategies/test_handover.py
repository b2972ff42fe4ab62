"""Facts about models that are handed over in files: same bits, sizes and results as in messages, and no other file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fake_sites import SITES, Hospitals, federation, schedule, start_state
from safetensors.numpy import save_file

from partitions.errors import Refused, SiteLost
from strategies.exchange import FailurePolicy
from strategies.handover import FOLDER, Handover, take
from strategies.recording import RecordingFedAvg
from strategies.wire import array_bytes, call_content, call_of, make_message
from unlearning.state import State

CONFIG = {"round": 1, "seed": 0, "purpose": "train", "lr": 0.1, "epochs": 1, "records": "all", "request": ""}
HELD = {site: (0, n) for site, n in zip(SITES, (10, 20, 30, 40), strict=True)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER, str(tmp_path / "models"))
    return tmp_path / "models"


def odd_state() -> State:
    """Return a state with names out of order, an empty tensor, and every kind of number that travels."""
    return State(
        {"z": torch.randn(3, 5), "a": torch.randn(70, dtype=torch.float64), "h": torch.ones(2, dtype=torch.bfloat16)},
        {"m": torch.zeros(0), "v": torch.randn(1)},
        {"n": torch.tensor(7), "b": torch.tensor([True, False])},
    )


@pytest.mark.parametrize("state", [start_state(), odd_state()], ids=["usual", "odd"])
def test_a_file_and_a_message_give_the_same_model_of_the_same_size(folder: Path, state: State) -> None:
    other = start_state(5)
    sent, handed = (call_content(state, {"lr": 0.1}, {"other": other}, found) for found in (None, Handover.here()))
    assert not handed.array_records and len(list(folder.iterdir())) == 2
    assert array_bytes(handed) == array_bytes(sent) > 0
    (a, b) = (call_of(make_message("train", "train", 7, content)) for content in (sent, handed))
    assert a.config == b.config and a.states.keys() == b.states.keys()
    for left, right in ((a.state, b.state), (a.states["other"], b.states["other"])):
        assert left is not None and right is not None
        assert left.sha256() == right.sha256()
        assert [list(g) for g in vars(left).values()] == [list(g) for g in vars(right).values()]


@pytest.mark.parametrize("shape", [(), (1,), (64, 3, 3, 3), (1000000, 1), (1,) * 12, (3,) * 7])
def test_the_size_is_that_of_a_message_whatever_the_shape(folder: Path, shape: tuple[int, ...]) -> None:
    for dtype in (torch.float32, torch.float64, torch.int64, torch.bool):
        state = State({"w": torch.zeros(shape, dtype=dtype)}, {}, {})
        assert array_bytes(call_content(state, {}, None, Handover(folder))) == array_bytes(call_content(state, {}))


def test_what_is_asked_without_a_model_has_no_file(folder: Path) -> None:
    content = call_content(None, {"round": 1}, None, Handover.here())
    assert not folder.exists() and call_of(make_message("query", "describe", 7, content)).state is None


def test_the_next_exchange_removes_the_files_of_the_last_and_leaves_what_is_mapped(folder: Path) -> None:
    handover = Handover(folder)
    first = call_of(make_message("train", "train", 7, call_content(start_state(1), {}, None, handover))).state
    call_content(start_state(2), {}, None, handover)
    assert len(list(folder.iterdir())) == 1
    assert first is not None and first.sha256() == start_state(1).sha256()


def test_what_a_site_does_to_its_model_no_other_site_sees(folder: Path) -> None:
    message = make_message("train", "train", 7, call_content(start_state(), {}, None, Handover(folder)))
    mine, others = call_of(message).state, call_of(message).state
    assert mine is not None and others is not None
    for tensor in mine.params.values():
        tensor.add_(1.0)
    assert others.sha256() == start_state().sha256() == call_of(message).state.sha256()  # type: ignore[union-attr]


def test_a_site_takes_no_file_where_none_are_handed_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handed = Handover(folder).hand(start_state())
    monkeypatch.delenv(FOLDER)
    assert Handover.here() is None
    with pytest.raises(Refused, match="not as the file"):
        take(handed.path)


def test_a_site_takes_no_file_from_elsewhere(folder: Path, tmp_path: Path) -> None:
    Handover(folder).hand(start_state())
    secret = tmp_path / "secret.safetensors"
    save_file(start_state().to_arrays(), secret)
    (folder / "link.safetensors").symlink_to(secret)
    for path in (secret, folder / ".." / "secret.safetensors", folder / "link.safetensors"):
        with pytest.raises(Refused, match="not as the file"):
            take(str(path))


@pytest.mark.parametrize("policy", ["fail", "continue"])
@pytest.mark.parametrize("harm", ["gone", "cut short"])
def test_a_model_that_is_gone_is_no_sites_fault_and_the_run_is_submitted_again(
    folder: Path, policy: FailurePolicy, harm: str
) -> None:
    def spoil(site: str, op: str, call: object) -> None:
        for path in folder.iterdir():
            path.unlink() if harm == "gone" else path.write_bytes(path.read_bytes()[:20])

    fed = federation(Hospitals(HELD, spoil), failure_policy=policy)
    fed.handover = Handover.here()
    with pytest.raises(SiteLost, match="a model that was handed over is gone"):
        fed.ask("train", "train", SITES, state=start_state(), config=CONFIG)


def test_training_gives_the_same_bits_and_counts_the_same_bytes(folder: Path) -> None:
    outcomes = []
    for handover in (None, Handover.here()):
        fed = federation(Hospitals(HELD))
        fed.handover = handover
        rounds = RecordingFedAvg(
            fed,
            schedule(),
            seed=0,
            participants=list(SITES),
            message_config={"records": "all"},
            history=None,
            label="original",
        )
        outcomes.append(rounds.run(start_state(), 3))
    sent, handed = outcomes
    assert sent.state.sha256() == handed.state.sha256()
    assert (sent.cost.bytes_down, sent.cost.bytes_up) == (handed.cost.bytes_down, handed.cost.bytes_up)
    assert len(list(folder.iterdir())) == 1
