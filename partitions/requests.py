"""Requests: what must be forgotten, as text; every site resolves them on its own records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pandas as pd

from partitions.assignment import natural_order
from partitions.errors import BadInput, unknown_name
from partitions.records import hash_ranks

Granularity = Literal["client", "class", "patient", "sample"]
GRANULARITIES: tuple[Granularity, ...] = get_args(Granularity)
GRAMMAR = "client:SITE[,SITE], class:INDEX[,INDEX], patient:NAME[,NAME] or sample:FRACTION[@SITE], joined by '>'"


@dataclass(frozen=True)
class Step:
    """One request of a sequence.

    Attributes
    ----------
    granularity : {"client", "class", "patient", "sample"}
        What is named.
    values : tuple of str
        Sites, class indices or patients, in natural order; empty for a sample.
    fraction : float
        Share of a site's training records, in (0, 1]; 0 for the others.
    scope : str
        The site that a sample is taken from; empty: every site.
    """

    granularity: Granularity
    values: tuple[str, ...] = ()
    fraction: float = 0.0
    scope: str = ""

    @property
    def text(self) -> str:
        """The step in its one normal form."""
        if self.granularity == "sample":
            return f"sample:{self.fraction!r}" + (f"@{self.scope}" if self.scope else "")
        return f"{self.granularity}:{','.join(self.values)}"


@dataclass(frozen=True)
class Request:
    """One or several steps, in the order they are asked for; the last is the one to carry out.

    Attributes
    ----------
    steps : tuple of Step
        At least one.
    shadow : tuple of (int, int), or None
        Number of a shadow and of all shadows of an attack on the request: the shadow's own forget set is meant, half of
        the challenged records (`partitions.shadow_design`). None: the request itself.
    """

    steps: tuple[Step, ...]
    shadow: tuple[int, int] | None = None

    @property
    def text(self) -> str:
        """The request in its one normal form: equal requests have equal texts."""
        steps = ">".join(step.text for step in self.steps)
        return steps if self.shadow is None else f"shadow:{self.shadow[0]}/{self.shadow[1]}@{steps}"

    @property
    def real(self) -> Request:
        """The request that a shadow stands beside; any other is its own."""
        return Request(self.steps)

    @property
    def departed(self) -> tuple[str, ...]:
        """Every site that leaves, in any step, in the order of the steps."""
        sites = [site for step in self.steps if step.granularity == "client" for site in step.values]
        return tuple(dict.fromkeys(sites))

    def prefixes(self) -> tuple[Request, ...]:
        """Return the requests that carry out the first step, the first two, and so on."""
        return tuple(Request(self.steps[:count]) for count in range(1, len(self.steps) + 1))


@dataclass(frozen=True)
class Selection:
    """Which records of a table a request means; bool arrays as long as the table, never both true.

    Attributes
    ----------
    forget : ndarray
        Marked by the last step.
    retain : ndarray
        Marked by no step. What an earlier step marked is in neither.
    step : ndarray
        Which step marked each row, int16, counted from 1; 0 where none did.
    """

    forget: np.ndarray
    retain: np.ndarray
    step: np.ndarray


def parse_request(text: str) -> Request:
    """Read a request.

    Parameters
    ----------
    text : str
        ``client:patient-1``, ``client:a,b``, ``class:5``, ``patient:patient-1``, ``sample:0.1`` (of every site),
        ``sample:0.1@patient-1`` (of one), or several joined by ``>``. ``shadow:3/8@`` before a single step means the
        forget set of number 3 (from 0) of eight shadows of that request.

    Raises
    ------
    BadInput
        When it cannot be read.
    """
    if text.strip().startswith("shadow:"):
        return _parse_shadow(text.strip())
    return Request(tuple(_parse_step(part.strip(), text) for part in text.split(">")))


def select(
    request: Request, site: str, table: pd.DataFrame, split: Literal["train", "holdout", "reference"], seed: int
) -> Selection:
    """Resolve a request on some records of one site; a shadow's own forget set is not this room's to draw.

    Client, class and patient requests divide training, held-out and reference records alike; a sample is of training
    records only: the ``max(1, round(fraction * n))`` of the n not marked by an earlier step with the smallest hashes.

    Parameters
    ----------
    request : Request
        What to forget.
    site : str
        The site; empty for the reference set, which no client request marks.
    table : DataFrame
        Its records of one split: columns record, patient, stratum.
    split : {"train", "holdout", "reference"}
        Which split they are.
    seed : int
        Request seed, of samples.

    Returns
    -------
    Selection
        Of the table's rows.
    """
    marks = np.zeros(len(table), dtype=np.int16)
    for number, step in enumerate(request.steps, start=1):
        marks[_marked(step, site, table, split, seed, marks == 0)] = number
    return Selection(forget=marks == len(request.steps), retain=marks == 0, step=marks)


def check_request(
    request: Request,
    sites: Sequence[str],
    classes: Sequence[str],
    counts: Mapping[str, tuple[int, int]],
    patients: Sequence[str] = (),
) -> None:
    """Refuse a request that names what is not there, or whose last step selects nothing or leaves nothing.

    Parameters
    ----------
    request : Request
        The request.
    sites, classes : sequence of str
        Site names, and class names in the order of their indices.
    counts : mapping of str to (int, int)
        Training records of each site to forget and to retain.
    patients : sequence of str
        Known patients; empty where the coordinator does not know them.

    Raises
    ------
    BadInput
        With the reason and the nearest name.
    """
    for step in request.steps:
        _check_names(request, step, sites, classes, patients)
    text = request.text
    forget, retain = (sum(count[which] for count in counts.values()) for which in (0, 1))
    if not forget:
        raise BadInput("requests", text, "a request that selects a training record", _nothing(request))
    if not retain:
        raise BadInput("requests", text, "a request that leaves a training record", "nothing would be left to retain")


def _parse_shadow(text: str) -> Request:
    number, at, rest = text.removeprefix("shadow:").partition("@")
    one, _, of = number.partition("/")
    allowed = "shadow:NUMBER/COUNT@REQUEST with an even count, a number from 0 below it, and a request of one step"
    if not at or not (one.isdecimal() and of.isdecimal()) or int(one) >= int(of) or int(of) % 2 or ">" in rest:
        raise BadInput("requests", text, allowed)
    return Request((_parse_step(rest.strip(), text),), (int(one), int(of)))


def _parse_step(part: str, text: str) -> Step:
    granularity, colon, rest = (piece.strip() for piece in part.partition(":"))
    if not colon or not rest:
        raise BadInput("requests", text, GRAMMAR, f"{part!r} is none of these")
    if granularity not in GRANULARITIES:
        raise unknown_name("requests", granularity, GRANULARITIES)
    if granularity == "sample":
        return _parse_sample(rest, text)
    values = natural_order([value.strip() for value in rest.split(",")])
    if "" in values:
        raise BadInput("requests", text, GRAMMAR, f"{part!r} has an empty name")
    if granularity == "class":
        values = [str(int(value)) if value.isdecimal() else value for value in values]
    return Step(granularity, tuple(natural_order(values)))


def _parse_sample(rest: str, text: str) -> Step:
    number, at, scope = (piece.strip() for piece in rest.partition("@"))
    try:
        fraction = float(number)
    except ValueError:
        fraction = 0.0
    if not 0 < fraction <= 1:
        raise BadInput("requests", text, "sample:FRACTION[@SITE] with a fraction above 0 and at most 1")
    if (at and not scope) or "," in scope:
        raise BadInput("requests", text, "sample:FRACTION@SITE with one site, or sample:FRACTION for every site")
    return Step("sample", fraction=fraction, scope=scope)


def _marked(step: Step, site: str, table: pd.DataFrame, split: str, seed: int, free: np.ndarray) -> np.ndarray:
    """Mark the rows that one step means, among those that no earlier step marked."""
    if step.granularity == "client":
        return free & (site in step.values)
    if step.granularity == "class":
        return free & table["stratum"].isin(step.values).to_numpy(dtype=bool)
    if step.granularity == "patient":
        return free & table["patient"].isin(step.values).to_numpy(dtype=bool)
    marked = np.zeros(len(table), dtype=bool)
    candidates = np.flatnonzero(free)
    if split == "train" and step.scope in ("", site) and len(candidates):
        ranks = hash_ranks(seed, "sample-request", table["record"].to_numpy()[candidates])
        count = max(1, round(step.fraction * len(candidates)))
        marked[candidates[np.argsort(ranks, kind="stable")[:count]]] = True
    return marked


def _check_names(
    request: Request, step: Step, sites: Sequence[str], classes: Sequence[str], patients: Sequence[str]
) -> None:
    named = step.values if step.granularity == "client" else (step.scope,) if step.scope else ()
    for site in named:
        if site not in sites:
            raise unknown_name("requests", site, sites)
    for value in step.values if step.granularity == "class" else ():
        if value in classes and not value.isdecimal():
            index = list(classes).index(value)
            raise BadInput("requests", request.text, "classes by index", f"{value} is class:{index}")
        if not value.isdecimal() or int(value) >= len(classes):
            known = ", ".join(f"{index} ({name})" for index, name in enumerate(classes))
            raise BadInput("requests", request.text, f"a class of {known}")
    for patient in step.values if step.granularity == "patient" and patients else ():
        if patient not in patients:
            raise unknown_name("requests", patient, patients)


def _nothing(request: Request) -> str:
    last = request.steps[-1]
    earlier = " that no earlier step has forgotten" if len(request.steps) > 1 else ""
    if last.granularity == "sample":
        return f"{last.scope or 'no site'} has no training record{earlier}"
    return f"no site has a training record of {last.granularity} {', '.join(last.values)}{earlier}"
