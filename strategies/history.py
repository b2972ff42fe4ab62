"""The per-round record of a training: one safetensors file a round, which is commit point, checkpoint and archive.

A file holds ``before/...`` and ``after/...`` (whole states), ``update/<site>/...`` (what was aggregated),
``server/<kind>/...`` (the server optimiser's moments). Its metadata are the round's `RoundRecord` and the order of the
names, both JSON: the format sorts tensors, and a sum over them must be taken in the same order after a resume.
"""

from __future__ import annotations

import json
import math
import shutil
import uuid
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from partitions.disk import sync
from partitions.errors import BadInput, RunFailed
from strategies.plans import Cost, Status
from unlearning.state import State, Tensors, Update

FORMAT = 1
HEADER_BYTES = 230
"""Of each tensor, about: its name three times, shape, type, place and checksum."""

SiteStatus = Literal["ok", "empty", "rejected", "failed"]


@dataclass(frozen=True)
class SiteRecord:
    """What one site did in one round.

    Attributes
    ----------
    status : {"ok", "empty", "rejected", "failed"}
        Aggregated; had no records; sent an update that is not usable; raised.
    reason : str
        Why it was rejected or failed, in one line.
    traceback : str
        Where it raised; empty unless it failed.
    weight : float
        Share in the aggregate; the weights of a round sum to one.
    num_examples, num_forget, num_retain, num_batches : int
        As the site counted them; `num_batches` is gradient steps.
    examples : int
        Records processed, a record counting once an epoch.
    loss, metric, seconds : float
        As the site reported them; NaN when it did not.
    bytes_down, bytes_up : int
        Array payload.
    device, gpu : str
        Where the site computed.
    """

    status: SiteStatus = "ok"
    reason: str = ""
    traceback: str = ""
    weight: float = 0.0
    num_examples: int = 0
    num_forget: int = 0
    num_retain: int = 0
    num_batches: int = 0
    examples: int = 0
    loss: float = math.nan
    metric: float = math.nan
    seconds: float = math.nan
    bytes_down: int = 0
    bytes_up: int = 0
    device: str = ""
    gpu: str = ""


@dataclass(frozen=True)
class RoundRecord:
    """What happened in one round.

    Attributes
    ----------
    round : int
        Counted from 1.
    lr : float
        Learning rate sent to the sites; NaN when nobody was asked.
    seconds : float
        Wall time from configuring the round to its commit.
    disk_read : int
        Bytes read from a stored history.
    sites : mapping of str to SiteRecord
        Every site that was asked, sorted.
    status, reason : str
        "diverged" ends the stage; its `after` is the last usable state.
    remarks : tuple of str
        What the method has to say of the round.
    """

    round: int
    lr: float
    seconds: float
    disk_read: int = 0
    sites: Mapping[str, SiteRecord] = field(default_factory=dict)
    status: Status = "ok"
    reason: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def participants(self) -> tuple[str, ...]:
        """Return the sites whose update was aggregated, sorted."""
        return tuple(sorted(site for site, found in self.sites.items() if found.status == "ok"))

    @property
    def cost(self) -> Cost:
        """Return the round's cost."""
        found = list(self.sites.values())
        return Cost(
            seconds=self.seconds,
            client_seconds=sum(s.seconds for s in found if math.isfinite(s.seconds)),
            client_examples=sum(s.examples for s in found),
            gradient_steps=sum(s.num_batches for s in found),
            bytes_down=sum(s.bytes_down for s in found),
            bytes_up=sum(s.bytes_up for s in found),
            disk_read=self.disk_read,
        )

    @property
    def loss(self) -> float:
        """Return the weighted mean loss of the participants; NaN when there is none."""
        return self._mean("loss")

    @property
    def metric(self) -> float:
        """Return the weighted mean metric of the participants; NaN when there is none."""
        return self._mean("metric")

    @property
    def notes(self) -> tuple[str, ...]:
        """Return one line for each remark, and for each site that failed or was rejected."""
        return self.remarks + tuple(
            f"round {self.round}: {site} {found.status}: {found.reason}"
            for site, found in self.sites.items()
            if found.status in ("failed", "rejected")
        )

    def to_json(self) -> str:
        """Return the record as JSON."""
        return json.dumps({"format": FORMAT, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> RoundRecord:
        """Rebuild a record from `to_json`."""
        values: dict[str, Any] = json.loads(text)
        values.pop("format")
        sites = {site: SiteRecord(**found) for site, found in values.pop("sites").items()}
        remarks = tuple(values.pop("remarks", ()))
        return cls(**values, sites=sites, remarks=remarks)

    def _mean(self, key: str) -> float:
        parts = [(self.sites[s].weight, float(getattr(self.sites[s], key))) for s in self.participants]
        return sum(weight * value for weight, value in parts) if any(weight for weight, _ in parts) else math.nan


class History:
    """Reads the rounds of one training, lazily.

    Parameters
    ----------
    folder : Path
        Where the round files lie; an absent folder is a history of no rounds.

    Attributes
    ----------
    last_complete_round : int
        Rounds 1 to this one are there and whole; 0 when there is none.
    notes : tuple of str
        What was found damaged.
    bytes_read : int
        Tensor bytes read so far.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.bytes_read = folder, 0
        self._records: dict[int, RoundRecord] = {}
        self.notes = self._scan()
        self.last_complete_round = max(self._records, default=0)

    @property
    def rounds(self) -> range:
        """Return the complete rounds."""
        return range(1, self.last_complete_round + 1)

    def record(self, round_: int) -> RoundRecord:
        """Return a round's record; raises `RunFailed` for a round that is not there."""
        if round_ not in self._records:
            raise RunFailed(f"round {round_} is not in {self.folder}, which has {self.last_complete_round} rounds")
        return self._records[round_]

    @property
    def cost(self) -> Cost:
        """Return the cost of all complete rounds."""
        return sum((self.record(r).cost for r in self.rounds), Cost())

    def before(self, round_: int) -> State:
        """Return the whole state that was sent out in a round."""
        groups = self._groups(round_, "before", ("params", "float_buffers", "int_buffers"))
        return State(**groups) if groups["params"] or round_ == 1 else self.after(round_ - 1)

    def after(self, round_: int) -> State:
        """Return the whole state that a round ended with."""
        return State(**self._groups(round_, "after", ("params", "float_buffers", "int_buffers")))

    def update(self, round_: int, site: str) -> Update:
        """Return a site's aggregated update; raises `RunFailed` when it has none in that round or was thinned out."""
        if site not in self.record(round_).participants:
            raise RunFailed(f"{site} has no update in round {round_} of {self.folder}")
        groups = self._groups(round_, f"update/{site}", ("params", "float_buffers"))
        if not groups["params"]:
            raise RunFailed(f"the updates of round {round_} were not kept in {self.folder}; train with history-every=1")
        return Update(**groups)

    def has_updates(self, round_: int) -> bool:
        """Tell whether the sites' updates of a round were kept."""
        self.record(round_)
        with safe_open(self.path(round_), framework="pt") as file:
            return any(key.startswith("update/") for key in json.loads(file.metadata()["order"]))

    def server(self, round_: int, kind: str) -> Tensors:
        """Return tensors the server optimiser kept after a round, for example its first moments; empty if none."""
        return self._tensors(round_, f"server/{kind}/")

    def frame(self) -> pd.DataFrame:
        """Return one row a round and site: the columns of `SiteRecord` after ``round`` and ``site``."""
        rows = [
            {"round": round_, "site": site, **asdict(found)}
            for round_ in self.rounds
            for site, found in self.record(round_).sites.items()
        ]
        return pd.DataFrame(rows, columns=["round", "site", *SiteRecord.__dataclass_fields__])

    def write_table(self) -> Path:
        """Write `frame` to ``rounds.parquet`` in the folder and return its path."""
        path = self.folder / "rounds.parquet"
        with _replacing(path) as unfinished:
            self.frame().to_parquet(unfinished, index=False)
        return path

    def path(self, round_: int) -> Path:
        """Return the file of a round."""
        return self.folder / f"round-{round_:04d}.safetensors"

    def _scan(self) -> tuple[str, ...]:
        round_ = 1
        while self.path(round_).exists():
            try:
                with safe_open(self.path(round_), framework="pt") as file:
                    self._records[round_] = RoundRecord.from_json(file.metadata()["round"])
            except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
                return (f"{self.path(round_).name} is damaged ({error}); going back to round {round_ - 1}",)
            round_ += 1
        return ()

    def _groups(self, round_: int, prefix: str, groups: tuple[str, ...]) -> dict[str, Tensors]:
        return {group: self._tensors(round_, f"{prefix}/{group}/") for group in groups}

    def _tensors(self, round_: int, prefix: str) -> Tensors:
        self.record(round_)
        with safe_open(self.path(round_), framework="pt") as file:
            metadata = file.metadata()
            keys: list[str] = json.loads(metadata["order"])
            found = {key: file.get_tensor(key) for key in keys if key.startswith(prefix)}
        known = json.loads(metadata.get("crc", "{}"))
        for key, tensor in found.items():
            if key in known and _sum(tensor) != known[key]:
                where = self.folder.parent
                raise RunFailed(f"{self.path(round_)} is damaged ({key}): remove {where}, and it is computed again")
        self.bytes_read += sum(t.nbytes for t in found.values())
        return {key.removeprefix(prefix): _full(tensor) for key, tensor in found.items()}


class HistoryWriter:
    """Commits rounds to a folder, each in one atomic step.

    Parameters
    ----------
    folder : Path
        Made when the first round is written.
    keep_updates : bool
        False keeps records, the first state and the state after each round: enough to resume, a fraction of the size.
    """

    def __init__(self, folder: Path, keep_updates: bool = True) -> None:
        self.folder, self.keep_updates = folder, keep_updates

    def read(self) -> History:
        """Return a reader of what is there now."""
        return History(self.folder)

    def write(
        self,
        record: RoundRecord,
        before: State,
        after: State,
        updates: Mapping[str, Update],
        server: Mapping[str, Tensors] | None = None,
    ) -> Path:
        """Write one round: temporary file, fsync, rename. A crash leaves the rounds before it as they were."""
        tensors = _prefixed("after", _state_groups(after))
        if self.keep_updates or record.round == 1:
            tensors = _prefixed("before", _state_groups(before)) | tensors
        if self.keep_updates:
            for site, update in updates.items():
                tensors |= _prefixed(f"update/{site}", _update_groups(update))
        tensors |= _prefixed("server", server or {})
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"round-{record.round:04d}.safetensors"
        _save(path, tensors, record)
        return path

    def check_space(self, state: State, sites: int, rounds: int) -> None:
        """Refuse rounds that do not fit; raises `BadInput` with the numbers and the remedies."""
        need = predict_bytes(state, sites if self.keep_updates else 0, rounds)
        free = shutil.disk_usage(_nearest(self.folder)).free
        if need > free:
            raise BadInput(
                "rounds",
                rounds,
                f"a history that fits: {rounds} rounds of {sites} sites need {_in_words(need)} and "
                f"{_in_words(free)} are free at {_nearest(self.folder)}",
                "free some space, move LETHE_HOME, or use fewer rounds, fewer sites or a smaller model",
            )


def predict_bytes(state: State, sites: int, rounds: int) -> int:
    """Return the size of a history: two states and `sites` updates a round, with their headers."""
    groups = (state.params, state.float_buffers, state.int_buffers)
    floats = sum(t.nbytes for group in groups[:2] for t in group.values())
    whole = floats + sum(t.nbytes for t in groups[2].values())
    header = HEADER_BYTES * (2 + sites) * sum(len(group) for group in groups)
    return rounds * (2 * whole + sites * floats + header)


def _in_words(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def shrink(folder: Path, *, keep_every: int = 1, half: bool = False) -> int:
    """Make the history of a *completed* training smaller and return the bytes freed.

    Parameters
    ----------
    folder : Path
        The history.
    keep_every : int
        Keep the updates of rounds 1, 1 + keep_every, ... only.
    half : bool
        Keep updates in 16 bits, where they fit; they read back in 32. States are never rounded.
    """
    history = History(folder)
    freed = 0
    for round_ in history.rounds:
        path, record = history.path(round_), history.record(round_)
        size = path.stat().st_size
        keep = (round_ - 1) % keep_every == 0
        with safe_open(path, framework="pt") as file:
            names = [n for n in json.loads(file.metadata()["order"]) if keep or not n.startswith("update/")]
            tensors = {name: file.get_tensor(name) for name in names}
        if half:
            tensors = {n: _halved(t) if n.startswith("update/") else t for n, t in tensors.items()}
        _save(path, tensors, record)
        freed += size - path.stat().st_size
    return freed


def _save(path: Path, tensors: Mapping[str, Tensor], record: RoundRecord) -> None:
    with _replacing(path) as unfinished:
        metadata = {"round": record.to_json(), "order": json.dumps(list(tensors)), "crc": json.dumps(_sums(tensors))}
        save_file(_unshared(tensors), unfinished, metadata=metadata)


def _sums(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    return {name: _sum(tensor) for name, tensor in tensors.items()}


def _sum(tensor: Tensor) -> int:
    """Return the CRC-32 of a tensor's bytes: what the disk gives back is checked before anything is computed on it."""
    return zlib.crc32(tensor.contiguous().view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


class _replacing:  # noqa: N801 - reads as a statement
    """Write to a temporary file beside `path`, then fsync and rename it; remove it on any failure."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")

    def __enter__(self) -> Path:
        return self._unfinished

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._unfinished.unlink(missing_ok=True)
            return
        self._unfinished.chmod(0o644)
        sync(self._unfinished)
        self._unfinished.replace(self._path)
        sync(self._path.parent)


def _state_groups(state: State) -> dict[str, Tensors]:
    return {"params": state.params, "float_buffers": state.float_buffers, "int_buffers": state.int_buffers}


def _update_groups(update: Update) -> dict[str, Tensors]:
    return {"params": update.params, "float_buffers": update.float_buffers}


def _prefixed(prefix: str, groups: Mapping[str, Tensors]) -> dict[str, Tensor]:
    return dict(_named(prefix, groups))


def _named(prefix: str, groups: Mapping[str, Tensors]) -> Iterator[tuple[str, Tensor]]:
    for group, tensors in groups.items():
        for name, tensor in tensors.items():
            yield f"{prefix}/{group}/{name}", tensor.contiguous()


def _unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # safetensors refuses two names for one storage, as when a round leaves a tensor where it was
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if storage in seen else tensor
        seen.add(storage)
    return apart


def _halved(tensor: Tensor) -> Tensor:
    half = tensor.half()
    return half if bool(torch.isfinite(half).all()) else tensor


def _full(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.float16 else tensor


def _nearest(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())
