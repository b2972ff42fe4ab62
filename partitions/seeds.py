"""Seeds: every random stream of a run is derived here, from names, never from a node id, a worker or the clock."""

from __future__ import annotations

import hashlib

import numpy as np


def derive_seed(run_seed: int, purpose: str, site: str = "", round_: int = 0) -> int:
    """Derive the seed of one random stream.

    Parameters
    ----------
    run_seed : int
        The train, unlearn, evaluate, split or request seed.
    purpose : str
        What the stream is for, for example ``"batches"`` or ``"init"``. `train` and `retrain` share their purposes.
    site : str
        Site name, empty for the server.
    round_ : int
        Round, counted from 1; 0 where there is none.

    Returns
    -------
    int
        A number in [0, 2**63), the same on every machine and Python version.
    """
    text = f"{int(run_seed)}|{purpose}|{site}|{int(round_)}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def generator(run_seed: int, purpose: str, site: str = "", round_: int = 0) -> np.random.Generator:
    """Return the numpy generator of one random stream (arguments as in `derive_seed`)."""
    return np.random.default_rng(derive_seed(run_seed, purpose, site, round_))
