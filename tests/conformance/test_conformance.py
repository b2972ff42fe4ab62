"""What every method owes, whoever wrote it (METHODS 4): on real sites and operations, with a two-layer network.

Every registered method is walked, those of other distributions too. A new method needs nothing here, unless it is not
the identity when the schedule gives it no rate and no epochs: then `ZERO_STRENGTH` says which setting is its zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_federation import REQUESTS, SIZES, Original, Run, make_sites, plan_of
from third_party import third_party
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu

from clients.catalogue import OPERATIONS
from clients.training import batch_order
from flower_apps.explain import method_rows
from partitions.seeds import derive_seed
from strategies.plans import RequestPlan
from strategies.registry import METHODS
from unlearning.state import State

PLUGIN = Path(__file__).resolve().parent / "plugin"
PLAIN, NORMED = "mlp", "mlp-bn"

with third_party(PLUGIN):
    NAMES = METHODS.names()
    GRANULARITIES = {name: METHODS.get(name).granularities for name in NAMES}
WITHOUT_PLUGIN = METHODS.names()

CASES = [(name, granularity, NORMED) for name in NAMES for granularity in GRANULARITIES[name]]
WITHOUT_NORM = [(name, GRANULARITIES[name][0], PLAIN) for name in NAMES]
each_case = pytest.mark.parametrize(("name", "granularity", "model"), CASES + WITHOUT_NORM)
each_request = pytest.mark.parametrize(("name", "granularity"), [case[:2] for case in CASES])
each_method = pytest.mark.parametrize("name", NAMES)

QUICK: dict[str, dict[str, Any]] = {
    "fedcare": {"images-per-class": 2, "image-steps": 3},
    "unsir": {"noise-steps": 3, "noise-repeats": 1, "instance-steps": 2},
}
"""Settings that make a method fast here and leave what it does as it is."""

STOCHASTIC: dict[str, bool | None] = {
    "fedrecovery": True,
    "feddni": True,
    "not": False,
    "prune": None,
    "ssd": None,
    "lfssd": None,
}
"""Whether the seed matters; without an entry, where sites take gradient steps. None: as batches happen to fall."""


VALIDATES = {"pga"}
"""Methods that look at a site's own held-out records to know when to stop."""


def others_average(original: Original, plan: RequestPlan) -> Mapping[str, Tensor]:
    """Return the last models of the sites that stay, averaged (PGA's reference); the model where nobody departs."""
    if not plan.departed:
        return original.state.params
    last, history = original.history.rounds[-1], original.history
    stay = [site for site in history.record(last).participants if site not in plan.departed]
    total = sum(SIZES[site] for site in stay)
    before = history.before(last).params
    return {
        name: tensor + sum(SIZES[s] / total * history.update(last, s).params[name] for s in stay)
        for name, tensor in before.items()
    }


def first_weight_negated(original: Original, _: RequestPlan) -> Mapping[str, Tensor]:
    """Return the parameters with the first layer's weight negated (NoT, which has no strength)."""
    first = original.layers[0].weight
    return {name: -tensor if name == first else tensor for name, tensor in original.state.params.items()}


def all_but_the_head(original: Original, _: RequestPlan) -> Mapping[str, Tensor]:
    """Return the parameters of the original without the last layer's (EU-k, which draws those again)."""
    own = original.layers[-1].own
    return {name: tensor for name, tensor in original.state.params.items() if name not in own}


def unchanged(original: Original, _: RequestPlan) -> Mapping[str, Tensor]:
    """Return the parameters of the original."""
    return original.state.params


@dataclass(frozen=True)
class Zero:
    """How a method is made to do nothing.

    Attributes
    ----------
    overrides, schedule : dict
        Its settings, and what changes in the common schedule.
    ends_at : callable
        The parameters it then ends with.
    nobody_departs : bool
        Nothing is asked to be forgotten.
    rounds : int
        Of the original training.
    bits : bool
        The whole state is the original's bit for bit; otherwise the parameters are, but for rounding.
    """

    overrides: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, Any] = field(default_factory=lambda: {"lr": 0.0, "unlearn_epochs": 0})
    ends_at: Callable[[Original, RequestPlan], Mapping[str, Tensor]] = unchanged
    nobody_departs: bool = False
    rounds: int = 3
    bits: bool = True


ZERO_STRENGTH: dict[str, Zero] = {
    "retrain": Zero(schedule={"rounds": 0}, ends_at=lambda original, _: original.initial.params),
    "federaser": Zero(schedule={}, nobody_departs=True, rounds=1, bits=False),
    "bfu": Zero({"eta-forget": 0.0, "eta-share": 0.0}, schedule={}),
    "unsir": Zero({"impair-epochs": 0, "repair-epochs": 0}, schedule={}),
    "pga": Zero({"rho": 0.0}, schedule={}, ends_at=others_average, bits=False),
    "puf": Zero({"eta": 0.0}, schedule={}),
    "not": Zero(schedule={}, ends_at=first_weight_negated, bits=False),
    "fedrecovery": Zero({"strength": 0.0, "sigma": 0.0}, schedule={}),
    "feddni": Zero({"sigma": 0.0}, schedule={}),
    "prune": Zero({"rho": 0.0}, schedule={}),
    "ssd": Zero({"alpha": math.inf}, schedule={}),
    "lfssd": Zero({"alpha": math.inf}, schedule={}),
    "eu-k": Zero({"k": 1}, ends_at=all_but_the_head, bits=False),
}
"""Zero settings by method; the others are the identity at rate 0 and 0 epochs of the schedule."""


@pytest.fixture(autouse=True, scope="module")
def _with_the_plugin() -> Iterator[None]:
    with third_party(PLUGIN):
        yield


@cache
def original(model: str, rounds: int = 3) -> Original:
    return Original(model, rounds=rounds)


def unfit(name: str, granularity: str, model: str = NORMED) -> str:
    method, plan = METHODS.get(name), plan_of(original(model).sites(), REQUESTS[granularity])
    return method.unfit(granularity, has_history=True, has_logits=True) or method.unfit_for(plan)


@cache
def ran(name: str, granularity: str, model: str) -> Run:
    """Return the one run that most facts are about, with the recovery behind it."""
    if why_not := unfit(name, granularity, model):
        pytest.skip(why_not)
    return original(model).unlearn(name, REQUESTS[granularity], recover=True, overrides=QUICK.get(name))


def selected(run: Run, which: str) -> dict[str, set[int]]:
    plan = run.strategy.request
    return {name: set(site.records(which, plan.text, plan.seed)) for name, site in run.grid.sites.items()}  # type: ignore[arg-type]


def selected_holdout(run: Run, site: str) -> set[int]:
    return set(run.grid.sites[site].holdout.indices)


# ---------------------------------------------------------------------- 1 no-op
@each_request
def test_at_zero_strength_nothing_happens(name: str, granularity: str) -> None:
    zero = ZERO_STRENGTH.get(name, Zero())
    if why_not := unfit(name, granularity):
        pytest.skip(why_not)
    trained = original(NORMED, zero.rounds)
    text = "client:nobody" if zero.nobody_departs else REQUESTS[granularity]
    settings = {**QUICK.get(name, {}), **zero.overrides}
    plan = plan_of(trained.sites(), text)
    run = trained.unlearn(name, text, overrides=settings, plan=plan, **zero.schedule)
    state, expected = run.outcome.state, zero.ends_at(trained, plan)
    advice = f"{name} is not the identity at zero strength: give it its zero setting in ZERO_STRENGTH"
    assert run.outcome.status == "ok"
    if zero.bits:
        whole = State(dict(expected), run.start.float_buffers, run.start.int_buffers)
        assert state.sha256() == whole.sha256(), advice
    for parameter, tensor in expected.items():
        torch.testing.assert_close(
            state.params[parameter], tensor, atol=1e-6, rtol=1e-5, msg=lambda m: f"{advice}\n{m}"
        )


# ---------------------------------------------------------------------- 2 isolation
@each_case
def test_only_records_that_were_declared_are_opened(name: str, granularity: str, model: str) -> None:
    run, needs = ran(name, granularity, model), METHODS.get(name).needs
    forget, retain = selected(run, "forget"), selected(run, "retain")
    for site, opened in run.grid.opened.items():
        validates = selected_holdout(run, site) if name in VALIDATES else set()
        assert opened <= forget[site] | retain[site] | validates, "a record that is not the site's to train on"
        assert needs.forget_data or not opened & forget[site], f"{name} opened forget records of {site}"
        assert needs.retain_data or not opened & retain[site], f"{name} opened retained records of {site}"


@each_case
def test_a_departing_site_is_asked_only_where_it_must_be_online(name: str, granularity: str, model: str) -> None:
    run = ran(name, granularity, model)
    departed, needs = set(run.strategy.request.departed), METHODS.get(name).needs
    contacted = bool(departed & {asked.site for asked in run.grid.asked})
    assert not contacted or needs.departed_online
    assert contacted or not departed or not needs.departed_online or needs.history_helps, "it need not be online"


@each_method
@pytest.mark.parametrize("kind", ["forget", "retain"])
def test_what_undeclared_records_hold_changes_no_bit(name: str, kind: str) -> None:
    needs, granularity = METHODS.get(name).needs, GRANULARITIES[name][-1]
    if getattr(needs, f"{kind}_data"):
        pytest.skip(f"{name} declares {kind} records")
    run = ran(name, granularity, NORMED)
    sites = make_sites(NORMED)
    for site in sites.values():
        hidden = site.records(kind, run.strategy.request.text, run.strategy.request.seed)  # type: ignore[arg-type]
        site.train.inputs[hidden] = 255
        site.train.targets[hidden] = (site.train.targets[hidden] + 1) % 3
    again = original(NORMED).unlearn(name, "", sites=sites, plan=run.strategy.request, overrides=QUICK.get(name))
    assert again.outcome.state.sha256() == run.outcome.state.sha256()


# ---------------------------------------------------------------------- 3 buffers
@each_case
def test_every_tensor_keeps_its_name_type_and_shape(name: str, granularity: str, model: str) -> None:
    run = ran(name, granularity, model)
    for state in (run.outcome.state, *([run.recovery.state] if run.recovery else [])):
        for group in ("params", "float_buffers", "int_buffers"):
            before, after = getattr(run.start, group), getattr(state, group)
            assert [(n, t.dtype, t.shape) for n, t in after.items()] == [
                (n, t.dtype, t.shape) for n, t in before.items()
            ]
        for buffer, tensor in state.float_buffers.items():
            assert not buffer.endswith("running_var") or bool((tensor >= 0).all())


# ---------------------------------------------------------------------- 4 finite
@each_case
def test_it_ends_finite(name: str, granularity: str, model: str) -> None:
    run = ran(name, granularity, model)
    assert run.outcome.status in ("ok", "diverged")
    assert bool(run.outcome.reason) == (run.outcome.status == "diverged")
    assert run.outcome.state.is_finite()
    assert run.recovery is None or run.recovery.state.is_finite()


@each_method
def test_at_an_absurd_rate_it_says_diverged_or_is_fine_and_is_finite_either_way(name: str) -> None:
    granularity = GRANULARITIES[name][0]
    if why_not := unfit(name, granularity):
        pytest.skip(why_not)
    run = original(NORMED).unlearn(name, REQUESTS[granularity], overrides=QUICK.get(name), lr=1e6)
    assert run.outcome.status in ("ok", "diverged")
    assert run.outcome.state.is_finite()


# ---------------------------------------------------------------------- 5 seeds
@each_method
def test_the_seed_decides_and_it_matters_where_there_is_chance(name: str) -> None:
    granularity = GRANULARITIES[name][0]
    first = ran(name, granularity, NORMED)
    again, other = (
        original(NORMED).unlearn(name, REQUESTS[granularity], overrides=QUICK.get(name), seed=seed) for seed in (7, 8)
    )
    assert again.outcome.state.sha256() == first.outcome.state.sha256()
    stochastic = STOCHASTIC.get(name, first.outcome.cost.gradient_steps > 0)
    differs = other.outcome.state.sha256() != first.outcome.state.sha256()
    assert stochastic is None or differs == stochastic


# ---------------------------------------------------------------------- 6 the departed
@each_case
def test_recovery_never_asks_the_departed_and_does_not_count_them(name: str, granularity: str, model: str) -> None:
    run = ran(name, granularity, model)
    if run.recovery is None or run.recovery_grid is None:
        pytest.skip(run.outcome.reason)
    plan, forget = run.strategy.request, selected(run, "forget")
    assert {asked.site for asked in run.recovery_grid.asked} == set(plan.retain_holders)
    assert not set(plan.departed) & set(plan.retain_holders)
    for site, opened in run.recovery_grid.opened.items():
        assert opened and not opened & forget[site]
    total = sum(plan.counts[site].num_retain for site in plan.retain_holders)
    for record in run.recovery_records:
        expected = {site: plan.counts[site].num_retain / total for site in plan.retain_holders}
        assert {site: done.weight for site, done in record.sites.items()} == pytest.approx(expected)


FOR_CLIENTS = [name for name in NAMES if "client" in GRANULARITIES[name]]


def assert_both_are_gone(run: Run) -> None:
    assert set(run.strategy.request.departed) == {"site-b", "site-c"}
    assert run.outcome.state.is_finite()
    if run.recovery is not None and run.recovery_grid is not None:
        assert run.recovery.state.is_finite()
        assert {asked.site for asked in run.recovery_grid.asked} == {"site-a", "site-d"}


@pytest.mark.parametrize("name", FOR_CLIENTS)
def test_several_sites_leave_at_once(name: str) -> None:
    run = original(NORMED).unlearn(name, "client:site-b,site-c", recover=True, overrides=QUICK.get(name))
    assert_both_are_gone(run)


@pytest.mark.parametrize("name", FOR_CLIENTS)
def test_sites_leave_one_after_the_other(name: str) -> None:
    first = ran(name, "client", NORMED)
    if first.recovery is None:
        pytest.skip(first.outcome.reason)
    start = None if name == "retrain" else first.recovery.state
    text = "client:site-b>client:site-c"
    run = original(NORMED).unlearn(name, text, recover=True, overrides=QUICK.get(name), start=start)
    assert_both_are_gone(run)
    assert "site-b" not in {asked.site for asked in run.grid.asked}, "it has left before"


@pytest.mark.parametrize("name", [name for name in NAMES if "class" in GRANULARITIES[name]])
def test_a_class_leaves_after_a_site(name: str) -> None:
    start = ran("fine-tuning", "client", NORMED).recovery
    assert start is not None
    text = "client:site-b>class:1"
    plan = plan_of(original(NORMED).sites(), text)
    if why_not := METHODS.get(name).unfit_for(plan):
        pytest.skip(why_not)
    run = original(NORMED).unlearn(
        name, text, recover=True, overrides=QUICK.get(name), start=None if name == "retrain" else start.state
    )
    assert run.outcome.state.is_finite()
    assert "site-b" not in {asked.site for asked in run.grid.asked}


# ---------------------------------------------------------------------- 8 cost
@each_case
def test_its_cost_is_what_was_sent_and_done(name: str, granularity: str, model: str) -> None:
    run = ran(name, granularity, model)
    cost, asked = run.outcome.cost, run.grid.asked
    assert (cost.bytes_down, cost.bytes_up) == (sum(a.down for a in asked), sum(a.up for a in asked))
    worked = [a for a in asked if a.reply.metrics["num-examples"]]
    assert cost.client_examples == sum(int(a.reply.metrics["examples"]) for a in worked)
    assert all(a.reply.metrics["examples"] >= 1 and a.reply.metrics["seconds"] > 0 for a in worked)
    assert (cost.seconds > 0) == (run.outcome.rounds > 0)
    assert cost.client_seconds == pytest.approx(sum(a.reply.metrics["seconds"] for a in worked))
    assert cost.disk_read == 0 or METHODS.get(name).needs.history or METHODS.get(name).needs.history_helps


# ---------------------------------------------------------------------- 7 one client with everything
ONE_SITE = {"site-all": 30}
ONE_CLASS = "class:1"


@cache
def alone(batch_size: int = 8) -> Original:
    """Return the original of a federation of one."""
    return Original(PLAIN, ONE_SITE, batch_size=batch_size)


def network(state: State) -> nn.Module:
    module = alone().built()
    state.load_into(module)
    return module


def records_of(which: str, text: str = ONE_CLASS) -> tuple[Tensor, Tensor]:
    site = alone().sites()["site-all"]
    indices = site.records(which, text, 0)  # type: ignore[arg-type]
    return site.worker.batch(site.train.inputs, site.train.targets, indices)


def epochs_of(n: int, epochs: int, purpose: str, round_: int, seed: int = 7) -> list[np.ndarray]:
    return batch_order(n, epochs, 8, "merge", derive_seed(seed, purpose, "site-all", round_))


def sgd(module: nn.Module, x: Tensor, y: Tensor, order: list[np.ndarray], lr: float, maximize: bool = False) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=lr, maximize=maximize)
    for places in order:
        optimizer.zero_grad()
        cross_entropy(module(x[places]), y[places]).backward()
        optimizer.step()


def assert_same(state: State, module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(state.params[name], parameter.detach(), atol=2e-6, rtol=1e-4)


def plain_fine_tuning() -> None:
    run = alone().unlearn("fine-tuning", ONE_CLASS, recover=True)
    assert run.recovery is not None
    module, (x, y) = network(alone().state), records_of("retain")
    for round_ in (1, 2):
        sgd(module, x, y, epochs_of(len(x), 1, "recovery", round_), 0.01)
    assert_same(run.recovery.state, module)


def plain_retrain() -> None:
    run = alone().unlearn("retrain", ONE_CLASS, seed=0)
    module, (x, y) = network(alone().initial), records_of("retain")
    for round_ in (1, 2, 3):
        sgd(module, x, y, epochs_of(len(x), 1, "train", round_, seed=0), 0.01)
    assert_same(run.outcome.state, module)


def plain_ascent() -> None:
    run = alone().unlearn("ga", ONE_CLASS, lr=1e-3)
    module, (x, y) = network(alone().state), records_of("forget")
    sgd(module, x, y, epochs_of(len(x), 2, "ga", 1), 1e-3, maximize=True)
    assert_same(run.outcome.state, module)


def _dampened(name: str, importance: Callable[[nn.Module, Tensor, Tensor], list[Tensor]]) -> None:
    """Compare with METHODS 2.6 on one batch of everything, which no order of batches can change."""
    whole = alone(batch_size=64)
    run = whole.unlearn(name, ONE_CLASS, overrides={"alpha": 1.5, "lambda": 1.0})
    module = network(whole.state).eval()
    of_forget, of_all = importance(module, *records_of("forget")), importance(module, *records_of("all"))
    changed = 0
    with torch.no_grad():
        for parameter, f, a in zip(module.parameters(), of_forget, of_all, strict=True):
            selected = f > 1.5 * a
            parameter[selected] *= torch.clamp(a[selected] / f[selected], max=1.0)
            changed += int(selected.sum())
    assert changed > 0
    assert_same(run.outcome.state, module)


def plain_ssd() -> None:
    def importance(module: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
        return [g**2 for g in torch.autograd.grad(cross_entropy(module(x), y), list(module.parameters()))]

    _dampened("ssd", importance)


def plain_lfssd() -> None:
    def importance(module: nn.Module, x: Tensor, _: Tensor) -> list[Tensor]:
        size = module(x).pow(2).sum(1).mean()
        return [g.abs() for g in torch.autograd.grad(size, list(module.parameters()))]

    _dampened("lfssd", importance)


def plain_prune() -> None:
    """Compare with METHODS 1.5 on the hidden layer, the only one that is not the head."""
    run = alone().unlearn("prune", ONE_CLASS, overrides={"rho": 0.3})
    module, (x, y) = network(alone().state).eval(), records_of("all")
    hidden = alone().layers[0]
    with torch.no_grad():
        activations = relu(module.get_submodule(hidden.name)(x.flatten(1)))
        mean = torch.stack([activations[y == label].double().mean(0) for label in range(3)], dim=1)
        totals = mean.sum(0)
        frequency = torch.where(totals > 0, mean / totals, torch.zeros_like(mean))
        spread = (mean >= mean.mean(1, keepdim=True)).sum(1)
        score = frequency[:, 1] * torch.log((1 + 3) / (1 + spread.double()))
        pruned = score.topk(int(0.3 * len(score))).indices
        for parameter in (hidden.weight, hidden.bias):
            module.get_parameter(parameter)[pruned] = 0
    assert_same(run.outcome.state, module)


PLAIN_LOOPS: dict[str, Callable[[], None]] = {
    "fine-tuning": plain_fine_tuning,
    "retrain": plain_retrain,
    "ga": plain_ascent,
    "ssd": plain_ssd,
    "lfssd": plain_lfssd,
    "prune": plain_prune,
}


@pytest.mark.parametrize("name", [name for name in PLAIN_LOOPS if name in NAMES])
def test_with_one_site_it_is_the_plain_loop(name: str) -> None:
    PLAIN_LOOPS[name]()


# ---------------------------------------------------------------------- other distributions
def test_a_method_of_another_distribution_is_one_among_them() -> None:
    assert "next-label" in NAMES
    assert OPERATIONS.get("learn_next_label").category == "train"
    (row,) = [row for row in method_rows() if row["name"] == "next-label"]
    assert row["needs"] == ["forget data", "logits", "departed online"]
    assert ran("next-label", "class", NORMED).outcome.state.sha256() != original(NORMED).state.sha256()


def test_names_are_those_of_the_registries() -> None:
    assert all(METHODS.get(name).name == name for name in NAMES)
    assert all(OPERATIONS.get(op).name == op and op.isidentifier() for op in OPERATIONS.names())


def test_a_distribution_that_is_gone_is_forgotten() -> None:
    assert set(NAMES) - set(WITHOUT_PLUGIN) == {"next-label"}


def test_entries_of_the_tables_have_a_known_form() -> None:
    for name in {*QUICK, *ZERO_STRENGTH} & set(NAMES):
        METHODS.get(name).resolve_config("lethe", {**QUICK.get(name, {}), **ZERO_STRENGTH.get(name, Zero()).overrides})
