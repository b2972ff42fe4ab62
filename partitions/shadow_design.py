"""Which shadow trains on and forgets which record, and which records are challenged (METRICS 1.3 to 1.5).

Every challenged record is in the training set of exactly half of the shadows: before they forget they are the two
worlds of LiRA, afterwards those of U-LiRA. Everything is drawn from the seed and the records' names: the order in which
records are given changes nothing, and strata that name the site let every site draw its own part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from partitions.seeds import generator


def matched(forget: Mapping[str, str], unseen: Mapping[str, str], seed: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Draw as many forget as never-seen records from every stratum: positives and negatives of an attack.

    Parameters
    ----------
    forget, unseen : mapping of str to str
        Stratum (class, or class and client of origin) of each record to forget and of each that no model has seen.
    seed : int
        Run seed of the design.

    Returns
    -------
    positives, negatives : tuple of str
        Sorted names, equally many, with the same histogram of strata. Both empty where no stratum is shared.

    Raises
    ------
    ValueError
        When a record is on both sides.
    """
    if both := sorted(forget.keys() & unseen.keys()):
        raise ValueError(f"record {both[0]!r} is both forgotten and never seen")
    sides: tuple[list[str], list[str]] = ([], [])
    for stratum in sorted(set(forget.values()) & set(unseen.values())):
        pools = [sorted(name for name, its in side.items() if its == stratum) for side in (forget, unseen)]
        size = min(map(len, pools))
        rng = generator(seed, "attack-match", stratum)
        for side, pool in zip(sides, pools, strict=True):
            side.extend(str(name) for name in rng.choice(pool, size, replace=False, shuffle=False))
    return tuple(sorted(sides[0])), tuple(sorted(sides[1]))


@dataclass(frozen=True, eq=False)
class UnlearningDesign:
    """Who forgets what in U-LiRA.

    Attributes
    ----------
    unlearned : tuple of str
        Records of the request that are challenged: the positives, unlearned in the target run.
    holdout : tuple of str
        `H`, held-out records of the forget sites: the negatives, on which target runs never train.
    rest : tuple of str
        Records of the request that are not challenged; every shadow forgets them.
    forgotten : ndarray of bool, shape (S, 2 |H|)
        Whether a shadow trains on and forgets a challenged record; columns in the order of `challenged`.
    """

    unlearned: tuple[str, ...]
    holdout: tuple[str, ...]
    rest: tuple[str, ...]
    forgotten: NDArray[np.bool_]

    @property
    def challenged(self) -> tuple[str, ...]:
        """`Z`: the unlearned, then the holdout records."""
        return self.unlearned + self.holdout

    def forget_set(self, shadow: int) -> tuple[str, ...]:
        """Return `F_s`, which shadow `shadow` (from 0) trains on beside the retained records, and then forgets."""
        half = (name for name, takes in zip(self.challenged, self.forgotten[shadow], strict=True) if takes)
        return tuple(sorted([*self.rest, *half]))


def unlearning_design(
    forget: Mapping[str, str], holdout: Mapping[str, str], shadows: int, seed: int
) -> UnlearningDesign:
    """Draw the challenged records and each shadow's half of them.

    Parameters
    ----------
    forget, holdout : mapping of str to str
        Stratum (class, or class and site) of each record of the request and of each held-out record of its sites.
    shadows : int
        Even number of shadows; shadows 0 and 1, 2 and 3 and so on have complementary halves.
    seed : int
        Run seed of the design.

    Returns
    -------
    UnlearningDesign
        Every shadow forgets as many records as the request has, with the same histogram of strata; every challenged
        record is forgotten by exactly half of the shadows. No challenged record where no stratum is shared.

    Raises
    ------
    ValueError
        For an odd number of shadows, or a record that is in the request and held out.
    """
    if shadows < 2 or shadows % 2:
        raise ValueError(f"{shadows} shadows: an even number is needed, so that half of them can have a record")
    unlearned, held_out = matched(forget, holdout, seed)
    names = unlearned + held_out
    strata = [(forget if name in forget else holdout)[name] for name in names]
    forgotten = np.zeros((shadows, len(names)), dtype=bool)
    for stratum in sorted(set(strata)):
        columns = np.array([index for index, its in enumerate(strata) if its == stratum])
        for pair in range(shadows // 2):
            rng = generator(seed, "shadow-halves", stratum, pair)
            half = rng.permutation(columns.size) < columns.size // 2
            forgotten[2 * pair, columns], forgotten[2 * pair + 1, columns] = half, ~half
    return UnlearningDesign(unlearned, held_out, tuple(sorted(forget.keys() - set(unlearned))), forgotten)
