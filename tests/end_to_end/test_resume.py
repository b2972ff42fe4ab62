"""A run that is killed in the middle of a write, or finds the disk full, and is resumed: the files of one that was not.

In process: `Killed` stands for SIGKILL. Kills between messages are in `test_group`, those of real processes in
`test_kills`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from commands import untimed
from in_process import Killed, run_group

from evaluation import results
from flower_apps import command_run, stages
from flower_apps.lifetime import Lifetime
from flower_apps.resume import resume_run
from flower_apps.runs import RunFolder
from flower_apps.settings import GroupSettings
from strategies import history

SETTINGS = GroupSettings.parse(
    {
        "name": "small",
        "dataset": "digits",
        "cap": 20,
        "split": "dirichlet",
        "sites": 3,
        "alpha": 1.0,
        "rounds": 2,
        "local-epochs": 1,
        "batch-size": 16,
        "lr": 0.05,
        "requests": "client:site-1",
        "methods": "federaser",
        "preset": "safe",
        "unlearn-epochs": 1,
        "recovery-rounds": 2,
        "recovery-epochs": 1,
        "device": "cpu",
    }
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    run_group(SETTINGS, tmp_path_factory.mktemp("home"), out)
    return out


def after(count: int, error: BaseException, do: Callable[..., object]) -> Callable[..., object]:
    """Return `do`, which raises `error` instead of its `count`-th call, once half of the file is there."""
    seen = [0]

    def run(*arguments: object, **named: object) -> object:
        seen[0] += 1
        if seen[0] != count:
            return do(*arguments, **named)
        path = next(Path(one) for one in arguments if isinstance(one, str | Path))
        if path.parent.is_dir() and not path.exists():
            path.write_bytes(b"half of it")
        raise error

    return run


@pytest.mark.parametrize(
    ("module", "name", "count", "error"),
    [
        pytest.param(history, "save_file", 2, Killed(), id="killed while a round of training is written"),
        pytest.param(stages, "save_file", 5, Killed(), id="killed while a method's model is written"),
        pytest.param(
            history, "save_file", 7, OSError(errno.ENOSPC, "No space left on device"), id="disk full in unlearning"
        ),
        pytest.param(
            results, "write_text", 4, OSError(errno.ENOSPC, "No space left on device"), id="disk full in results"
        ),
    ],
)
def test_its_files_are_those_of_a_run_that_was_not_interrupted(
    tmp_path: Path,
    whole: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: object,
    name: str,
    count: int,
    error: BaseException,
) -> None:
    home, out = tmp_path / "home", tmp_path / "run"
    with monkeypatch.context() as patched, pytest.raises(type(error)):
        patched.setattr(module, name, after(count, error, getattr(module, name)))
        run_group(SETTINGS, home, out)
    run_group(SETTINGS, home, out)
    pd.testing.assert_frame_equal(untimed(out / "results.csv"), untimed(whole / "results.csv"))
    assert (out / "curves.csv").read_bytes() == (whole / "curves.csv").read_bytes()
    assert not list(home.glob("stages/*/*/**/.*")), "what was half written does not stay in a stage"


def test_a_resume_of_a_complete_run_that_computed_all_again_reads_the_cache_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, out = tmp_path / "home", tmp_path / "run"
    group = SETTINGS.model_copy(update={"fresh": True, "home": str(home), "out": str(out), "methods": "fedquit"})
    with Lifetime(RunFolder(out), {"fresh": True}, [group]) as lifetime:
        run_group(group, home, out)
        lifetime.completed(group)
    since = RunFolder(out).fresh_since

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("nothing is to be computed")

    monkeypatch.setattr(command_run, "Lanes", refuse)
    asked = dict.fromkeys(("jobs", "workers", "gpus", "evaluator", "report"))
    assert resume_run(out, home, **asked, json_output=False, say=lambda text: None) == 0
    assert "fedquit" in capsys.readouterr().out
    assert RunFolder(out).fresh_since == since
