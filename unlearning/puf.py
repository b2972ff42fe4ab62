"""PUF (Mora et al., arXiv 2504.05822; METHODS 1.6): an ordinary update on the forget records, taken negatively."""

from __future__ import annotations

from unlearning.state import State, Tensors, Update, norm


def signed_model(
    start: State, retain: Update | None, forget: Update | None, n_retain: int, n_forget: int, strength: float
) -> State:
    """Return what a site contributes: ``w + (n_r Delta_r - eta n_f Delta_f) / (n_r + n_f)``, on parameters.

    A mean of these models weighted by ``n_r + n_f`` is ``w + sum_k (n_r Delta_r - eta n_f Delta_f) / N`` with N over
    all records, those to forget included.

    Parameters
    ----------
    start : State
        The model the site received, ``w``.
    retain, forget : Update or None
        Its updates on the records of each kind, both from `start`; None where it has no such records.
    n_retain, n_forget : int
        Those records; at least one in all.
    strength : float
        ``eta``, at least 0.

    Returns
    -------
    State
        In the dtype of `start`, summed in fp64, with the buffers of `start`: negated statistics would be nonsense.
    """
    parts = [(retain, n_retain / (n_retain + n_forget)), (forget, -strength * n_forget / (n_retain + n_forget))]
    params: Tensors = {}
    for name, tensor in start.params.items():
        total = tensor.double()
        for update, weight in parts:
            if update is not None:
                total = total + weight * update.params[name].double()
        params[name] = total.to(tensor.dtype)
    return State(params, start.float_buffers, start.int_buffers)


def capped(before: State, after: State, max_norm: float) -> State:
    """Return the model as far from `before` as `after` is, but no farther than `max_norm` (L2 over parameters)."""
    moved = {name: after.params[name].double() - t.double() for name, t in before.params.items()}
    length = norm(moved)
    if length <= max_norm:
        return after
    params = {n: (t.double() + moved[n] * (max_norm / length)).to(t.dtype) for n, t in before.params.items()}
    return State(params, after.float_buffers, after.int_buffers)
