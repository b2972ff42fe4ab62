"""The one adapter to Flower's internals: build the app, start a SuperLink, submit a run, watch and stop it.

Flower is imported when first needed (0.4 s), and nothing else in the launcher imports it.
"""

from __future__ import annotations

import http.client
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partitions.errors import BadInput, RunFailed
from strategies.handover import FOLDER

if TYPE_CHECKING:
    from flwr.supercore.control import ControlHttpClient

Scalar = str | int | float | bool
FINISHED = "finished"
RUN_COMMAND = "flwr-simulation"
"""Name of the process that holds ServerApp and Ray driver of one simulated run."""


@dataclass(frozen=True)
class RunStatus:
    """What the SuperLink says about a run: ``running``, ``finished:completed``, ... and a sentence where it has one."""

    state: str
    details: str

    @property
    def finished(self) -> bool:
        """Return whether the run has ended, well or not."""
        return self.state.startswith(FINISHED)

    @property
    def completed(self) -> bool:
        """Return whether the run has ended well."""
        return self.state == "finished:completed"


def superlink_command(port: int) -> list[str]:
    """Return the command of a private SuperLink for simulations, state in memory, on the loopback interface."""
    arguments = ["--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    return [str(Path(sys.executable).parent / "flower-superlink"), *arguments]


def superlink_environment(
    flower_home: Path, ray_folder: Path, *, gpus: Sequence[str] | None = None, cluster: str = ""
) -> dict[str, str]:
    """Return the environment of the SuperLink, which every process of its runs inherits.

    Parameters
    ----------
    flower_home, ray_folder : Path
        Absolute; the second short, since Ray puts Unix sockets below it (107 bytes with their names).
    gpus : sequence of str or None
        The GPUs that the runs see; None leaves all.
    cluster : str
        Address of a Ray cluster that is there already; empty: each run starts a Ray of its own, in `ray_folder`.
    """
    env = {key: value for key, value in os.environ.items() if key not in ("RAY_ADDRESS", "FLWR_DATABASE", FOLDER)}
    # Flower finds its own commands by name
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
    loopback = ",".join(filter(None, [env.get("NO_PROXY", env.get("no_proxy", "")), "127.0.0.1", "localhost"]))
    if gpus is not None:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    if cluster:
        env["RAY_ADDRESS"] = cluster  # its own folders are where `ray start` put them
    else:
        env["RAY_TMPDIR"] = str(ray_folder)
        env[FOLDER] = str(ray_folder / "models")  # its workers are all on this machine
    return env | {
        "NO_PROXY": loopback,
        "no_proxy": loopback,
        "FLWR_HOME": str(flower_home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        "RAY_USAGE_STATS_ENABLED": "0",
        # idle workers that Ray starts ahead cannot become Flower's actors, whose environment differs
        "RAY_enable_worker_prestart": "0",
        "RAY_prestart_worker_first_driver": "0",
    }


class Control:
    """Flower's control API over HTTP, in process; safe to share between threads.

    Parameters
    ----------
    address : str
        ``host:port`` of the SuperLink.
    """

    def __init__(self, address: str) -> None:
        self._address = address

    @cached_property
    def _client(self) -> ControlHttpClient:
        import httpx
        from flwr.supercore.control import ControlHttpClient

        client = ControlHttpClient.from_server_address(
            self._address, insecure=True, root_certificates=None, interceptors=[]
        )
        # Flower's own would send loopback requests to the proxy of the environment
        client._client.close()
        client._client = httpx.Client(timeout=30.0, trust_env=False)
        return client

    def healthy(self) -> bool:
        """Return whether a SuperLink answers."""
        connection = http.client.HTTPConnection(self._address, timeout=2.0)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def connect(self) -> None:
        """Import what the other calls need (0.4 s), so that they need not."""
        _ = self._client

    def submit(self, app: bytes, run_config: Mapping[str, Scalar], federation: Mapping[str, Scalar]) -> int:
        """Start a run and return its id.

        Parameters
        ----------
        app : bytes
            What `build_app` made.
        run_config : mapping
            Keys of the app's ``[tool.flwr.app.config]``.
        federation : mapping
            ``num-supernodes``, ``client-resources-*``, ``init-args-*``.
        """
        import hashlib

        from flwr.common.serde import fab_to_proto, user_config_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab
        from flwr.supercore.utils import simulation_config_from_json

        request = StartRunRequest(
            fab=fab_to_proto(Fab(hashlib.sha256(app).hexdigest(), app, {})),
            override_config=user_config_to_proto(dict(run_config)),
            federation="",
            override_federation_config=simulation_config_from_json(
                {key.replace("-", "_"): value for key, value in federation.items()}
            ),
        )
        reply = self._call("StartRun", request)
        if not reply.HasField("run_id"):
            raise RunFailed("Flower refused the run without a reason")
        return int(reply.run_id)

    def status(self, run_id: int) -> RunStatus:
        """Return what the SuperLink says about the run."""
        from flwr.proto.control_pb2 import ListRunsRequest

        run = self._call("ListRuns", ListRunsRequest(run_id=run_id)).run_dict[run_id]
        parts = (run.status.status, run.status.sub_status)
        return RunStatus(":".join(part for part in parts if part), run.status.details)

    def stop(self, run_id: int) -> None:
        """Ask for the end of a run; one that has ended already is left alone."""
        from flwr.proto.control_pb2 import StopRunRequest

        if not self.status(run_id).finished:
            self._call("StopRun", StopRunRequest(run_id=run_id))

    def log(self, run_id: int) -> Iterator[str]:
        """Yield pieces of the run's log as they come, until the run has ended."""
        from flwr.proto.control_pb2 import StreamLogsRequest

        for piece in self._client.StreamLogs(StreamLogsRequest(run_id=run_id, after_timestamp=0.0)):
            yield piece.log_output

    def close(self) -> None:
        """Close the connections."""
        if "_client" in self.__dict__:
            self._client.close()

    def _call(self, name: str, request: Any) -> Any:
        import httpx

        try:
            return getattr(self._client, name)(request)
        except httpx.HTTPStatusError as error:
            raise RunFailed(f"Flower refused {name}: {error.response.text[:500]}") from None
        except httpx.HTTPError as error:
            raise RunFailed(f"the SuperLink did not answer {name}: {error or type(error).__name__}") from None


def app_config(app_dir: Path) -> dict[str, Any]:
    """Return ``[tool.flwr.app]`` of the folder's pyproject.toml; raises `BadInput` when there is none."""
    file = app_dir / "pyproject.toml"
    remedy = "install from a checkout: pip install -e ."
    if not file.is_file():
        raise BadInput("app", str(app_dir), "a folder with a pyproject.toml", remedy)
    config = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("flwr", {}).get("app")
    if not isinstance(config, dict):
        raise BadInput("app", str(file), "a file with a [tool.flwr.app] table", remedy)
    return config


def build_app(app_dir: Path) -> bytes:
    """Return the app bundle (FAB) of the folder, as `flwr build` makes it.

    Flower's own walk goes through every file below the folder, virtual environments too; this one does not.
    """
    from flwr.cli.build import build_fab_from_files
    from flwr.cli.utils import AppPathDepthError

    try:
        return build_fab_from_files(dict(_app_files(app_dir)))[0]
    except (ValueError, AppPathDepthError) as error:
        raise BadInput("app", str(app_dir), "a folder that Flower can bundle", str(error)) from None


def _app_files(app_dir: Path) -> Iterator[tuple[str, bytes | Path]]:
    for folder, below, names in os.walk(app_dir):
        here = Path(folder)
        below[:] = sorted(
            name for name in below if not name.startswith((".", "__")) and not (here / name / "pyvenv.cfg").exists()
        )
        for name in names:
            path = here / name
            if not path.is_symlink():
                yield path.relative_to(app_dir).as_posix(), path


def usable_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus() -> int:
    """Return how many GPUs Ray would find here."""
    from ray._private.accelerators import get_accelerator_manager_for_resource

    manager = get_accelerator_manager_for_resource("GPU")
    if manager is None:
        return 0
    found = int(manager.get_current_node_num_accelerators())
    visible = manager.get_current_process_visible_accelerator_ids()
    return found if visible is None else min(found, len(visible))
