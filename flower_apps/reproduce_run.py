"""How `lethe reproduce` computes: as `lethe run` does, without its table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flower_apps.settings import GroupSettings
from partitions.errors import RunFailed


def by_command(workers: int) -> Callable[[GroupSettings], None]:
    """Return what runs a group through Flower; `workers` sites at once, 0: as many as its settings say.

    What it returns raises `RunFailed` when the group did not finish, `BadInput` for settings that cannot run.
    """

    def execute(settings: GroupSettings) -> None:
        from flower_apps.command_run import run_experiments
        from flower_apps.preflight import check_groups

        check_groups([settings])
        code = run_experiments(
            [settings],
            home=Path(settings.home),
            out=Path(settings.out),
            workers=workers or max(1, settings.workers),
            jobs=1,
            gpus=_gpus(settings),
            json_output=False,
            fresh=False,
            manifest=None,
            show=False,
        )
        if code:
            raise RunFailed(f"the run failed, for the reason above; run folder: {settings.out}")

    return execute


def _gpus(settings: GroupSettings) -> int:
    if settings.device in ("cpu", "mps"):
        return 0
    import torch

    return torch.cuda.device_count()
