"""Models handed to the sites of a simulation in files: where all share a machine, none travels to each of them.

`lethe run` names a folder (`FOLDER`) to the processes of a simulation that it starts on this machine. There a message
holds the path of a file instead of the arrays, and every site maps the same pages. A site anywhere else has no such
folder: the models come in its messages, and a path it is sent it refuses.
"""

from __future__ import annotations

import io
import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from partitions.errors import Refused, RunFailed

if TYPE_CHECKING:  # the launcher, which only names the folder, does without these
    import numpy as np

    from unlearning.state import State

FOLDER = "LETHE_HANDOVER"
"""Environment variable with the folder of the files, absolute."""
GONE = "a model that was handed over is gone"
"""Begins what a site says that cannot read one: no fault of the site, and a run that is submitted again has it anew."""
_ORDER = "order"


@dataclass(frozen=True)
class Handed:
    """A model in a file.

    Attributes
    ----------
    path : str
        Of the file.
    bytes : int
        Bytes that its arrays would be in a message.
    """

    path: str
    bytes: int


class Handover:
    """Writes the models of one exchange after the other.

    Parameters
    ----------
    folder : Path
        Where to; made when it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: list[Path] = []

    @classmethod
    def here(cls) -> Handover | None:
        """Return that of the folder which the environment names; None without one."""
        named = os.environ.get(FOLDER, "")
        return cls(Path(named)) if named else None

    def begin(self) -> None:
        """Begin another exchange: the files of the last one are removed. Who has one mapped keeps its pages."""
        for path in self._files:
            path.unlink(missing_ok=True)
        self._files = []

    def hand(self, state: State) -> Handed:
        """Write a model of this exchange."""
        from safetensors.numpy import save_file

        self._folder.mkdir(parents=True, exist_ok=True)
        arrays = state.to_arrays()
        path = self._folder / f"{uuid.uuid4().hex}.safetensors"
        self._files.append(path)
        save_file(arrays, path, metadata={_ORDER: json.dumps(list(arrays))})
        return Handed(str(path), sum(map(_bytes_in_message, arrays.values())))


def take(path: str) -> State:
    """Map a model that was handed over: pages are read when they are used, and what is changed stays in this process.

    Raises
    ------
    Refused
        Where the environment names no folder, or the file is not in it.
    RunFailed
        When the file is no more, or not whole; it begins with `GONE`.
    """
    named = os.environ.get(FOLDER, "")
    if not named or Path(path).resolve().parent != Path(named).resolve():
        raise Refused(f"a model is to come in the message here, not as the file {path}")
    from safetensors import SafetensorError

    try:
        return _read(path)
    except (OSError, SafetensorError) as error:
        raise RunFailed(
            f"a model that was handed over is gone: {path} ({error}): does something clean up temporary folders?"
        ) from None


def _read(path: str) -> State:
    from safetensors import safe_open

    from unlearning.state import State

    with safe_open(path, framework="pt") as file:
        return State.from_tensors({name: file.get_tensor(name) for name in json.loads(file.metadata()[_ORDER])})


def _bytes_in_message(array: np.ndarray) -> int:
    """Return the size of an array as Flower sends it: as a ``.npy`` file."""
    from numpy.lib import format as npy

    head = io.BytesIO()
    npy.write_array_header_1_0(head, npy.header_data_from_array_1_0(array))
    return head.tell() + array.nbytes
