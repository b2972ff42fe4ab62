"""The ClientApp: decodes a message, lets the site do its operation, encodes the answer. One handler per operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from logging import ERROR, INFO
from pathlib import Path

import lightning_fabric  # noqa: F401 - `clients.worker` needs it; better at a worker's start than in round 1
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.supercore import log

from clients.catalogue import OPERATIONS
from clients.ops import Call, Op, perform
from clients.site import Site, open_site, refused_operations
from flower_apps.places import home_path
from flower_apps.settings import GroupSettings
from flower_apps.sites import site_settings
from partitions.errors import Refused
from strategies.wire import call_of, error_reply, reply_content

Handler = Callable[[Message, Context], Message]


class SiteApp(ClientApp):
    """A ClientApp that is pickled as a reference: a simulation sends it to its workers with every message."""

    def __reduce__(self) -> tuple[Callable[[], ClientApp], tuple[()]]:
        return _this_app, ()


def _this_app() -> ClientApp:
    return app


app = SiteApp()


def site_of(context: Context) -> Site:
    """Open the site that a node stands for: the ``site`` of its node config, else its simulated partition.

    A node that names its site has data of its own, and nothing to do with the depot that a run names. What it refuses
    is ``refuse`` of its node config, see `clients.site.refused_operations`.
    """
    settings = GroupSettings.parse(context.run_config)
    home = home_path(settings.home)  # with every message
    name = str(context.node_config.get("site", ""))
    partition_id = context.node_config.get("partition-id")
    refuses = refused_operations(str(context.node_config.get("refuse", "")))
    asked = site_settings(settings, Path(home))
    if name:
        return open_site(replace(asked, depot=""), None, name, refuses)
    return open_site(asked, int(str(partition_id)), name, refuses)


def handler(op: Op) -> Handler:
    """Return the function that answers one operation's messages, with the error where the operation fails."""

    def answer(message: Message, context: Context) -> Message:
        try:
            return work(message, context)
        except Refused as error:
            log(INFO, "%s", error)
            return error_reply(message, error)
        except Exception as error:
            log(ERROR, "%s raised", op.name, exc_info=error)
            return error_reply(message, error)

    def work(message: Message, context: Context) -> Message:
        asked = call_of(message)
        reply = perform(op, site_of(context), Call(op.name, asked.state, asked.config, asked.states))
        content = reply_content(
            state=reply.state, metrics=reply.metrics, config=reply.config, tables=reply.tables, arrays=reply.arrays
        )
        return Message(content=content, reply_to=message)

    return answer


for _name in OPERATIONS.names():
    _op = OPERATIONS.get(_name)
    getattr(app, _op.category)(_op.name)(handler(_op))
