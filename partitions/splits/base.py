"""What a split is, and how one is described."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from partitions.records import LoadedData


@dataclass(frozen=True)
class SplitSpec:
    """How records are spread over sites.

    Attributes
    ----------
    name : str
        A name of `partitions.catalogue.SPLITS`.
    sites : int
        Number of sites; 0: as many as the split itself has.
    alpha : float
        Dirichlet concentration, for the splits that have one.
    sole_holder : str
        ``SITE:CLASS`` (index or name): the only site left with the class; empty: none.
    holdout : float
        Share in [0, 0.9] held out where the provider holds nothing out.
    seed : int
        Seed of split and holdout.
    """

    name: str = "natural"
    sites: int = 0
    alpha: float = 0.1
    sole_holder: str = ""
    holdout: float = 0.2
    seed: int = 0


class Split(Protocol):
    """A way to spread records over sites; one file a split, bound to ``SPLIT``."""

    @property
    def name(self) -> str:
        """Name in the catalogue."""

    def assign(self, data: LoadedData, indices: np.ndarray, spec: SplitSpec) -> dict[str, np.ndarray]:
        """Give every record of `indices` (int64) to exactly one site; sites come in the order of their partition ids.

        Records that the provider holds out are spread like the others. Raises `BadInput` saying what is achievable when
        a site would get no record to train on.
        """
