"""What the coordinator knows of its sites: descriptions and selections, asked by message or, in simulation, locally."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from clients.site import SiteSettings, open_site
from flower_apps.depot import depot_url
from flower_apps.settings import GroupSettings
from partitions.backdoor import Backdoor
from partitions.catalogue import DATASETS
from partitions.difficulty import difficulty
from partitions.errors import RunFailed, unknown_name
from partitions.loading import load_data
from partitions.partition import Partition, SplitSpec, make_partition
from partitions.requests import check_request, parse_request
from strategies.base import RequestPlan, SiteCounts
from strategies.federation import Federation
from strategies.wire import SiteReply

Facts = dict[str, dict[str, Any]]
"""Site name to what that site answered, in the order of names."""


class Sites(Protocol):
    """The two questions every site answers without showing a record."""

    def describe(self) -> Facts:
        """Return name, counts, fingerprint and permissions of every site."""

    def select(self, request: str, seed: int) -> Facts:
        """Return how many records of every site a request means, and a hash of which."""


def site_settings(settings: GroupSettings, home: Path) -> SiteSettings:
    """Return the part of the settings that a site needs."""
    return SiteSettings(
        home=home,
        depot=depot_url(settings),
        dataset=settings.dataset,
        cap=settings.cap,
        split=split_spec(settings),
        task=settings.task,
        model=settings.model,
        batch_size=settings.batch_size,
        last_batch=settings.last_batch,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        precision=settings.precision,
        channels_last=settings.channels_last,
        threads=settings.threads,
        device=settings.device,
        backdoor=backdoor_of(settings),
    )


def split_spec(settings: GroupSettings) -> SplitSpec:
    """Return how the records are spread over the sites."""
    return SplitSpec(
        name=settings.split,
        sites=settings.sites,
        alpha=settings.alpha,
        sole_holder=settings.sole_holder,
        holdout=settings.holdout,
        seed=settings.split_seed,
    )


def backdoor_of(settings: GroupSettings) -> Backdoor | None:
    """Return the backdoor that the settings plant; None when they plant none."""
    if not settings.backdoor_site:
        return None
    return Backdoor(
        site=settings.backdoor_site,
        target=settings.backdoor_target,
        fraction=settings.backdoor_fraction,
        size=settings.backdoor_size,
        seed=settings.split_seed if settings.backdoor_seed < 0 else settings.backdoor_seed,
    )


def partition_of(settings: GroupSettings, home: Path) -> Partition:
    """Return the simulated partition, fetching and preparing the data set when it is not there yet."""
    return _partition(settings.dataset, home, settings.cap, depot_url(settings), split_spec(settings))


@cache
def give_data(dataset: str, home: Path, cap: int, depot: str) -> None:
    """Give the depot what it lacks of a data set, once a process; only whoever runs the experiment does."""
    if depot:
        load_data(dataset, home, cap, depot, give=True)


@cache
def _partition(dataset: str, home: Path, cap: int, depot: str, split: SplitSpec) -> Partition:
    """Read and split once a process, however many groups ask."""
    _renew_damaged(dataset, home, cap)
    return make_partition(load_data(dataset, home, cap, depot), split)


@cache
def _renew_damaged(dataset: str, home: Path, cap: int) -> None:
    """Read the prepared records once a process, however many groups use them."""
    DATASETS.get(dataset).renew_damaged(home, cap)


class LocalSites:
    """Simulated sites, opened in this process."""

    def __init__(self, settings: GroupSettings, home: Path) -> None:
        self._settings = site_settings(settings, home)
        self._names = sorted(partition_of(settings, home).sites)

    def describe(self) -> Facts:
        """See `Sites.describe`."""
        return {name: dict(open_site(self._settings, None, name).describe()) for name in self._names}

    def select(self, request: str, seed: int) -> Facts:
        """See `Sites.select`."""
        return {
            name: dict(open_site(self._settings, None, name).selection_summary(request, seed)) for name in self._names
        }


class FederatedSites:
    """The sites of a running federation."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation

    def describe(self) -> Facts:
        """See `Sites.describe`."""
        return {name: dict(described) for name, described in self._federation.roster.described.items()}

    def select(self, request: str, seed: int) -> Facts:
        """See `Sites.select`."""
        config = {"request": request, "request-seed": seed}
        replies = answered(self._federation.ask_all("query", "select", config))
        return {reply.site: {**reply.metrics, **reply.config} for reply in replies}


def answered(replies: list[SiteReply]) -> list[SiteReply]:
    """Return `replies` when every site answered; raises `RunFailed` naming the first that raised.

    A training round may go on without a failed site; a question or a score that lacks one would be wrong.
    """
    for reply in replies:
        if reply.error:
            raise RunFailed(f"{reply.site} raised: {reply.error}")
    return replies


def check_backdoor(settings: GroupSettings, facts: Facts) -> None:
    """Refuse a backdoor at a site that is not here; raises `BadInput`. The site itself refuses what it cannot plant."""
    if settings.backdoor_site and settings.backdoor_site not in facts:
        raise unknown_name("backdoor-site", settings.backdoor_site, facts)


def check_sites(facts: Facts, request: str, selection: Facts) -> None:
    """Refuse a request that names nobody, selects nothing or selects everything; raises `BadInput`."""
    classes: list[str] = json.loads(str(next(iter(facts.values()))["classes"]))
    counts = {name: (int(found["num-forget"]), int(found["num-retain"])) for name, found in selection.items()}
    check_request(parse_request(request), list(facts), classes, counts)


def difficulty_of(facts: Facts, selection: Facts) -> dict[str, Any]:
    """Return how hard a request is by what it takes from whom (`partitions.difficulty`); empty without class counts."""
    classes: list[str] = json.loads(str(next(iter(facts.values()))["classes"]))
    counts = [[list(found[key]) for found in selection.values()] for key in ("forget-classes", "retain-classes")]
    if not all(any(map(sum, side)) for side in counts):
        return {}  # the records have no class
    return difficulty(counts[0], counts[1], classes, list(selection)).to_json()


def request_plan(request: str, seed: int, selection: Facts) -> RequestPlan:
    """Return what a strategy needs to know of a request."""
    parsed = parse_request(request)
    return RequestPlan(
        text=parsed.text,
        seed=seed,
        granularity=parsed.steps[-1].granularity,
        departed=parsed.departed,
        counts={
            name: SiteCounts(num_forget=int(found["num-forget"]), num_retain=int(found["num-retain"]))
            for name, found in selection.items()
        },
    )


def agreed(facts: Facts, key: str) -> str:
    """Return what all sites say of ``device-kind`` or ``precision``; raises `RunFailed` when they differ."""
    told = sorted({str(found[key]) for found in facts.values()})
    if len(told) > 1:
        setting = key.removesuffix("-kind")
        raise RunFailed(f"the sites differ in {setting} ({', '.join(told)}); set {setting} explicitly")
    return told[0]
