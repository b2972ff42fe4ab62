"""What can be refused before anything starts: every name in a group's settings, method settings, requests, paths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flower_apps.cells import methods_by_request, normal
from flower_apps.settings import GroupSettings
from flower_apps.tracking.base import check_tracking
from partitions.errors import BadInput, naming, unknown_name


def check_groups(groups: Sequence[GroupSettings]) -> None:
    """Check every group; raises `BadInput` at the first setting that no run could satisfy. Reads no data set."""
    for settings in groups:
        _check_names(settings)
        if settings.original and not Path(settings.original).is_file():
            raise BadInput("original", settings.original, "a safetensors file that exists")
        check_tracking(settings.tracking_names())
        _check_methods(settings)
        _check_search(settings)
        _check_device(settings)


def check_experiments(groups: Sequence[GroupSettings]) -> None:
    """Check every group as `check_groups` does; what is wrong is told of with the experiment in front of the key."""
    for settings in groups:
        with naming(settings.name):
            check_groups([settings])


def _check_names(settings: GroupSettings) -> None:
    from clients.catalogue import MODELS, TASKS
    from partitions.catalogue import DATASETS, SPLITS

    DATASETS.get(settings.dataset)
    SPLITS.get(settings.split)
    task = TASKS.get(settings.task)
    if settings.backdoor_site and not task.has_logits:
        allowed = f"empty: a trigger stands for a class, and task {settings.task} has no class logits"
        raise BadInput("backdoor-site", settings.backdoor_site, allowed)
    MODELS.get(settings.model)


def _check_device(settings: GroupSettings) -> None:
    """Refuse a device that is not here and a precision that it cannot do: simulated sites compute on this machine."""
    from clients.worker import check_precision, resolve_device, resolve_precision

    kind = resolve_device(settings.device)
    check_precision(resolve_precision(settings.precision, kind), kind)


def _check_search(settings: GroupSettings) -> None:
    from flower_apps.search_space import spaces_of

    spaces_of(settings)


def facts_given(settings: GroupSettings) -> dict[str, bool]:
    """Return what a group gives its methods, as `MethodDeclaration.unfit` asks for it."""
    from clients.catalogue import TASKS

    return {
        "has_history": not settings.original,
        "has_logits": TASKS.get(settings.task).has_logits,
        "every_round": settings.history_every == 1,
    }


def _check_methods(settings: GroupSettings) -> None:
    """Check that every method exists, takes its settings and can do at least one of the requests.

    One that can do some of them runs on those; the results say why it did not run on the others.
    """
    from partitions.requests import GRAMMAR, parse_request
    from strategies.registry import METHODS

    if not settings.request_texts():
        raise BadInput("requests", settings.requests, "at least one request", "such as client:patient-1")
    requests = [parse_request(text) for text in settings.request_texts()]
    for request in requests:
        if request.shadow is not None:
            raise BadInput("requests", request.text, GRAMMAR, "shadow federations are asked for with shadows=8")
    overrides = settings.method_overrides()
    methods = {name: METHODS.get(name) for name in settings.method_names()}
    for name in overrides:
        METHODS.get(name)
        if name not in methods:
            raise unknown_name("overrides", name, methods)
    runs = {normal(text): names for text, names in methods_by_request(settings).items()}
    given = facts_given(settings)
    for name, method in methods.items():
        config = method.resolve_config(settings.preset, overrides.get(name, {}))
        reasons = {
            request.text: method.unfit(request.steps[0].granularity, **given, config=config)
            for request in requests
            if name in runs.get(request.text, ())
        }
        if reasons and all(reasons.values()):
            text, why = next(iter(reasons.items()))
            raise BadInput(
                "methods", name, f"a method that can do at least one of the requests ({text}: {why})", f"drop {name}"
            )
