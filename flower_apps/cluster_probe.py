"""Asks a Ray cluster what it has and each of its nodes what is there; a process of its own, started by `cluster.look`.

``python -m flower_apps.cluster_probe JSON`` prints one line of JSON. What runs on the nodes is `look`, which needs the
standard library alone: a node has no code of ours yet.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

TASK_LIMIT = 60.0
"""Seconds a node may take to answer."""


def look(paths: Mapping[str, Any]) -> dict[str, Any]:
    """Look at the machine that this runs on.

    Parameters
    ----------
    paths : mapping
        ``files``: paths to read; ``write``: folders to try writing to.

    Returns
    -------
    dict
        ``versions`` of what computes, ``plugins`` (entry points of Lethe's groups, with their distributions), ``files``
        (SHA-256 by path, empty where it cannot be read), ``write`` (what prevents it, by folder; empty where it
        works), ``free`` (bytes where the first file lies).
    """
    import hashlib
    import platform
    import shutil
    import uuid
    from importlib import metadata
    from pathlib import Path

    versions = {"python": platform.python_version()}
    for name in ("torch", "numpy", "flwr", "ray", "lightning-fabric"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = ""
    plugins = {
        f"{point.group}:{point.name}": f"{distribution.name} {distribution.version}"
        for distribution in metadata.distributions()
        for point in distribution.entry_points
        if point.group.startswith("lethe.")
    }
    files, write = {}, {}
    for path in paths.get("files", []):
        try:
            files[path] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        except OSError:
            files[path] = ""
    for folder in paths.get("write", []):
        probe = Path(folder) / f".probe-{uuid.uuid4().hex}"
        try:
            probe.write_bytes(b"lethe")
            probe.unlink()
            write[folder] = ""
        except OSError as error:
            write[folder] = error.strerror or type(error).__name__
    there = [Path(path).parent for path in paths.get("files", []) if Path(path).parent.is_dir()]
    free = shutil.disk_usage(there[0]).free if there else 0
    return {"versions": versions, "plugins": plugins, "files": files, "write": write, "free": free}


def probe(paths: Mapping[str, Any]) -> dict[str, Any]:
    """Connect to the cluster of RAY_ADDRESS and return its nodes, each with what `look` found there."""
    import logging

    ray: Any = importlib.import_module("ray")
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.init(logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False)
    try:
        alive = [node for node in ray.nodes() if node["Alive"]]
        task = ray.remote(num_cpus=0)(look)
        pinned = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in alive]
        asked = [task.options(scheduling_strategy=one, max_retries=0).remote(dict(paths)) for one in pinned]
        nodes = [
            {
                "name": f"{node['NodeManagerHostname']} ({node['NodeID'][:6]})",
                "cpus": float(node["Resources"].get("CPU", 0)),
                "gpus": float(node["Resources"].get("GPU", 0)),
                "found": _answer(ray, reference),
            }
            for node, reference in zip(alive, asked, strict=True)
        ]
        free = float(ray.available_resources().get("CPU", 0))
        return {"address": ray.get_runtime_context().gcs_address, "nodes": nodes, "free_cpus": free}
    finally:
        ray.shutdown()


def _answer(ray: Any, reference: Any) -> dict[str, Any]:
    try:
        return dict(ray.get(reference, timeout=TASK_LIMIT))
    except Exception as error:  # of Ray, of the node, whatever: it does not fit
        last = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
        return {"error": f"it did not answer the probe ({last.strip()[:200]}); see `ray status`"}


def main() -> int:
    """Print what `probe` returns."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    print(json.dumps(probe(json.loads(sys.argv[1]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
