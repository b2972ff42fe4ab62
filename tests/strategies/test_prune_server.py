"""Pruning on a federation (METHODS 1.5 and 4)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from clinics import SCHEDULE, asked, built, clinics, layers, method, request, sites, start

from partitions.errors import BadInput, RunFailed
from strategies.history import HistoryWriter
from strategies.recording import RecordingFedAvg
from strategies.recovery import run_recovery
from strategies.registry import METHODS
from tests.unlearning.toy_nets import changed
from unlearning.prune import choose, class_activations, class_scores, prunable, zero_channels, zeroed
from unlearning.state import State

MODELS = ["tiny", "tiny-bn"]


def centrally(found, text, model, rho):
    """Return what pruning gives where one place has all records."""
    network, chosen_layers = built(model), prunable(layers(model), "auto")
    read = [
        one.worker.batch(one.train.inputs, one.train.targets, one.records("both", text, 0)) for one in found.values()
    ]
    seen = class_activations(network, [layer.name for layer in chosen_layers], read, 4)
    forget = [int(v) for v in text.rpartition(":")[2].split(",")]
    scores = {layer.name: class_scores(seen.means[layer.name], seen.counts > 0, forget) for layer in chosen_layers}
    state = start(model)
    return zeroed(state, chosen_layers, choose(scores, rho, zero_channels(state, chosen_layers)))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("text", ["class:1", "class:0,3", "class:2>class:1", "client:site-a>class:1"])
def test_the_federation_gives_what_one_place_with_all_records_would(model, text):
    found = sites(model)
    outcome = method("prune", clinics(found), request(found, text), model=model, overrides={"rho": 0.3}).run(
        start(model)
    )
    wanted = centrally(found, text, model, 0.3)
    assert outcome.status == "ok" and wanted.sha256() != start(model).sha256()
    assert outcome.state.sha256() == wanted.sha256()


def test_all_sites_with_records_are_asked_once():
    found = sites()
    fed = clinics(found)
    outcome = method("prune", fed, request(found, "client:site-a>class:1")).run(start())
    assert sorted(asked(fed)) == [(site, "train.activations") for site in ("site-b", "site-c")]
    assert fed.grid.calls()[0][2].config["layers"] == ["0", "2", "6"]
    assert (outcome.cost.client_examples, outcome.cost.gradient_steps) == (22 + 31, 0)


def test_a_share_of_zero_is_the_identity_and_is_said():
    found = sites()
    outcome = method("prune", clinics(found), request(found, "class:1"), overrides={"rho": 0}).run(start())
    assert outcome.state.sha256() == start().sha256()
    assert outcome.notes == ("prune set 0 channels to zero (none)",)


def test_what_was_pruned_is_said():
    found = sites()
    outcome = method("prune", clinics(found), request(found, "class:1")).run(start())
    (note,) = outcome.notes
    assert note.startswith("prune set 2 channels to zero (")


def recover(found, plan, strategy, unlearned, **kwargs):
    hook = strategy.recovery_hook(start(), unlearned)
    return run_recovery(clinics(found), SCHEDULE, plan, unlearned, seed=1, work=kwargs.get("work"), hook=hook)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("trained_with", [{}, {"momentum": 0.9, "weight_decay": 0.1}])
def test_pruned_filters_are_exactly_zero_after_recovery_and_the_rest_learns(model, trained_with):
    found = sites(model, **trained_with)
    plan = request(found, "class:1")
    strategy = method("prune", clinics(found), plan, model=model, overrides={"rho": 0.3})
    unlearned = strategy.run(start(model)).state
    recovered = recover(found, plan, strategy, unlearned).state
    before, after = (zero_channels(s, layers(model)) for s in (unlearned, recovered))
    assert sum(int(mask.sum()) for mask in before.values()) == int(0.3 * (6 + 10 + 12))
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert changed(unlearned, recovered) >= set(start(model).params)


def test_the_server_puts_the_zeros_back_itself():
    found = sites()
    plan = request(found, "class:1")
    strategy = method("prune", clinics(found), plan, overrides={"rho": 0.3})
    unlearned = strategy.run(start()).state
    grown = State({n: t + 1.0 for n, t in unlearned.params.items()}, {}, {})
    held = strategy.recovery_hook(start(), unlearned).after_round(1, unlearned, grown)
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            zero_channels(unlearned, layers()).values(), zero_channels(held, layers()).values(), strict=True
        )
    )


def test_a_second_class_keeps_the_first_ones_channels_at_zero():
    found = sites()
    first = request(found, "class:1")
    strategy = method("prune", clinics(found), first, overrides={"rho": 0.2})
    recovered = recover(found, first, strategy, strategy.run(start()).state).state
    second = request(found, "class:1>class:2")
    later = method("prune", clinics(found), second, overrides={"rho": 0.2})
    unlearned = later.run(recovered).state
    old, new = (zero_channels(s, layers()) for s in (recovered, unlearned))
    assert all(bool((new[name] >= old[name]).all()) for name in old)
    assert sum(int(m.sum()) for m in new.values()) == 2 * sum(int(m.sum()) for m in old.values())
    after = zero_channels(recover(found, second, later, unlearned).state, layers())
    assert all(torch.equal(new[name], after[name]) for name in new)


def test_the_hook_follows_from_its_arguments():
    found = sites()
    plan = request(found, "class:1")
    strategy = method("prune", clinics(found), plan)
    unlearned = strategy.run(start()).state
    fresh = method("prune", clinics(found), plan)
    masks = [made.recovery_hook(start(), unlearned).message_states(1)["trainable"] for made in (strategy, fresh)]
    assert masks[0].sha256() == masks[1].sha256()


def test_the_seed_does_not_matter_and_a_finished_round_is_not_asked_for_again(tmp_path):
    found = sites()
    plan, work = request(found, "class:1"), HistoryWriter(tmp_path, keep_updates=False)
    a = method("prune", clinics(found), plan, seed=1, work=work).run(start())
    fed = clinics(found)
    b = method("prune", fed, plan, seed=2, work=work).run(start())
    c = method("prune", clinics(found), plan, seed=3).run(start())
    assert a.state.sha256() == b.state.sha256() == c.state.sha256() and fed.grid.calls() == []


def test_only_a_class_can_be_asked_for():
    cls = METHODS.get("prune")
    assert cls.unfit("class", has_history=False, has_logits=True) == ""
    for granularity in ("client", "sample", "patient"):
        assert "request a class" in cls.unfit(granularity, has_history=True, has_logits=True)
    assert "logits" in cls.unfit("class", has_history=True, has_logits=False)


def test_settings_reach_their_places():
    found = sites()
    plan = request(found, "class:1")
    fed = clinics(found)
    method("prune", fed, plan, overrides={"scope": "penultimate"}).run(start())
    assert fed.grid.calls()[0][2].config["layers"] == ["6"]
    with pytest.raises(BadInput, match="rho"):
        METHODS.get("prune").resolve_config("lethe", {"rho": 1.5})
    assert METHODS.get("prune").resolve_config().rho == 0.1


def test_a_model_that_is_only_a_head_is_refused():
    found = sites()
    strategy = method("prune", clinics(found), request(found, "class:1"))
    strategy.layers = strategy.layers[-1:]
    with pytest.raises(RunFailed, match="only a head"):
        strategy.run(start())


def test_forgetting_hurts_the_class_most():
    found = sites()
    plan = request(found, "class:1")
    longer = replace(SCHEDULE, local_epochs=4, lr=0.1)
    trained = RecordingFedAvg(
        clinics(found),
        longer,
        seed=0,
        participants=list(found),
        message_config={"records": "all"},
        history=None,
        label="original",
    ).run(start(), 6)
    unlearned = method("prune", clinics(found), plan, overrides={"rho": 0.3}).run(trained.state).state

    def losses(state):
        network = built()
        state.load_into(network)
        total = {}
        for which in ("forget", "retain"):
            per_site = []
            for one in found.values():
                x, y = one.worker.batch(one.train.inputs, one.train.targets, one.records(which, "class:1", 0))
                per_site.append(torch.nn.functional.cross_entropy(network(x), y, reduction="sum").item())
            total[which] = float(np.sum(per_site))
        return total

    before, after = losses(trained.state), losses(unlearned)
    assert after["forget"] - before["forget"] > 0
    assert after["forget"] / max(before["forget"], 1e-9) > after["retain"] / max(before["retain"], 1e-9)
