"""A Grid without Flower: answers pushed messages in process, in shuffled order, a few at a pull, and fails as told."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from strategies.wire import CallParts, call_of, error_reply

Handler = Callable[[str, str, CallParts], RecordDict]
"""(site, message type, decoded call) -> content of the reply; what it raises is answered as the ClientApp does."""


class Silence(Exception):
    """Raised by a handler whose site never answers."""


class Gone(Exception):
    """Raised by a handler whose site is lost: Flower reports code 5 from the SuperLink's own node id."""


@dataclass
class FakeGrid(Grid):
    """See the module."""

    nodes: Mapping[str, int]
    handler: Handler
    shuffle_seed: int = 0
    log: list[tuple[str, str, CallParts]] = field(default_factory=list)
    _ready: dict[str, Message] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.shuffle_seed)
        self._site = {node: site for site, node in self.nodes.items()}

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes.values())

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
            ids.append(message.metadata.message_id)
            self._answer(message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        ready = [i for i in message_ids if i in self._ready]
        self._random.shuffle(ready)
        return [self._ready.pop(i) for i in ready[: max(1, len(ready) // 2)]]

    def send_and_receive(self, messages, *, timeout=None):
        raise AssertionError("it hides unanswered messages: nobody may call it")

    def set_run(self, run):
        raise AssertionError("not needed")

    @property
    def run(self):
        raise AssertionError("not needed")

    def calls(self, site: str | None = None) -> list[tuple[str, str, CallParts]]:
        """Return what was asked, of one site or of all."""
        return [entry for entry in self.log if site in (None, entry[0])]

    def _answer(self, message: Message) -> None:
        site = self._site[message.metadata.dst_node_id]
        try:
            call = call_of(message)
            self.log.append((site, message.metadata.message_type, call))
            reply = Message(self.handler(site, message.metadata.message_type, call), reply_to=message)
        except Silence:
            return
        except Gone:
            reply = Message(Error(code=5, reason="Node Unavailable"), reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = 1
        except Exception as error:
            reply = error_reply(message, error)
        self._ready[message.metadata.message_id] = reply
