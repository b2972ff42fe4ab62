"""A worker pins device, precision and threads, and its models hold nothing of the last call."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from clients import worker as module
from clients.worker import (
    PRECISIONS,
    Worker,
    WorkerSettings,
    check_precision,
    has_native_bf16,
    open_worker,
    resolve_device,
    resolve_precision,
)
from partitions.errors import BadInput
from unlearning.state import State


def settings(**changes: object) -> WorkerSettings:
    values = {"task": "classification", "model": "cnn", "data_shape": (10, 10), "num_classes": 3, "device": "cpu"}
    return WorkerSettings(**{**values, **changes})  # type: ignore[arg-type]


def test_auto_takes_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert resolve_device("auto") == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto") == "cuda"


def test_a_device_that_is_not_there_is_an_error_not_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(BadInput, match=r"device='cuda'.*CUDA_VISIBLE_DEVICES is ''"):
        resolve_device("cuda")


@pytest.mark.parametrize("precision", ["16-mixed", "16-true"])
def test_16_bit_floats_on_a_cpu_are_refused_with_a_remedy(precision: str) -> None:
    with pytest.raises(BadInput, match=rf"{precision}.*use bf16-mixed"):
        Worker(settings(precision=precision))
    check_precision(precision, "cuda")


@pytest.mark.parametrize(("native", "expected"), [(True, "bf16-mixed"), (False, "32-true"), (None, "32-true")])
def test_auto_precision_is_the_fast_one(monkeypatch: pytest.MonkeyPatch, native: bool | None, expected: str) -> None:
    monkeypatch.setattr(module, "has_native_bf16", lambda kind: native)
    assert resolve_precision("auto", "cpu") == expected
    assert Worker(settings(precision="auto")).precision == expected
    assert resolve_precision("64-true", "cpu") == "64-true"


def test_an_emulated_bf16_is_not_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": False, "avx2": True}, raising=False)
    assert has_native_bf16("cpu") is False
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert has_native_bf16("cpu") is None
    assert has_native_bf16("mps") is None


def test_a_precision_whose_library_is_missing_is_refused() -> None:
    with pytest.raises(BadInput, match="transformer-engine"):
        check_precision("transformer-engine", "cuda")


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(BadInput, match="precision='fp16'"):
        check_precision("fp16", "cuda")


def test_one_process_builds_one_worker_a_setting() -> None:
    assert open_worker(settings()) is open_worker(settings())
    assert open_worker(settings()) is not open_worker(settings(threads=2))


@pytest.mark.parametrize("model", ["cnn", "resnet18"])
def test_a_loaded_state_comes_back_bit_for_bit(model: str, initial: Callable[..., State]) -> None:
    state = initial(model)
    worker = open_worker(settings(model=model))
    worker.load(initial(model, seed=9))
    worker.load(state)
    assert worker.state().sha256() == state.sha256()


@pytest.mark.parametrize(("precision", "wire"), [("bf16-true", torch.float32), ("64-true", torch.float64)])
def test_weights_travel_in_32_bits_or_more(precision: str, wire: torch.dtype, initial: Callable[..., State]) -> None:
    worker = Worker(settings(precision=precision))
    worker.load(initial(dtype=wire))
    assert {t.dtype for t in worker.state().params.values()} == {wire}


def test_channels_last_reaches_weights_and_inputs() -> None:
    images, targets = np.zeros((4, 10, 10), dtype=np.uint8), np.zeros(4, dtype=np.int64)
    for wanted in (True, False):
        worker = Worker(settings(channels_last=wanted))
        x, _ = worker.batch(images, targets, np.arange(4))
        weight = max(worker.model.parameters(), key=torch.Tensor.dim)
        assert x.is_contiguous(memory_format=torch.channels_last) == wanted
        assert x.is_contiguous() != wanted
        assert weight.shape[1] == 3 and weight.is_contiguous(memory_format=torch.channels_last) == wanted


def test_threads_are_pinned_even_when_something_else_changed_them() -> None:
    torch.set_num_threads(2)
    with Worker(settings(threads=1)).computing(0):
        assert torch.get_num_threads() == 1


def test_computing_leaves_the_random_stream_of_its_surroundings_alone() -> None:
    worker = open_worker(settings())
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    with worker.computing(1):
        first = torch.rand(1)
    assert torch.equal(torch.rand(1), expected)
    with worker.computing(1):
        assert torch.equal(torch.rand(1), first)


def test_a_scorer_is_fp32_in_eval_mode_whatever_the_training_precision(initial: Callable[..., State]) -> None:
    worker = Worker(settings(precision="bf16-true"))
    state = initial()
    model = worker.scorer(state)
    assert not model.training
    assert State.from_module(model).sha256() == state.sha256()


def test_scorers_of_two_slots_are_two_models(initial: Callable[..., State]) -> None:
    worker = open_worker(settings())
    a, b = worker.scorer(initial(seed=1), 0), worker.scorer(initial(seed=2), 1)
    assert State.from_module(a).sha256() != State.from_module(b).sha256()


def test_teachers_of_two_slots_are_two_models_that_take_no_gradient(initial: Callable[..., State]) -> None:
    worker = Worker(settings())
    a, b = worker.frozen(initial(seed=1)), worker.frozen(initial(seed=2), slot=1)
    images, targets = np.zeros((2, 10, 10), dtype=np.uint8), np.zeros(2, dtype=np.int64)
    x, _ = worker.batch(images, targets, np.arange(2))
    assert not torch.equal(a(x), b(x))
    assert not any(p.requires_grad for model in (a, b) for p in model.parameters())


def test_building_a_teacher_leaves_the_random_stream_alone(initial: Callable[..., State]) -> None:
    worker, state = Worker(settings()), initial()
    with worker.computing(3):
        worker.frozen(state)
        first = torch.rand(1)
    with worker.computing(3):
        assert torch.equal(torch.rand(1), first)


@pytest.mark.parametrize("precision", ["32-true", "64-true"])
def test_fresh_weights_are_the_seed_s_in_every_process_and_disturb_nothing(
    precision: str, initial: Callable[..., State]
) -> None:
    worker, state = Worker(settings(precision=precision)), initial()
    worker.load(state)
    before = worker.state().sha256()
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    outside = worker.initial(4)
    assert torch.equal(torch.rand(1), expected)
    with worker.computing(1):
        inside = worker.initial(4)
    assert outside.sha256() == inside.sha256() == initial(seed=4).sha256() != worker.initial(5).sha256()
    assert worker.state().sha256() == before


def test_batches_read_only_the_records_asked_for(tmp_path: object) -> None:
    images = np.arange(5 * 100, dtype=np.uint8).reshape(5, 10, 10)
    np.save(f"{tmp_path}/images.npy", images)
    mapped = np.load(f"{tmp_path}/images.npy", mmap_mode="r")
    worker = open_worker(settings())
    x, y = worker.batch(mapped, np.arange(5), np.array([3, 1]))
    assert torch.equal(x, worker.task.to_inputs(images[[3, 1]]))
    assert y.tolist() == [3, 1]


def test_every_mode_of_fabric_is_known() -> None:
    from typing import get_args

    from lightning_fabric.plugins.precision.precision import _PRECISION_INPUT_STR

    assert set(PRECISIONS) == set(get_args(_PRECISION_INPUT_STR))
