"""Who is who: site names to Flower nodes. Node ids are random and new in every run; site names are what counts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flwr.serverapp import Grid

from partitions.errors import BadInput, RunFailed, unknown_name
from strategies.events import EventSink
from strategies.exchange import exchange
from strategies.wire import SiteReply, call_content, make_message, reply_of


@dataclass(frozen=True)
class Roster:
    """The sites of a federation.

    Attributes
    ----------
    nodes : mapping of str to int
        Node id by site name, in sorted order of names.
    described : mapping of str to mapping
        What each site said about itself (metrics and config of its `describe` reply).
    """

    nodes: Mapping[str, int]
    described: Mapping[str, Mapping[str, Any]]

    @property
    def sites(self) -> tuple[str, ...]:
        """Return the site names, sorted."""
        return tuple(self.nodes)

    def node(self, site: str) -> int:
        """Return a site's node id; raises `BadInput` with the nearest name."""
        if site not in self.nodes:
            raise unknown_name("site", site, self.nodes)
        return self.nodes[site]

    def site(self, node: int) -> str:
        """Return the site at a node; raises `RunFailed` for a node that is not in the roster."""
        if node not in self._names:
            raise RunFailed(f"node {node} is none of the sites {', '.join(self.nodes)}")
        return self._names[node]

    @cached_property
    def _names(self) -> dict[int, str]:
        return {node: name for name, node in self.nodes.items()}

    @classmethod
    def from_replies(cls, nodes: Sequence[int], replies: Sequence[SiteReply]) -> Roster:
        """Build the roster from `describe` replies, whose config or metrics hold ``name``.

        Raises
        ------
        BadInput
            When a site has no name, or two nodes say they are the same site.
        """
        found: dict[str, int] = {}
        described: dict[str, Mapping[str, Any]] = {}
        for node, reply in zip(nodes, replies, strict=True):
            name = reply.text("name")
            if not name:
                raise BadInput("site", name, "a name in every describe reply", f"node {node} sent none")
            if name in found:
                raise BadInput("site", name, "one node a site", f"nodes {found[name]} and {node} both say they are it")
            found[name] = node
            described[name] = {**reply.metrics, **reply.config}
        order = sorted(found)
        return cls({name: found[name] for name in order}, {name: described[name] for name in order})


def wait_for_nodes(grid: Grid, expected: int, timeout: float = 30.0) -> list[int]:
    """Wait until `expected` nodes are online and return their ids, sorted.

    Raises
    ------
    RunFailed
        When another number is online: at once for too many, after `timeout` seconds for too few.
    """
    end = time.monotonic() + timeout
    while True:
        nodes = sorted(grid.get_node_ids())
        if len(nodes) == expected:
            return nodes
        if len(nodes) > expected or time.monotonic() > end:
            raise RunFailed(
                f"the data set is split over {expected} sites, but {len(nodes)} nodes are online; start the run with "
                f"--federation-config 'num-supernodes={expected}' or set sites={len(nodes)}"
            )
        time.sleep(0.1)


def meet_sites(
    grid: Grid,
    expected: int,
    config: Mapping[str, Any],
    events: EventSink,
    *,
    timeout: float = 300.0,
    patience: float = 30.0,
) -> Roster:
    """Wait for the nodes, ask each who it is (``query.describe``) and build the roster.

    Parameters
    ----------
    expected : int
        Number of sites.
    config : mapping
        Sent with `describe`.
    timeout, patience : float
        Seconds for the answers (the first one loads code and data), and for the nodes to appear.
    """
    nodes = wait_for_nodes(grid, expected, patience)
    names = [f"node {node}" for node in nodes]
    content = call_content(None, config)
    messages = [make_message("query", "describe", node, content) for node in nodes]
    replies = exchange(grid, messages, names, timeout=timeout)
    roster = Roster.from_replies(nodes, [reply_of(m, name) for m, name in zip(replies, names, strict=True)])
    events.emit("note", text=f"sites: {', '.join(roster.sites)}")
    return roster
