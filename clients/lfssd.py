"""Loss-free SSD at every site (METHODS 2.7): how much each parameter moves the outputs; no label is looked at."""

from __future__ import annotations

from clients.ops import Call, Op, Reply
from clients.site import Site
from clients.ssd import answer_importance
from unlearning.lfssd import sensitivity


def run(site: Site, call: Call) -> Reply:
    """Answer the sensitivities: config request and request-seed."""
    return answer_importance(site, call, sensitivity, site.settings.batch_size)


OPS = [Op("sensitivity", "train", run)]
