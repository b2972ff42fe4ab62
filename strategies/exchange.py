"""One exchange of messages with the sites, all or nothing: a silent, dead or unreachable site ends the run at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal

from flwr.app import Message
from flwr.serverapp import Grid

from partitions.errors import OutOfMemory, RunFailed, SiteLost, gpu_full
from partitions.patience import Patience
from strategies.handover import GONE
from strategies.wire import CLIENT_RAISED, error_of

FailurePolicy = Literal["fail", "continue"]

_WHAT = {
    1: "could not load its ClientApp",
    2: "raised",
    3: "could not be given the message",
    4: "gave no reply in time",
    5: "is not reachable",
    6: "refused the message",
    7: "refused the app",
    8: "stopped responding",
}
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
_LONGEST_LOOK = 60.0
"""Seconds that fetching one batch of replies may take; what goes beyond, this process was stopped or asleep."""


def exchange(
    grid: Grid,
    messages: Sequence[Message],
    names: Sequence[str],
    *,
    timeout: float,
    failure_policy: FailurePolicy = "fail",
    on_reply: Callable[[str, Message, float], None] | None = None,
    during: str = "",
) -> list[Message]:
    """Push `messages`, pull until each is answered, and return the replies in the order of `messages`.

    Parameters
    ----------
    grid : Grid
        Where to push to and pull from; `Grid.send_and_receive` is not used, since it hides unanswered messages.
    messages : sequence of Message
        One a recipient.
    names : sequence of str
        The recipients' names, for errors.
    timeout : float
        Seconds the whole exchange may take.
    failure_policy : {"fail", "continue"}
        After a client raised: end the run, or return its error reply among the others. A GPU that is full, or a model
        handed over that is gone, is not the client's fault and ends the run (`OutOfMemory`, `SiteLost`).
    on_reply : callable, optional
        Called with name, reply and the seconds since the push, in order of arrival.
    during : str
        What the messages belong to, for errors, for example ``"round 2 of original"``.

    Raises
    ------
    RunFailed
        When a message cannot be sent, a recipient fails, or someone has not answered in `timeout` seconds.
    """
    started, patience = time.monotonic(), Patience(_LONGEST_LOOK)
    waiting = _push(grid, messages, names)
    place = {name: index for index, name in enumerate(names)}
    replies: dict[int, Message] = {}
    while waiting:
        for reply in grid.pull_messages(list(waiting)):
            name = waiting.pop(reply.metadata.reply_to_message_id, None)
            if name is None:
                continue
            _refuse_fatal(name, reply, failure_policy, during)
            replies[place[name]] = reply
            if on_reply is not None:
                on_reply(name, reply, time.monotonic() - started)
        elapsed = patience.spent()
        if waiting and elapsed > timeout:
            raise SiteLost(
                f"no answer from {', '.join(sorted(waiting.values()))} in {timeout:g} s; raise timeout or look for a "
                "dead worker in the log"
            )
        if waiting:
            time.sleep(min(max(_FIRST_PAUSE, elapsed / 200), _LONGEST_PAUSE))  # adds 0.25 % to a round on average
    return [replies[index] for index in range(len(messages))]


def _push(grid: Grid, messages: Sequence[Message], names: Sequence[str]) -> dict[str, str]:
    if not messages:
        return {}
    ids = list(grid.push_messages(list(messages)))
    if len(ids) != len(messages) or not all(ids):
        raise RunFailed(f"{len(messages)} messages were to be sent, the SuperLink took {sum(map(bool, ids))}")
    return dict(zip(ids, names, strict=True))


def _refuse_fatal(name: str, reply: Message, failure_policy: FailurePolicy, during: str) -> None:
    if not reply.has_error():
        return
    what, traceback = error_of(reply)
    raised = reply.error.code == CLIENT_RAISED
    no_room = raised and gpu_full(what)
    lost = raised and GONE in what
    if raised and failure_policy == "continue" and not no_room and not lost:
        return
    if "ActorDiedError" in what:
        what = "its worker process died (killed, or out of memory?)"
    did = _WHAT.get(reply.error.code, f"failed (code {reply.error.code})")
    kind = OutOfMemory if no_room else RunFailed if raised and not lost else SiteLost
    error = kind(f"{name} {did}{f' in {during}' if during else ''}: {what}")
    if traceback:
        error.add_note(f"At {name}:\n{traceback}")
    raise error
