"""What a hyper-parameter search tries: the settings of each method with their values, checked before anything runs."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from flower_apps.cells import CONTROL, GOLD
from flower_apps.settings import GroupSettings
from partitions.errors import BadInput, unknown_name
from partitions.seeds import derive_seed, generator
from partitions.wording import allowed_in_words
from strategies.base import UnlearningStrategy
from strategies.registry import METHODS

UNSEARCHED = (GOLD, CONTROL)
"""Gold and the control arm: what everything is compared with is never tuned."""
RANGE_KEYS = ("low", "high", "log", "step")
MOST_VALUES = 1000
"""Of a setting in a grid."""
MOST_STEPS = 1_000_000
"""Of a range that has a step."""
LARGEST_WHOLE = 2**53
"""Up to here every whole number is a float, which the samplers compute in."""


@dataclass(frozen=True)
class Choice:
    """A setting's values, in the order given."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Range:
    """A setting's values from `low` to `high`, both included.

    Attributes
    ----------
    low, high : float
        Ends.
    log : bool
        Whether every order of magnitude is as likely.
    step : float or None
        Distance of two values; None: any number between.
    whole : bool
        Whole numbers only.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None
    whole: bool = False

    @property
    def values(self) -> tuple[float, ...] | None:
        """All values, where they can be listed."""
        step = 1 if self.whole and self.step is None else self.step
        if step is None or (count := math.floor((self.high - self.low) / step + 1e-9) + 1) > MOST_VALUES:
            return None
        found = (Decimal(repr(self.low)) + place * Decimal(repr(step)) for place in range(count))
        return tuple(int(value) if self.whole else float(value) for value in found)


@dataclass(frozen=True)
class Space:
    """What is tried of one method.

    Attributes
    ----------
    method : str
        Registry name.
    dimensions : mapping of str to Choice or Range
        By setting, hyphenated, in the order given.
    """

    method: str
    dimensions: Mapping[str, Choice | Range]

    @property
    def size(self) -> int | None:
        """How many combinations there are; None where they cannot be counted."""
        counts = [None if one.values is None else len(one.values) for one in self.dimensions.values()]
        known = [count for count in counts if count is not None]
        return math.prod(known) if len(known) == len(counts) else None

    def combination(self, number: int) -> dict[str, Any]:
        """Return a combination by its number from 0; the last setting changes fastest."""
        found: dict[str, Any] = {}
        for key, dimension in reversed(list(self.dimensions.items())):
            values = dimension.values or ()
            number, place = divmod(number, len(values))
            found[key] = values[place]
        return {key: found[key] for key in self.dimensions}


class Proposals:
    """Proposes one trial after the other: the same ones again for the same scores, so that a search can be replayed.

    Parameters
    ----------
    space : Space
        What is tried.
    sampler : str
        ``grid``, ``random`` or ``tpe``.
    trials : int
        How many will be asked for.
    seed : int
        Of the sampler. A method's proposals do not depend on which other methods are searched.
    """

    def __init__(self, space: Space, sampler: str, trials: int, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        own = derive_seed(seed, f"search {space.method}") % 2**32
        # a third of the trials at random before TPE has anything to go by; Optuna's own ten may be all there are
        start = min(10, max(1, trials // 3))
        tpe = optuna.samplers.TPESampler(seed=own, n_startup_trials=start)
        chosen = tpe if sampler == "tpe" else optuna.samplers.RandomSampler(seed=own)
        self._study = optuna.create_study(direction="maximize", sampler=chosen)
        self._space, self._distributions = space, {k: _distribution(d) for k, d in space.dimensions.items()}
        self._failed = optuna.trial.TrialState.FAIL
        self._grid = iter(_grid(space, trials, seed)) if sampler == "grid" else None
        self._asked: Any = None

    def ask(self) -> dict[str, Any]:
        """Return the settings of the next trial."""
        if self._grid is not None:
            return next(self._grid)
        self._asked = self._study.ask(self._distributions)
        dimensions = self._space.dimensions
        return {
            key: found.values[self._asked.params[key]] if isinstance(found, Choice) else self._asked.params[key]
            for key, found in dimensions.items()
        }

    def tell(self, score: float) -> None:
        """Tell what came of the last one: higher is better, NaN is a failure."""
        if self._grid is None and math.isnan(score):
            self._study.tell(self._asked, state=self._failed)
        elif self._grid is None:
            self._study.tell(self._asked, score)


def spaces_of(settings: GroupSettings) -> dict[str, Space]:
    """Return what is to be tried of every searched method, in the order of the methods.

    Raises
    ------
    BadInput
        For a method that does not run, a setting it does not have, each with the nearest name, or values that the
        setting does not take.
    """
    asked = settings.searched()
    methods = [name for name in settings.method_names() if name not in UNSEARCHED]
    for name in asked:
        if name not in methods:
            raise unknown_name("search", name, methods)
    return {name: _space(settings, name, asked[name]) for name in methods if name in asked}


def trials_per_method(settings: GroupSettings) -> dict[str, int]:
    """Return how many trials each searched method gets for a request; empty without a search.

    They are made under the first unlearning seed. The preset itself is run and scored in any case.
    """
    return {name: _count(space, settings) for name, space in spaces_of(settings).items()}


def proposals_of(space: Space, settings: GroupSettings) -> Proposals:
    """Return the proposals of a method's search."""
    return Proposals(space, settings.search_sampler, _count(space, settings), settings.search_seed)


def _count(space: Space, settings: GroupSettings) -> int:
    """Return `search-trials`, or how many combinations there are where they are fewer."""
    return settings.search_trials if space.size is None else min(space.size, settings.search_trials)


def _grid(space: Space, trials: int, seed: int) -> list[dict[str, Any]]:
    """Return the combinations in order; of more than there are trials a draw, still in order."""
    size = space.size
    assert size is not None, "checked by `spaces_of`"
    numbers = generator(seed, f"search grid {space.method}").choice(size, trials, replace=False)
    return [space.combination(int(number)) for number in sorted(numbers)]


def _distribution(dimension: Choice | Range) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(dimension, Choice):
        return CategoricalDistribution(range(len(dimension.values)))
    low, high, log, step = dimension.low, dimension.high, dimension.log, dimension.step
    if dimension.whole:
        return IntDistribution(int(low), int(high), log=log, step=int(step or 1))
    if step is not None:
        high = low + step * math.floor((high - low) / step + 1e-9)
    return FloatDistribution(low, high, log=log, step=step)


# ---------------------------------------------------------------------- reading what was written
def _space(settings: GroupSettings, name: str, written: Mapping[str, Any]) -> Space:
    method, key = METHODS.get(name), f"search.{name}"
    if not written:
        raise BadInput(key, written, "at least one setting with its values", f"or leave {name} out of search")
    dimensions: dict[str, Choice | Range] = {}
    for setting, values in written.items():
        known = method.Config.keys()
        if setting not in known:
            raise unknown_name(key, setting, known)
        dimensions[setting] = _dimension(settings, method, setting, values)
    return Space(name, dimensions)


def _dimension(settings: GroupSettings, method: type[UnlearningStrategy], setting: str, written: Any) -> Choice | Range:
    key = f"search.{method.name}.{setting}"
    if isinstance(written, list):
        if not written:
            raise BadInput(key, written, "at least one value")
        found: dict[str, Any] = {}
        for value in written:
            _check_number(value, key)
            resolved = _resolved(settings, method, setting, value)
            if resolved in found:
                raise BadInput(key, value, "each value once")
            found[resolved] = value
        return Choice(tuple(found.values()))
    if isinstance(written, dict):
        made = _range(method, setting, key, written)
        for end in (made.low, made.high):
            _resolved(settings, method, setting, int(end) if made.whole else end)
        if settings.search_sampler == "grid" and made.values is None:
            raise BadInput(
                key, written, f"a list, or a step that gives up to {MOST_VALUES} values, with search-sampler=grid"
            )
        return made
    raise BadInput(key, written, "a list of values, or a mapping such as {low: 0.001, high: 0.1, log: true}")


def _range(method: type[UnlearningStrategy], setting: str, key: str, written: Mapping[str, Any]) -> Range:
    for part in written:
        if part not in RANGE_KEYS:
            raise unknown_name(key, str(part), RANGE_KEYS)
    field = method.Config.fields_by_key()[setting]
    kinds = _numbers(field.annotation)
    if not kinds:
        raise BadInput(key, dict(written), f"a list of values, since {setting} is {allowed_in_words(field)}")
    whole = float not in kinds
    for part in ("low", "high", "step"):
        value = written.get(part)
        if part not in written and part == "step":
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadInput(f"{key}.{part}", value, "a number")
        _check_number(value, f"{key}.{part}")
        if whole and not (float(value).is_integer() and abs(value) <= LARGEST_WHOLE):
            raise BadInput(f"{key}.{part}", value, f"a whole number up to {LARGEST_WHOLE} in size")
    low, high, log, step = written["low"], written["high"], written.get("log", False), written.get("step")
    if not isinstance(log, bool):
        raise BadInput(f"{key}.log", log, "true or false")
    if low >= high:
        raise BadInput(f"{key}.high", high, f"a number above low, {low}")
    if log and step is not None:
        raise BadInput(f"{key}.step", step, "nothing, since steps are even and log is not")
    if log and low <= 0:
        raise BadInput(f"{key}.low", low, "a number above 0, since log is true")
    if step is not None and not 0 < step <= high - low:
        raise BadInput(f"{key}.step", step, f"a number above 0 and up to {high - low:g}, from low to high")
    if not math.isfinite(high - low):
        raise BadInput(f"{key}.high", high, f"a number that low, {low:g}, can be taken from")
    if step is not None and ((high - low) / step > MOST_STEPS or low + step == low or high - step == high):
        raise BadInput(f"{key}.step", step, f"a number that gives up to {MOST_STEPS} different values")
    return Range(low, high, log, step, whole)


def _check_number(value: Any, key: str) -> None:
    """Refuse a number that no float holds: infinite, not a number, or so small that it loses digits."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value == 0:
        return
    least, most = sys.float_info.min, sys.float_info.max
    if not least <= abs(value) <= most:
        raise BadInput(key, value, f"0, or a number of {least:.3g} to {most:.3g} in size")


def _numbers(annotation: Any) -> set[type]:
    """Return which of int and float a field takes."""
    if get_origin(annotation) is Annotated:
        return _numbers(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return {kind for part in get_args(annotation) for kind in _numbers(part)}
    return {annotation} & {int, float}


def _resolved(settings: GroupSettings, method: type[UnlearningStrategy], setting: str, value: Any) -> str:
    """Return the method's settings with that value, as text; raises `BadInput` for one that is not taken."""
    overrides = settings.method_overrides().get(method.name, {})
    try:
        return method.resolve_config(settings.preset, {**overrides, setting: value}).model_dump_json()
    except BadInput as error:
        raise BadInput(f"search.{error.key}", error.value, error.allowed, error.remedy) from None
