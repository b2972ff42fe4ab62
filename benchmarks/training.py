"""How fast a site trains: `clients.training.train_locally` beside the plain loop, one process, one thread."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.plain import PlainLoop, middle
from benchmarks.work import MODES, Mode, Work
from clients.site import Site, open_site
from clients.training import LocalPlan, train_locally
from unlearning.state import State


@dataclass(frozen=True)
class Speed:
    """Samples a second, medians.

    Attributes
    ----------
    mode : str
        Precision and memory format.
    lethe, plain : float
        Of `train_locally`, and of the plain loop on the same records.
    """

    mode: str
    lethe: float
    plain: float


def training_speeds(work: Work) -> list[Speed]:
    """Measure every mode on one site; the two loops take turns, so that both see the same machine."""
    return [_speed(work, mode) for mode in MODES]


def _speed(work: Work, mode: Mode) -> Speed:
    site = open_site(work.site_settings(mode), 0)
    state = State.from_module(site.worker.task.build(work.model, tuple(work.data.inputs.shape[1:]), work.classes))
    loop = PlainLoop(work, mode, sites=1)
    lethe, plain = [], []
    for number in range(work.repeats + 1):
        lethe.append(_lethe_samples_a_second(work, site, state, number))
        plain.append(loop.samples / loop.round())
    return Speed(mode.label, middle(lethe[1:]), middle(plain[1:]))  # the first of each warms up


def _lethe_samples_a_second(work: Work, site: Site, state: State, seed: int) -> float:
    plan = LocalPlan(lr=work.lr, epochs=work.epochs, seed=seed, batch_size=work.batch_size)
    started = time.perf_counter()
    done = train_locally(site.worker, state, site.train, site.train.indices, plan)
    return done.examples / (time.perf_counter() - started)
