"""``python -m benchmarks``: measures Lethe beside plain PyTorch and a stock Flower app, and prints what it found."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks.lethe_run import run_lethe
from benchmarks.machine import describe_machine
from benchmarks.plain import plain_rounds
from benchmarks.report import Report
from benchmarks.stock import run_stock
from benchmarks.training import training_speeds
from benchmarks.work import BF16_LAST, FP32, FP32_LAST, Mode, Work
from clients.worker import has_native_bf16
from flower_apps.control import usable_cores
from flower_apps.places import resolve_home
from partitions.errors import BadInput, RunFailed

PARTS = ("training", "federated", "stock", "memory")
MEMORY_SITES = (20, 100)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen parts; returns 0, or 2 for bad input and 1 for a failed run."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    home = resolve_home(options.home)
    folder = home / "benchmarks" / str(os.getpid())
    work = _work(options, home, folder)
    try:
        report = measure(work, options.parts or PARTS, quick=options.quick)
    except (BadInput, RunFailed) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        print(json.dumps(report.to_json(), indent=1))
    else:
        report.show(Console(width=None if sys.stdout.isatty() else 120))
    return 0


def measure(work: Work, parts: Sequence[str], *, quick: bool = False) -> Report:
    """Measure `parts`, one after the other, and say on standard error which.

    A quick run leaves out Lethe's contiguous fp32 and the plain loop after each federated run.
    """
    report = Report(describe_machine(), _described(work), bf16=bool(has_native_bf16()), workers=work.workers)
    if "training" in parts:
        _say("training: a site's training, one process, one thread")
        report.training = training_speeds(work)
    if "stock" in parts:
        _plain(report, work, FP32)
        _say(f"stock: the stock Flower app, {work.rounds} rounds")
        report.stock = run_stock(work)
    modes = (FP32_LAST, BF16_LAST) if quick else (FP32, FP32_LAST, BF16_LAST)
    for mode in modes if "federated" in parts else ():
        _plain(report, work, mode)
        _say(f"federated: lethe run, {mode.label}, {work.rounds} rounds")
        report.lethe.append(run_lethe(work, mode))
        if not quick:
            _plain(report, work, mode)
    for sites in MEMORY_SITES if "memory" in parts else ():
        _say(f"memory: lethe run, {sites} sites")
        short = replace(work, sites=sites, epochs=1, rounds=1 if quick else 2)
        report.memory.append(run_lethe(short, FP32_LAST, watch_memory=True))
    return report


def _plain(report: Report, work: Work, mode: Mode) -> None:
    """Add rounds of the plain loop; before and after a federated run, since a machine's speed changes."""
    _say(f"plain loop, {mode.label}")
    report.plain.setdefault(mode.label, []).extend(plain_rounds(work, mode, max(1, work.rounds // 5)))


def _described(work: Work) -> dict[str, object]:
    return {
        "records": f"{work.dataset}, cap {work.cap}: {work.samples // work.epochs:,} to train on, {work.sites} sites",
        "network": f"{work.model}, {work.parameters():,} parameters",
        "round": f"{work.epochs} local epochs, batches of {work.batch_size}, SGD: {work.samples:,} samples",
        "rounds": work.rounds,
        "workers": work.workers,
    }


def _work(options: argparse.Namespace, home: Path, folder: Path) -> Work:
    return Work(
        home=home,
        folder=folder,
        dataset=options.dataset,
        cap=options.cap,
        sites=options.sites,
        rounds=options.rounds or (2 if options.quick else 10),
        workers=options.workers,
        repeats=1 if options.quick else 7,
    )


def _parser() -> argparse.ArgumentParser:
    cores = usable_cores()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and modes: under 3 minutes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--dataset", default=Work.dataset, help=f"default: {Work.dataset}")
    parser.add_argument("--cap", type=int, default=Work.cap, help=f"records a class and patient; default: {Work.cap}")
    parser.add_argument("--sites", type=int, default=Work.sites, help=f"default: {Work.sites}")
    parser.add_argument("--rounds", type=int, default=0, help="default: 10, with --quick 2")
    parser.add_argument(
        "--workers", type=int, default=cores, help=f"sites at work at once; default: {cores}, the cores"
    )
    parser.add_argument("--home", help="default: LETHE_HOME, else ~/.lethe")
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
