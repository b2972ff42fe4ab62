"""The compute side of a process: device, precision, threads, and models built once and reloaded for every message."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from clients.catalogue import TASKS
from clients.tasks.base import Task
from partitions.backdoor import Triggered
from partitions.errors import BadInput
from unlearning.state import State

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Device = Literal["auto", "cpu", "cuda", "mps"]

PRECISIONS = (
    "32-true",
    "bf16-mixed",
    "16-mixed",
    "64-true",
    "bf16-true",
    "16-true",
    "transformer-engine",
    "transformer-engine-float16",
)
"""Lightning Fabric's modes; ``*-true`` modes hold the weights in that type, on the wire they are 32 bits or more."""

AUTO = "auto"
"""The precision that the device is fast at, see `resolve_precision`."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerSettings:
    """What determines how a process computes.

    Attributes
    ----------
    task, model : str
        Registry names.
    data_shape : tuple of int
        Shape of one stored record.
    num_classes : int
        Classes of the data set.
    precision : str
        One of `PRECISIONS`, or "auto".
    channels_last : bool
        Memory format of models and inputs.
    threads : int
        torch threads; another number gives other bits.
    device : {"auto", "cpu", "cuda", "mps"}
        "auto" takes what is there, in the order cuda, mps, cpu.
    """

    task: str
    model: str
    data_shape: tuple[int, ...]
    num_classes: int
    precision: str = "32-true"
    channels_last: bool = True
    threads: int = 1
    device: Device = "auto"


def resolve_device(device: Device) -> str:
    """Return the kind of device to compute on; raises `BadInput` for one that this process does not see."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        return next(kind for kind, there in present.items() if there)
    if device not in present:
        raise BadInput("device", device, "auto, cpu, cuda or mps")
    if not present[device]:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = f"CUDA_VISIBLE_DEVICES is {seen!r} here; give every worker a share of a GPU" if seen is not None else ""
        there = ", ".join(kind for kind in present if present[kind])
        raise BadInput("device", device, f"what this process sees ({there}) or auto", why)
    return device


def has_native_bf16(kind: str = "cpu") -> bool | None:
    """Tell whether that kind of device computes in bf16 itself, where it saves time; None when torch cannot say."""
    if kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    ask: Callable[[], Mapping[str, Any]] | None = getattr(torch.cpu, "get_capabilities", None)
    if kind != "cpu" or ask is None:
        return None
    found = ask()
    return any(bool(found.get(name)) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))


def resolve_precision(precision: str, kind: str) -> str:
    """Return `precision`; for ``"auto"`` bf16-mixed where that kind of device computes in bf16 itself, else 32-true."""
    if precision != AUTO:
        return precision
    return "bf16-mixed" if has_native_bf16(kind) else "32-true"


def check_precision(precision: str, device: str) -> None:
    """Refuse an unknown precision, and 16-bit floats on a CPU, which would silently be something else or very slow."""
    if precision not in PRECISIONS:
        raise BadInput("precision", precision, "one of " + ", ".join((AUTO, *PRECISIONS)))
    if device == "cpu" and precision in ("16-true", "16-mixed"):
        raise BadInput("precision", precision, "no 16-bit float mode on a CPU", "use bf16-mixed, or device=cuda")
    if precision.startswith("transformer-engine") and find_spec("transformer_engine") is None:
        raise BadInput("precision", precision, "a mode whose library is here", "install transformer-engine")


class Worker:
    """A model for training, wrapped by Fabric, and fp32 models for scoring; their weights are those last loaded.

    Parameters
    ----------
    settings : WorkerSettings
        How to compute.

    Raises
    ------
    BadInput
        When the device is not there or the precision does not fit it.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.kind = resolve_device(settings.device)
        self.precision = resolve_precision(settings.precision, self.kind)
        check_precision(self.precision, self.kind)
        self.task: Task = TASKS.get(settings.task)
        self.fabric = _fabric(self.kind, self.precision)
        self.device: torch.device = self.fabric.device
        self._module = self._built()
        self.model = cast(nn.Module, self.fabric.setup_module(self._module))
        self._fresh_precision = self.fabric.strategy.precision.state_dict()
        self._scorers: dict[int, nn.Module] = {}
        self._teachers: dict[int, tuple[nn.Module, nn.Module]] = {}
        _say_once(str(self.device), self.precision)

    def load(self, state: State) -> nn.Module:
        """Put `state` into the training model, reset what the last call left, and return the wrapped model."""
        state.load_into(self._module)
        self._module.requires_grad_(True)
        self.model.zero_grad(set_to_none=True)
        self.fabric.strategy.precision.load_state_dict(self._fresh_precision)
        return self.model

    @property
    def module(self) -> nn.Module:
        """The training model without Fabric's wrapper: parameters have the names they have in a `State`."""
        return self._module

    def optimizer(self, optimizer: Optimizer) -> Any:
        """Return `optimizer` wrapped by Fabric."""
        return self.fabric.setup_optimizers(optimizer)

    def state(self) -> State:
        """Return the training model's state; 16-bit weights are cast to fp32."""
        state = State.from_module(self._module)
        return State(
            {name: _at_least_fp32(tensor) for name, tensor in state.params.items()},
            {name: _at_least_fp32(tensor) for name, tensor in state.float_buffers.items()},
            state.int_buffers,
        )

    def frozen(self, state: State, slot: int = 0) -> nn.Module:
        """Return a further, wrapped model in eval mode with the weights of `state`, such as a teacher; one a slot."""
        if slot not in self._teachers:
            with self._streams_kept():
                built = self._built().requires_grad_(False)
            self._teachers[slot] = built, cast(nn.Module, self.fabric.setup_module(built))
        module, wrapped = self._teachers[slot]
        state.load_into(module)
        return wrapped.eval()

    def initial(self, seed: int) -> State:
        """Return fresh fp32 weights, a seed's in every process; torch's random streams stay as they are."""
        with self._streams_kept(), _default_dtype(torch.float32):
            torch.manual_seed(seed)
            return State.from_module(self._built())

    def scorer(self, state: State, slot: int = 0) -> nn.Module:
        """Return an fp32 model in eval mode with the weights of `state`; one model a slot."""
        if slot not in self._scorers:
            self._scorers[slot] = self._built().to(self.device).eval().requires_grad_(False)
        state.load_into(self._scorers[slot])
        return self._scorers[slot]

    def batch(self, inputs: np.ndarray | Triggered, targets: np.ndarray, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return model inputs and targets of the records at `indices`, on the device."""
        x = self.task.to_inputs(torch.from_numpy(_rows(inputs, indices)).to(self.device))
        y = self.task.to_targets(_rows(targets, indices)).to(self.device)
        if x.dim() == 4:
            x = x.contiguous(memory_format=self._memory_format)
        return x, y

    @contextmanager
    def computing(self, seed: int) -> Iterator[None]:
        """Pin threads, kernels and torch's random streams for one local training."""
        self._pin_threads()
        # Fabric casts outputs to torch's default type, so 64-true would compute its loss in fp32.
        dtype = torch.float64 if self.precision == "64-true" else torch.get_default_dtype()
        with self._streams_kept(), self._deterministic(allow_tf32=True), _default_dtype(dtype):
            torch.manual_seed(seed)
            yield

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Pin threads and kernels, without gradients and without TF32, for one pass of scoring."""
        self._pin_threads()
        with torch.no_grad(), self._deterministic(allow_tf32=False):
            yield

    @property
    def _memory_format(self) -> torch.memory_format:
        return torch.channels_last if self.settings.channels_last else torch.contiguous_format

    def _built(self) -> nn.Module:
        settings = self.settings
        module = self.task.build(settings.model, settings.data_shape, settings.num_classes)
        return module.to(memory_format=self._memory_format)

    def _streams_kept(self) -> AbstractContextManager[None]:
        return torch.random.fork_rng(devices=[self.device] if self.kind == "cuda" else [])

    def _pin_threads(self) -> None:
        if torch.get_num_threads() != self.settings.threads:
            torch.set_num_threads(self.settings.threads)

    @contextmanager
    def _deterministic(self, allow_tf32: bool) -> Iterator[None]:
        kept = torch.backends.cudnn.allow_tf32
        with torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=kept and allow_tf32
        ):
            yield


@lru_cache(maxsize=4)
def open_worker(settings: WorkerSettings) -> Worker:
    """Return this process's worker for `settings`, built at the first call."""
    return Worker(settings)


def gpu_share() -> str:
    """Return the GPUs given to this process (``CUDA_VISIBLE_DEVICES``), empty where there is no such limit."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "")


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    kept = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(kept)


def _fabric(kind: str, precision: str) -> Fabric:
    from lightning_fabric import Fabric  # over a second, which processes that do not train are spared

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    return Fabric(accelerator=kind, devices=1, precision=precision)  # type: ignore[arg-type]


@cache
def _say_once(device: str, precision: str) -> None:
    log.info("computing on %s in %s", device, precision)
    if device == "cpu" and Path("/dev/nvidia0").exists():
        log.warning("this machine has a GPU that this process does not see (CUDA_VISIBLE_DEVICES=%r)", gpu_share())


def _rows(array: np.ndarray | Triggered, indices: np.ndarray) -> np.ndarray:
    # np.asarray drops the memmap class, whose indexing costs several times more; the pages stay mapped.
    plain = array if isinstance(array, Triggered) else np.asarray(array)
    return plain.take(indices, axis=0)


def _at_least_fp32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
