"""dirichlet: sites with different mixtures of classes."""

from __future__ import annotations

import warnings

import numpy as np

from partitions.assignment import Assignment, divide, follow, numbered_sites, shuffled
from partitions.errors import BadInput
from partitions.records import LoadedData
from partitions.seeds import derive_seed
from partitions.splits.base import SplitSpec

ALPHAS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 100.0)
"""Tried, smallest first, to say what is achievable when a wish is not."""
DRAWS = 11
"""How often flwr-datasets draws before it gives up."""


class Dirichlet:
    """Each class is divided over the sites by a draw from a symmetric Dirichlet distribution of concentration `alpha`.

    flwr-datasets' `DirichletPartitioner` on the training records, with at least one of them at every site and no
    self-balancing (Yurochkin et al. 2019, arXiv:1905.12022). It draws at most 11 times: a split that would leave a
    site empty then is refused, with what would do.
    """

    name = "dirichlet"

    def assign(self, data: LoadedData, indices: np.ndarray, spec: SplitSpec) -> Assignment:
        """See `Split.assign`."""
        trainable, held = divide(data, indices)
        sites = numbered_sites(data, trainable, spec)
        strata = data.table["stratum"].to_numpy()
        if "" in set(strata[trainable]):
            raise BadInput("split", spec.name, f"iid or quantity: the records of {data.name} have no single class")
        order = shuffled(trainable, spec.seed, "split-dirichlet")
        labels = strata[order].astype(np.int64)
        parts = _draw(labels, len(sites), spec)
        if parts is None:
            raise _refusal(labels, len(sites), spec)
        training = {site: order[part] for site, part in zip(sites, parts, strict=True)}
        return follow(data, training, held, spec.seed)


def _draw(labels: np.ndarray, sites: int, spec: SplitSpec) -> list[np.ndarray] | None:
    """Return the places in `labels` of each site's records; None when a site stays empty at every draw."""
    from datasets import Dataset
    from flwr_datasets.partitioner import DirichletPartitioner

    partitioner = DirichletPartitioner(
        num_partitions=sites,
        partition_by="label",
        alpha=float(spec.alpha),
        min_partition_size=1,
        self_balancing=False,
        shuffle=False,
        seed=_draw_seed(spec.seed),
    )
    partitioner.dataset = Dataset.from_dict({"label": labels, "place": np.arange(len(labels))})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return [np.asarray(partitioner.load_partition(k)[:]["place"], dtype=np.int64) for k in range(sites)]
        except ValueError:
            return None


def _refusal(labels: np.ndarray, sites: int, spec: SplitSpec) -> BadInput:
    """Say which alpha would do for these sites, and how many sites for this alpha."""
    counts = np.unique(labels, return_counts=True)[1]
    alpha = next((a for a in ALPHAS if a > spec.alpha and succeeds(counts, sites, a, spec.seed)), None)
    number = next((n for n in _halves(sites) if succeeds(counts, n, spec.alpha, spec.seed)), 1)
    allowed = f"{alpha:g} for {sites} sites" if alpha else f"no value for {sites} sites of {len(labels)} records"
    remedy = f"or ask for {number} sites at this alpha: each of {DRAWS} draws left one of {sites} without a record"
    return BadInput("alpha", spec.alpha, allowed, remedy)


def succeeds(counts: np.ndarray, sites: int, alpha: float, seed: int) -> bool:
    """Say, without dividing any records, whether `DirichletPartitioner` finds a division with no empty site.

    Draws what it draws, in its order: for each class a share of each site, cut at whole records.

    Parameters
    ----------
    counts : ndarray
        Records of each class.
    sites : int
        Number of sites.
    alpha : float
        Concentration.
    seed : int
        Split seed.
    """
    random = np.random.default_rng(_draw_seed(seed))
    for _ in range(DRAWS):
        drawn = random.dirichlet(np.full(sites, float(alpha)), size=len(counts))
        cuts = (np.cumsum(drawn, axis=1) * counts[:, None]).astype(np.int64)
        cuts[:, -1] = counts
        if np.diff(cuts, axis=1, prepend=0).sum(axis=0).min() >= 1:
            return True
    return False


def _draw_seed(seed: int) -> int:
    return derive_seed(seed, "split-dirichlet-draws")


def _halves(sites: int) -> list[int]:
    return [sites >> shift for shift in range(1, sites.bit_length())]


SPLIT = Dirichlet()
