"""A site's records: which it trains on, which it holds out, which a request means, and what it tells about them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pandas as pd

from clients.catalogue import OPERATIONS
from clients.worker import Device, Worker, WorkerSettings, open_worker, resolve_device, resolve_precision
from partitions.backdoor import Backdoor, Triggered
from partitions.difficulty import class_counts
from partitions.errors import BadInput, unknown_name
from partitions.loading import load_data
from partitions.partition import Partition, SplitSpec, make_partition
from partitions.records import LoadedData
from partitions.requests import Selection, parse_request, select
from partitions.shadow_design import UnlearningDesign, unlearning_design

Split = Literal["train", "holdout", "reference"]
Records = Literal["all", "retain", "forget", "both"]
LastBatch = Literal["keep", "drop", "merge"]
Fact = str | int | list[int]


@dataclass(frozen=True)
class SiteSettings:
    """What a process needs to open a site and to compute at it.

    Attributes
    ----------
    home : Path
        LETHE_HOME of this machine.
    depot : str
        URL of a depot that has the data set, should it not be here; empty: none.
    dataset, cap, split : str, int, SplitSpec
        Which records there are, and how they are spread over the sites.
    task, model, precision, channels_last, threads, device
        See `WorkerSettings`.
    batch_size : int
        Records in a batch.
    last_batch : {"keep", "drop", "merge"}
        See `clients.training.batch_order`.
    momentum, weight_decay : float
        Of local SGD.
    backdoor : Backdoor or None
        Planted in the training records of the site that it names; every site scores its trigger.
    """

    home: Path
    dataset: str
    cap: int
    split: SplitSpec
    task: str = "classification"
    model: str = "cnn"
    batch_size: int = 64
    last_batch: LastBatch = "merge"
    momentum: float = 0.0
    weight_decay: float = 0.0
    precision: str = "32-true"
    channels_last: bool = True
    threads: int = 1
    device: Device = "auto"
    backdoor: Backdoor | None = None
    depot: str = ""


@dataclass(frozen=True)
class View:
    """Some records of a site, without copying them.

    Attributes
    ----------
    split : {"train", "holdout", "reference"}
        What they are for.
    inputs, targets : ndarray
        Arrays of the whole data set; memory-mapped. Of poisoned records the trigger and the planted label.
    indices : ndarray
        Which of them, int64, ascending.
    table : DataFrame
        What is known of each record, in the order of `indices`, with columns record, patient, stratum, site, split. The
        stratum of a poisoned record is its true class: a class request means what a record shows.
    """

    split: Split
    inputs: np.ndarray | Triggered
    targets: np.ndarray
    indices: np.ndarray
    table: pd.DataFrame

    def __len__(self) -> int:
        return len(self.indices)


class Site:
    """One hospital, or with an empty name the coordinator's reference set.

    Parameters
    ----------
    name : str
        Site name; empty for the reference set.
    settings : SiteSettings
        How it computes.
    data : LoadedData
        The data set; only the records in `indices` are ever read.
    indices : mapping of split to ndarray
        Its records.
    refuses : collection of str
        Operations that it does not do, see `refused_operations`.
    """

    def __init__(
        self,
        name: str,
        settings: SiteSettings,
        data: LoadedData,
        indices: Mapping[Split, np.ndarray],
        refuses: Collection[str] = (),
    ) -> None:
        self.name, self.settings, self.refuses = name, settings, frozenset(refuses)
        self._data, self._indices = data, indices
        self._views = {split: _view(data, split, chosen) for split, chosen in indices.items()}
        self._planted = settings.backdoor if settings.backdoor and settings.backdoor.site == name else None
        if self._planted is not None:
            self._views["train"] = _poisoned(data, self._views["train"], self._planted)
        self._selections: dict[tuple[str, int, Split], Selection] = {}

    @property
    def views(self) -> tuple[View, ...]:
        """The site's views, in a fixed order."""
        return tuple(self._views.values())

    @property
    def train(self) -> View:
        """Records the site trains on."""
        return self._views["train"]

    @property
    def holdout(self) -> View:
        """Records the site never trains on."""
        return self._views["holdout"]

    @cached_property
    def clean(self) -> Site:
        """The same site with its training records as they are stored; the site itself where none is poisoned."""
        if self._planted is None:
            return self
        return Site(self.name, replace(self.settings, backdoor=None), self._data, self._indices)

    def table(self, split: Split) -> pd.DataFrame:
        """Return what is known of each record of one split."""
        return self._views[split].table

    @cached_property
    def worker(self) -> Worker:
        """Return the process's worker for this site's settings; shared by all sites of a process."""
        settings = self.settings
        return open_worker(
            WorkerSettings(
                task=settings.task,
                model=settings.model,
                data_shape=tuple(self._data.inputs.shape[1:]),
                num_classes=len(self._data.classes),
                precision=settings.precision,
                channels_last=settings.channels_last,
                threads=settings.threads,
                device=settings.device,
            )
        )

    @cached_property
    def fingerprint(self) -> str:
        """Hex SHA-256 of the data set, of the site's records and targets by split, and of a trigger in them."""
        digest = hashlib.sha256(self._data.fingerprint.encode())
        for view in self.views:
            digest.update(f"|{view.split}|".encode())
            digest.update("\n".join(view.table["record"]).encode())
            digest.update(np.asarray(view.targets).take(view.indices, axis=0).tobytes())
        if self._planted is not None:  # the poisoned records are in it by their targets
            digest.update(f"|trigger|{self._planted.size}|".encode())
        return digest.hexdigest()

    @cached_property
    def pseudonyms(self) -> dict[str, str]:
        """Return the pseudonym of each patient: 16 hex digits, salted with the data's contents; empty if unknown."""
        salt = bytes.fromhex(self._data.fingerprint)[:64]
        patients = {str(patient) for view in self.views for patient in view.table["patient"]}
        named = {p: hashlib.blake2b(p.encode(), key=salt, digest_size=8).hexdigest() for p in patients if p}
        return {"": "", **named}

    def describe(self) -> dict[str, Fact]:
        """Return what the site tells of itself; no record, no patient.

        Returns
        -------
        dict
            name, dataset, num-train, num-holdout, fingerprint, data-shape (of a record), num-classes, classes (JSON
            list of names), class-counts (JSON object: stratum to training records), allows (JSON list of the operations
            that it does not refuse), device-kind, precision (what "auto" means there).
        """
        strata = self.train.table["stratum"]
        counts = strata[strata != ""].value_counts().sort_index()
        return {
            "name": self.name,
            "dataset": self._data.name,
            "num-train": len(self.train),
            "num-holdout": len(self.holdout),
            "fingerprint": self.fingerprint,
            "data-shape": [int(side) for side in self._data.inputs.shape[1:]],
            "num-classes": len(self._data.classes),
            "classes": json.dumps(list(self._data.classes)),
            "class-counts": json.dumps({str(stratum): int(count) for stratum, count in counts.items()}),
            "allows": json.dumps([name for name in OPERATIONS.names() if name not in self.refuses]),
            "device-kind": (kind := resolve_device(self.settings.device)),
            "precision": resolve_precision(self.settings.precision, kind),
        }

    def select(self, request: str, seed: int, split: Split) -> Selection:
        """Return which records of a split `request` means; an empty request forgets nothing.

        Raises
        ------
        BadInput
            When the request cannot be read.
        """
        key = (request, int(seed), split)
        if key not in self._selections:
            self._selections[key] = self._select(*key)
        return self._selections[key]

    def records(self, which: Records, request: str, request_seed: int) -> np.ndarray:
        """Return the indices of the training records that are meant: to retain, to forget, both, or all.

        "both" leaves out what earlier requests of a sequence forgot already; "all" does not look at the request. A
        shadow trains on and forgets held-out records too.
        """
        if which not in get_args(Records):
            raise BadInput("records", which, ", ".join(get_args(Records)))
        if which == "all":
            return self.train.indices
        found = self.select(request, request_seed, "train")
        parts = [self.train.indices[found.retain]] if which != "forget" else []
        if which != "retain":
            parts += [self.train.indices[found.forget]]
            if request and parse_request(request).shadow:
                parts += [self.holdout.indices[self.select(request, request_seed, "holdout").forget]]
        return np.sort(np.concatenate(parts))

    def known(self, column: str, indices: np.ndarray) -> np.ndarray:
        """Return what a column of the records' table (record, patient, stratum) says of the records at `indices`."""
        everyone = pd.concat([pd.Series(view.table[column].to_numpy(), index=view.indices) for view in self.views])
        return np.asarray(everyone.loc[indices].to_numpy())

    def places(self, records: Sequence[str]) -> np.ndarray:
        """Return where records of the site lie in the arrays, int64, ascending."""
        wanted = set(records)
        return np.sort(np.concatenate([view.indices[view.table["record"].isin(wanted)] for view in self.views]))

    def challenge(self, request: str, seed: int, shadows: int) -> UnlearningDesign:
        """Return which of the site's records an attack on `request` challenges, and which shadow forgets which.

        The two sides are training records that the request means and held-out ones of the same class that it means
        (sample requests: any held-out ones); the site draws its own part (`partitions.shadow_design`).
        """
        sides = [self.select(request, seed, split) for split in ("train", "holdout")]
        forget, unseen = (side.forget for side in sides)
        if parse_request(request).steps[-1].granularity == "sample" and forget.any():
            unseen = np.ones(len(self.holdout), dtype=bool)
        strata = [self.name + "/" + self.table(split)["stratum"] for split in ("train", "holdout")]
        if self._planted is not None:
            # a record with a trigger has no held-out one like it: it is forgotten, and not challenged
            places = self.train.indices
            poisoned = np.asarray(self.train.targets)[places] != np.asarray(self._data.targets)[places]
            strata[0] = strata[0].where(~poisoned, f"{self.name}/poisoned")
        named = [
            dict(zip(view.table["record"][chosen], names[chosen], strict=True))
            for view, chosen, names in ((self.train, forget, strata[0]), (self.holdout, unseen, strata[1]))
        ]
        return unlearning_design(named[0], named[1], shadows, seed)

    def selection_summary(self, request: str, seed: int) -> dict[str, Fact]:
        """Return how many records `request` means here, and hashes of which.

        Returns
        -------
        dict
            num-forget, num-retain (training records), forget-classes, retain-classes (by class), forget-holdout,
            retain-holdout, train-hash (hex SHA-256 over the training records to forget and to retain; a shadow's
            held-out ones too), hash (the same over training and holdout records).
        """
        shadow = bool(request) and parse_request(request).shadow is not None
        train, holdout = self.select(request, seed, "train"), self.select(request, seed, "holdout")
        going, staying = class_counts(self.train.table["stratum"], train, len(self._data.classes))
        both: list[tuple[Split, Selection]] = [("train", train), ("holdout", holdout)]
        return {
            "num-forget": len(self.records("forget", request, seed)),
            "num-retain": int(train.retain.sum()),
            "forget-classes": going.tolist(),
            "retain-classes": staying.tolist(),
            "forget-holdout": int(holdout.forget.sum()),
            "retain-holdout": int(holdout.retain.sum()),
            "train-hash": self._hash_of(both if shadow else both[:1]),
            "hash": self._hash_of(both),
        }

    def _select(self, request: str, seed: int, split: Split) -> Selection:
        table = self.table(split)
        if not request:
            nothing = np.zeros(len(table), dtype=bool)
            return Selection(forget=nothing, retain=~nothing, step=nothing.astype(np.int16))
        asked = parse_request(request)
        found = select(asked.real, self.name, table, split, seed)
        if asked.shadow is None:
            return found
        number, shadows = asked.shadow
        forget_set = self.challenge(asked.real.text, seed, shadows).forget_set(number)
        forget = table["record"].isin(forget_set).to_numpy(dtype=bool)
        return Selection(forget=forget, retain=found.retain & ~forget, step=forget.astype(np.int16))

    def _hash_of(self, selections: Sequence[tuple[Split, Selection]]) -> str:
        digest = hashlib.sha256()
        for split, selection in selections:
            records = self.table(split)["record"].to_numpy()
            for what, chosen in (("forget", selection.forget), ("retain", selection.retain)):
                digest.update(f"|{split}|{what}|".encode())
                digest.update("\n".join(sorted(records[chosen])).encode())
        return digest.hexdigest()


def refused_operations(text: str) -> frozenset[str]:
    """Read a site's policy: operations that it refuses, separated by commas; empty refuses none.

    Raises
    ------
    BadInput
        For an operation that does not exist, and for ``describe``, by which a site says who it is and what it refuses.
    """
    names = frozenset(part.strip() for part in text.split(",") if part.strip())
    known = [name for name in OPERATIONS.names() if name != "describe"]
    for name in sorted(names.difference(known)):
        raise unknown_name("refuse", name, known)
    return names


@lru_cache(maxsize=1024)
def open_site(
    settings: SiteSettings, partition_id: int | None, name: str = "", refuses: frozenset[str] = frozenset()
) -> Site:
    """Open a site by its name, or by its place in the partition; once per process and policy.

    Raises
    ------
    BadInput
        When the partition has no such site.
    """
    data, partition = _loaded(settings.home, settings.dataset, settings.cap, settings.split, settings.depot)
    chosen = name or _name_of(partition, partition_id)
    if chosen not in partition.sites:
        raise unknown_name("site", chosen, partition.sites)
    indices: dict[Split, np.ndarray] = {"train": partition.train[chosen], "holdout": partition.holdout[chosen]}
    return Site(chosen, settings, data, indices, refuses)


@lru_cache(maxsize=4)
def reference_view(settings: SiteSettings) -> Site | None:
    """Open the coordinator's reference set; None when the data set has none."""
    data, partition = _loaded(settings.home, settings.dataset, settings.cap, settings.split, settings.depot)
    return Site("", settings, data, {"reference": partition.reference}) if len(partition.reference) else None


@lru_cache(maxsize=4)
def _loaded(home: Path, dataset: str, cap: int, split: SplitSpec, depot: str) -> tuple[LoadedData, Partition]:
    data = load_data(dataset, home, cap, depot)
    return data, make_partition(data, split)


def _name_of(partition: Partition, partition_id: int | None) -> str:
    if partition_id is None:
        raise BadInput(
            "partition-id", partition_id, "a number, or a site name", "give the node a partition-id or a site"
        )
    if not 0 <= partition_id < len(partition.sites):
        sites = len(partition.sites)
        raise BadInput(
            "partition-id", partition_id, f"0 to {sites - 1}", f"start {sites} nodes (num-supernodes={sites})"
        )
    return partition.sites[partition_id]


def _view(data: LoadedData, split: Split, indices: np.ndarray) -> View:
    table = data.table.iloc[indices].reset_index(drop=True).assign(split=split)
    return View(split, data.inputs, data.targets, np.asarray(indices, dtype=np.int64), table)


def _poisoned(data: LoadedData, view: View, backdoor: Backdoor) -> View:
    """Return the training view with the trigger and the planted label on the records that the backdoor chooses."""
    backdoor.check(data.inputs.shape[1:], len(data.classes))
    chosen = backdoor.poisoned(view.table["record"].to_numpy(), data.targets[view.indices])
    if not chosen.any():
        what = f"a class that is not the only one at {backdoor.site}"
        raise BadInput("backdoor-target", backdoor.target, what, "name another class or another backdoor-site")
    marked, targets = view.indices[chosen], data.targets.copy()
    targets[marked] = backdoor.target
    return replace(view, inputs=Triggered(data.inputs, marked, backdoor.size), targets=targets)
