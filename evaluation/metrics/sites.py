"""The task metric of held-out records site by site: a mean over a federation can hide a hospital that was damaged."""

from __future__ import annotations

from collections.abc import Iterator

from evaluation.curves import Curve, Point
from evaluation.evidence import Evidence


def _by_site(evidence: Evidence) -> Iterator[Point]:
    """Yield a point a site: its number of held-out records and their mean metric, by what the request means there."""
    if evidence.problem:
        return
    held_out = evidence.frame[evidence.frame["split"] == "holdout"]
    side = held_out["selected"].map({True: "forget", False: "retain"})
    for (which, site), metric in held_out.groupby([side, held_out["site"]])["metric"]:
        yield Point(str(which), float(len(metric)), float(metric.mean()), str(site))


CURVE = Curve("site", _by_site)
