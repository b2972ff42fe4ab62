"""Runs groups in lanes: Flower runs side by side, as many as jobs and cores allow, each fed one group after another."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from flower_apps import schedule
from flower_apps.cluster import Cluster
from flower_apps.control import Scalar
from flower_apps.lane import NO_MORE, Lane
from flower_apps.launcher import Launcher, Relief
from flower_apps.runs import group_id
from flower_apps.schedule import Backlog, Expected, Slot, Work
from flower_apps.settings import GroupSettings
from flower_apps.sites import partition_of
from flower_apps.watch import Ending, Event, OnEvent, ended
from partitions.errors import BadInput

OnEnd = Callable[[GroupSettings, str, Path], None]
"""Gets a group, why it failed (empty: it did not) and the log of the Flower run that executed it."""
SMALLER = "lower batch-size, or save memory with precision=bf16-mixed or channels-last=true"


@dataclass(frozen=True)
class Means:
    """What a command may use.

    Attributes
    ----------
    jobs : int
        Flower runs side by side at most.
    workers : int or None
        Sites at work at once in each; None shares out the cores.
    gpus : int
        GPUs to share out, real or logical.
    cores : int
        Of this machine, that this process may use.
    at_once : mapping of str to int
        Sites at once on a GPU at most, by group id; what is not there is not limited.
    cluster : Cluster or None
        The Ray cluster to work on; None for this machine.
    share : int
        Jobs among which the cores are shared out: `flower_apps.schedule.side_by_side` of all groups of the command.
    """

    jobs: int = 1
    workers: int | None = None
    gpus: int = 0
    cores: int = 1
    at_once: Mapping[str, int] = field(default_factory=dict)
    cluster: Cluster | None = None
    share: int = 1

    def sharing(self, groups: Sequence[GroupSettings]) -> Means:
        """Return these means for a command of such groups."""
        return replace(self, share=schedule.side_by_side(groups, self.jobs, self.workers))

    def on(self, cluster: Cluster) -> Means:
        """Return these means on a Ray cluster, which one job takes the whole of."""
        return replace(self, cluster=cluster, share=1)

    def workers_of(self, group: GroupSettings, sites: int) -> int:
        """Return how many of a group's sites work at once."""
        cores = int(self.cluster.cpus) if self.cluster else self.cores
        workers = schedule.workers_at_once(group, sites, asked=self.workers, cores=cores, jobs=self.share)
        return self.cluster.workers(workers, group.threads) if self.cluster else workers


class Lanes:
    """Runs groups, each to its end or its failure.

    Parameters
    ----------
    groups : sequence of GroupSettings
        What to run; ``home`` and ``out`` are set, and ``run.json`` there has them.
    means : Means
        What to use, with the jobs that share the cores.
    expected : callable
        How long a group takes, see `flower_apps.schedule.Expected`.
    listener : callable
        Given a group, returns what gets its events.
    on_end : callable
        Called once for each group, from a thread of its lane.
    say : callable
        Gets what is to be told about no group in particular.
    """

    def __init__(
        self,
        groups: Sequence[GroupSettings],
        means: Means,
        expected: Expected,
        listener: Callable[[GroupSettings], OnEvent],
        on_end: OnEnd,
        say: Callable[[str], None],
    ) -> None:
        self.means, self.listener, self.on_end, self.say = means, listener, on_end, say
        self._backlog = Backlog(schedule.works_of(groups, expected))
        self._changed = threading.Condition()
        self.sites = {group_id(group): len(partition_of(group, Path(group.home)).sites) for group in groups}
        self._used: dict[int, int] = {}
        self._on_gpu: dict[int, tuple[int, ...]] = {}
        self._at_once: int | None = None
        self._waited = False
        self._cancel = threading.Event()

    def run(self, home: Path) -> None:
        """Run all; an exception of one lane, such as `BadInput`, ends the others."""
        jobs = 1 if self.means.cluster else min(self.means.jobs, len(self._backlog))
        if self.means.cluster and self.means.jobs > 1:
            self.say("one job at a time on a Ray cluster: Flower takes the whole of it")
        slots = schedule.slots(jobs, self.means.gpus)
        cluster = self.means.cluster.address if self.means.cluster else ""
        visible = _visible(self.means.gpus)
        with ExitStack() as stack:
            if jobs > 1 and self.means.gpus:
                seen = [[visible[gpu] for gpu in slot.gpus] for slot in slots]
                launchers = [stack.enter_context(Launcher(home, gpus=gpus)) for gpus in seen]
            else:
                launchers = [stack.enter_context(Launcher(home, cluster=cluster))] * jobs
            pool = stack.enter_context(ThreadPoolExecutor(jobs, thread_name_prefix="lane"))
            stack.callback(self._stop)
            done, _ = wait(
                [pool.submit(self._work, slot, launcher) for slot, launcher in zip(slots, launchers, strict=True)],
                return_when=FIRST_EXCEPTION,
            )
            for future in done:
                future.result()

    def _stop(self) -> None:
        with self._changed:
            self._cancel.set()
            self._changed.notify_all()

    def _work(self, slot: Slot, launcher: Launcher) -> None:
        """Run one lane after another until no work is left for this slot."""
        while (start := self._start(slot)) is not None:
            try:
                self._run_lane(slot, launcher, *start)
            finally:
                with self._changed:
                    del self._used[slot.number]
                    self._on_gpu.pop(slot.number, None)
                    self._changed.notify_all()

    def _start(self, slot: Slot) -> tuple[Work, int] | None:
        """Take work for a new lane, and how many sites of it work at once; waits for cores, and for room on a GPU."""
        means = self.means
        with self._changed:
            while not self._cancel.is_set():
                work = self._backlog.take(split=means.workers is not None)
                if work is None:
                    return None
                workers = means.workers_of(work.group, self.sites[group_id(work.group)])
                needed, used = workers * work.group.threads, sum(self._used.values())
                has_cores = not used or means.cluster is not None or needed <= means.cores - used
                if has_cores and self._has_room(slot, self.limit(work.group)):
                    self._used[slot.number] = needed
                    self._on_gpu[slot.number] = slot.gpus
                    return work, workers
                self._backlog.give_back(work)
                if not has_cores and not self._waited:
                    self._waited = True
                    self.say(f"fewer than {means.jobs} jobs side by side: this machine has {means.cores} cores")
                self._changed.wait()
        return None

    def _run_lane(self, slot: Slot, launcher: Launcher, work: Work, workers: int) -> None:
        _LaneRun(self, slot, work, workers).run(launcher, self._cancel)

    def _has_room(self, slot: Slot, limit: int | None) -> bool:
        """Tell whether a job may be on its GPU beside those that are: one may always be there alone."""
        others = [number for number, gpus in self._on_gpu.items() if gpus == slot.gpus and number != slot.number]
        return slot.sharing == 1 or limit is None or not others or len(others) < limit

    def wait_for_room(self, slot: Slot, group: GroupSettings) -> None:
        """Leave a GPU that is too full, and wait until no more jobs are on it than may be; or until all is to end."""
        with self._changed:
            self._on_gpu.pop(slot.number, None)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._cancel.is_set() or self._has_room(slot, self.limit(group)))
            self._on_gpu[slot.number] = slot.gpus

    def next_after(self, work: Work) -> Work | None:
        """Say that a lane's work has ended, and take what it goes on with; None when the lane is to end."""
        with self._changed:
            following = None if self._cancel.is_set() else self._backlog.take(work)
            self._backlog.end(work)
            self._changed.notify_all()
            return following

    def give_up(self, work: Work) -> None:
        """Say that a lane ended before its work did."""
        with self._changed:
            self._backlog.end(work)

    def limit(self, group: GroupSettings) -> int | None:
        """Return how many sites may be on a GPU at once; None where nothing limits it yet."""
        limits = [limit for limit in (self._at_once, self.means.at_once.get(group_id(group))) if limit]
        return min(limits, default=None)

    def lower(self, at_once: int) -> None:
        """Let no more sites be on a GPU at once, from now on, than `at_once`."""
        with self._changed:
            self._at_once = min(at_once, self._at_once or at_once)


class _LaneRun:
    """One lane: names its groups, passes their events on, and takes sites off a GPU that is full."""

    def __init__(self, lanes: Lanes, slot: Slot, work: Work, workers: int) -> None:
        self._lanes, self._slot, self._workers = lanes, slot, workers
        self._lane = Lane.new(Path(work.group.out))
        self._work: Work | None = None
        self._place = work.group
        self._sites = lanes.sites[group_id(work.group)]
        self._told = False
        self._begin(work)

    def run(self, launcher: Launcher, cancel: threading.Event) -> None:
        asked = self._federation()
        placed = {"lane": str(self._lane.folder), "jobs": self._lanes.means.jobs, **self._timed_with(asked)}
        result = launcher.run(
            self._place.model_copy(update=placed).to_run_config(),
            asked,
            self._lane.events_path,
            self._take,
            cancel,
            self._lane.log_path,
            relieve=self._relieve,
        )
        self._listen({"kind": "group-finished"})
        if self._work is not None:
            self._lanes.give_up(self._work)
            if result.status != "cancelled":
                self._lanes.on_end(self._work.group, result.reason, result.log_path)
        elif result.status == "failed":
            self._lanes.say(f"{result.reason}; every group had ended; log: {result.log_path}")

    def _begin(self, work: Work) -> None:
        self._work, self._listen = work, self._lanes.listener(work.group)
        self._lane.name(group_id(work.group))

    def _take(self, event: Event) -> None:
        if "group" not in event:
            if event["kind"] != "failed" or not self._told:  # where a group failed, its own event told it
                self._listen(event)
            return
        kind = {"group-started": "run-started", "group-failed": "failed"}.get(event["kind"], event["kind"])
        self._told = kind == "failed"
        self._listen({**event, "kind": kind})
        if ended(event) and self._work is not None:
            failed = event["kind"] == "group-failed"
            reason = str(event.get("reason") or "it failed without a reason") if failed else ""
            self._lanes.on_end(self._work.group, " ".join(reason.split()), self._lane.log_path)
            following = self._lanes.next_after(self._work)
            self._work = None
            if following is None:
                self._lane.name(NO_MORE)
            else:
                self._begin(following)

    def _federation(self) -> dict[str, Scalar]:
        means, limit = self._lanes.means, self._lanes.limit(self._place)
        if means.cluster is not None:
            self._at_once, asked = means.cluster.federation(self._place, self._sites, self._workers, limit)
            return asked
        self._at_once = schedule.at_once(self._place, self._workers, self._slot, limit)
        return schedule.federation(self._place, self._sites, self._workers, self._slot, limit)

    def _timed_with(self, asked: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return the sites that really work at once, as the run config that timings are recorded with has them."""
        found = (self._lanes.means.cluster or schedule).sites_at_once(asked)
        return {"workers": min(found, self._sites)}

    def _relieve(self, ending: Ending) -> tuple[Relief | None, str]:
        """See `Launcher.run`: half as many sites at once on a GPU, down to one."""
        said, size = ending.reason.rstrip("."), self._place.batch_size
        if self._at_once <= 1:
            return None, f"{said}; batch-size {size}, one site at a time on its GPU: {SMALLER}"
        before = self._at_once
        self._lanes.lower(before // 2)
        asked = self._federation()
        self._lanes.wait_for_room(self._slot, self._place)
        return Relief(self._timed_with(asked), asked), (
            f"{said}; batch-size {size}, {before} sites at once on a GPU: submitted again with {self._at_once} at once"
        )


def _visible(gpus: int) -> list[str]:
    """Return so many GPUs as CUDA_VISIBLE_DEVICES has them, from 0 on where it is not set; more may be logical ones."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not listed:
        return [str(number) for number in range(gpus)]
    names = [part.strip() for part in listed.split(",")]
    if gpus > len(names):
        raise BadInput("--gpus", gpus, f"up to {len(names)}, those of CUDA_VISIBLE_DEVICES={listed}")
    return names[:gpus]
