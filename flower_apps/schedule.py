"""What runs when and where: groups of one original one after the other, others side by side, the longest first.

Pure: nothing here starts, reads or measures anything. `flower_apps.lanes` does what this decides.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flower_apps.settings import GroupSettings
from flower_apps.sites import site_settings

CELL_KEYS = frozenset(
    {
        *("name", "requests", "request_seed", "methods", "preset", "overrides", "exclude"),
        *("unlearn_epochs", "unlearn_seeds", "recovery_rounds", "recovery_epochs", "recovery_max_norm"),
        *("relearn_epochs", "evaluate_seeds", "shadows", "features"),
        *("search", "search_sampler", "search_trials", "search_seed", "search_rule", "search_checkpoint"),
        *("evaluator", "track", "timeout", "keep_histories", "workers", "gpu_share", "jobs", "lane"),
    }
)
"""Settings in which groups that share an original may differ; those that are not here must agree."""
SWITCH = 15.0
"""Seconds that another Flower run takes to its first message (SuperLink's answer, Ray, workers, torch)."""
PER_RECORD = {"cnn": 1 / 1500, "resnet18": 1 / 60}
"""Seconds of training a record once on one core, roughly; another model counts as the first."""

Scalar = str | int | float | bool
Expected = Callable[[GroupSettings], float]
"""How long a group takes on one worker, in seconds; only the order matters."""


@dataclass(frozen=True)
class Work:
    """One group, and what decides when and where it runs.

    Attributes
    ----------
    group : GroupSettings
        The group.
    original : hashable
        Equal for groups that share an original.
    place : hashable
        Equal for groups that one Flower run can execute: its sites work with settings of their own.
    seconds : float
        How long it may take.
    """

    group: GroupSettings
    original: Hashable
    place: Hashable
    seconds: float


@dataclass(frozen=True)
class Slot:
    """Where one of several jobs runs.

    Attributes
    ----------
    number : int
        From 0 on.
    gpus : tuple of int
        The GPUs that its sites see, by their place among those of the command; empty without any.
    sharing : int
        Jobs that see the same GPUs, itself included; 1 where they are its own.
    """

    number: int
    gpus: tuple[int, ...] = ()
    sharing: int = 1


def works_of(groups: Iterable[GroupSettings], expected: Expected) -> list[Work]:
    """Return the work that groups are."""
    return [Work(group, _original(group), _place(group), expected(group)) for group in groups]


def _original(group: GroupSettings) -> Hashable:
    return tuple((key, value) for key, value in group if key not in CELL_KEYS)


def _place(group: GroupSettings) -> Hashable:
    return (site_settings(group, Path(group.home)), group.workers, group.gpu_share)


def expected_work(group: GroupSettings, records: int) -> float:
    """Return roughly how long a group takes, from what it asks for: rounds x epochs x records of every training.

    Parameters
    ----------
    group : GroupSettings
        The group.
    records : int
        Training records of all sites together.
    """
    requests = sum(text.count(">") + 1 for text in group.request_texts())
    arms = len(group.method_names()) + 1
    original = 0 if group.original else group.rounds * group.local_epochs * group.fraction_train
    recovery = group.recovery_rounds * group.recovery_epochs
    cell = group.unlearn_epochs + recovery + group.relearn_epochs
    gold = group.rounds * group.local_epochs * group.fraction_train + recovery
    asked = requests * len(group.seeds("unlearn")) * (gold + arms * cell)
    federations = 1 + 2 * group.shadows
    return records * PER_RECORD.get(group.model, PER_RECORD["cnn"]) * (original + asked) * federations


class Backlog:
    """The work that waits, handed out so that originals stay together and the longest begins first.

    Parameters
    ----------
    works : sequence of Work
        All that is to be done.
    """

    def __init__(self, works: Sequence[Work]) -> None:
        self._waiting = sorted(works, key=lambda work: -work.seconds)
        self._busy: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, lane: Work | None = None, *, split: bool = True) -> Work | None:
        """Take the next work; None when there is none for the one who asks.

        Parameters
        ----------
        lane : Work, optional
            What the one who asks has done last, whose Flower run can go on with work of the same place.
        split : bool
            Whether to take a group whose original another job has: it waits for that job to train it.
        """
        found = self._next(lane, split)
        if found is not None:
            self._waiting.remove(found)
            self._busy[found.original] += 1
        return found

    def give_back(self, work: Work) -> None:
        """Let work that was taken wait again."""
        self.end(work)
        self._waiting.insert(0, work)

    def end(self, work: Work) -> None:
        """Say that work that was taken has ended."""
        self._busy[work.original] -= 1
        self._busy += Counter()  # drops what is 0

    def _next(self, lane: Work | None, split: bool) -> Work | None:
        fits = [work for work in self._waiting if lane is None or work.place == lane.place]
        same = [work for work in fits if lane is not None and work.original == lane.original]
        if same:
            return same[0]
        untouched = [work for work in self._waiting if work.original not in self._busy]
        if untouched:
            longest = max(untouched, key=lambda work: self._length(work, lane))
            return longest if longest in fits else None
        shared = fits if split else []
        return max(shared, key=lambda work: self._length(work, lane), default=None)

    def _length(self, work: Work, lane: Work | None) -> float:
        """Return the seconds of all that waits of a work's original, more where no Flower run need be started."""
        waits = sum(other.seconds for other in self._waiting if other.original == work.original)
        return waits + (SWITCH if lane is not None and work.place == lane.place else 0.0)


def slots(jobs: int, gpus: int) -> list[Slot]:
    """Return a slot for each job, the GPUs shared out: each its own where they suffice, else one for several."""
    if not gpus:
        return [Slot(number) for number in range(jobs)]
    if gpus >= jobs:
        ends = [number * gpus // jobs for number in range(jobs + 1)]
        return [Slot(number, tuple(range(ends[number], ends[number + 1]))) for number in range(jobs)]
    users = Counter(number % gpus for number in range(jobs))
    return [Slot(number, (number % gpus,), users[number % gpus]) for number in range(jobs)]


def side_by_side(groups: Iterable[GroupSettings], jobs: int, asked: int | None) -> int:
    """Return how many of a command's jobs there is work for.

    Parameters
    ----------
    groups : iterable of GroupSettings
        All of the command, in the cache or not: what is measured must not depend on what was there already.
    jobs : int
        At most.
    asked : int or None
        Workers of the command; with None a job that has no original of its own leaves its cores to the others.
    """
    found = list(groups)
    return max(1, min(jobs, len(found) if asked is not None else len({_original(group) for group in found})))


def workers_at_once(group: GroupSettings, sites: int, *, asked: int | None, cores: int, jobs: int) -> int:
    """Return how many sites of a group work at once, 1 at least.

    Parameters
    ----------
    group : GroupSettings
        Its ``workers`` is the most.
    sites : int
        How many there are.
    asked : int or None
        Of the command; None shares out the cores.
    cores : int
        Of the machine.
    jobs : int
        Jobs that share them, see `side_by_side`.
    """
    most = min(sites, group.workers or sites)
    return max(1, min(most, asked or cores // group.threads // jobs))


def federation(
    group: GroupSettings, sites: int, workers: int, slot: Slot, limit: int | None = None
) -> dict[str, Scalar]:
    """Return what Flower and Ray are asked for on this machine: sites at once, each with its threads and GPU share.

    Parameters
    ----------
    group : GroupSettings
        Its threads and ``gpu-share``.
    sites, workers : int
        All of them, and at most at once.
    slot : Slot
        Its GPUs.
    limit : int, optional
        Sites at once on a GPU at most, those of other jobs on it included; without GPUs, sites at once.
    """
    each = _each(group, workers, slot, limit)
    asked: dict[str, Scalar] = {"num-supernodes": sites, "client-resources-num-cpus": group.threads}
    if slot.gpus:
        asked |= {"client-resources-num-gpus": gpu_part(each), "init-args-num-gpus": len(slot.gpus)}
    workers = min(workers, each * max(1, len(slot.gpus)))
    return asked | {"init-args-num-cpus": workers * group.threads}


def at_once(group: GroupSettings, workers: int, slot: Slot, limit: int | None = None) -> int:
    """Return how many sites are on one GPU at once, those of other jobs on it included; arguments as `federation`.

    With a limit below the jobs that share the GPU, not all of them may be on it at once.
    """
    total = _each(group, workers, slot, limit) * slot.sharing
    return total if limit is None else min(total, max(limit, 1) if slot.sharing > 1 else total)


def sites_at_once(asked: Mapping[str, Scalar]) -> int:
    """Return how many sites really work at once with what `federation` asks for."""
    return int(asked["init-args-num-cpus"]) // int(asked["client-resources-num-cpus"])


def _each(group: GroupSettings, workers: int, slot: Slot, limit: int | None) -> int:
    """Return how many of a job's own sites are on one of its GPUs at once: at least one."""
    each = math.ceil(workers / max(1, len(slot.gpus)))
    if group.gpu_share and slot.gpus:
        each = min(each, fitting(group.gpu_share) // slot.sharing)
    if limit is not None:
        each = min(each, limit // slot.sharing)
    return max(1, each)


def fitting(share: float) -> int:
    """Return how many sites fit on a GPU, each with a share of it above 0."""
    return int(1 / share + 1e-6)


def gpu_part(each: int) -> float:
    """Return the share of a GPU with which just `each` sites fit: Ray counts in ten-thousandths."""
    return 1.0 if each <= 1 else math.floor(10_000 / each) / 10_000
