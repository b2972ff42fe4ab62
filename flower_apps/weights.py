"""Reading a person's own weights: safetensors only, checked against the network before anything runs."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load_file

from partitions.errors import BadInput
from unlearning.state import State


def load_weights(path: Path, like: State) -> State:
    """Read a state from a safetensors file with plain ``state_dict`` names or with Lethe's group prefixes.

    Parameters
    ----------
    path : Path
        The file.
    like : State
        A state of the network the weights must fit; dtypes are cast to its dtypes.

    Raises
    ------
    BadInput
        When the file is missing, not safetensors, or does not fit, naming the first tensor at fault.
    """
    remedy = "export one with `lethe export`, or save model.state_dict() with safetensors.torch.save_file"
    if not path.is_file():
        raise BadInput("original", str(path), "a safetensors file that exists", remedy)
    try:
        arrays = load_file(path)
    except (SafetensorError, OSError) as error:
        raise BadInput("original", str(path), "a readable safetensors file", f"{error}; {remedy}") from None
    wanted = like.to_arrays()
    plain = {key.partition("/")[2]: key for key in wanted}
    found = {plain.get(name, name): array for name, array in arrays.items()}
    for key in sorted(wanted.keys() ^ found.keys()):
        what = "is missing from the file" if key in wanted else "is not part of the network"
        raise BadInput("original", str(path), "the tensors of the model in the settings", f"{key} {what}; check model")
    for key, array in wanted.items():
        if found[key].shape != array.shape:
            shapes = f"{key} has shape {found[key].shape} in the file, {array.shape} in the network"
            raise BadInput("original", str(path), "the shapes of the model in the settings", shapes)
    state = State.from_arrays({key: found[key].astype(array.dtype) for key, array in wanted.items()})
    if not state.is_finite():
        raise BadInput("original", str(path), "finite weights", "the file holds NaN or infinite values")
    return state
