"""The settings of one group of cells: one flat vocabulary for `flwr run`, `experiments.yaml` and ``--set``."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from flower_apps.cells import Exclusion, read_exclusions
from partitions.depot import NO_DEPOT, URLS, check_url
from partitions.errors import BadInput, unknown_name
from partitions.wording import allowed_in_words

Scalar = str | int | float | bool

PRECISIONS = (
    "32-true",
    "bf16-mixed",
    "bf16-true",
    "16-mixed",
    "16-true",
    "64-true",
    "transformer-engine",
    "transformer-engine-float16",
)
"""The names of Lightning Fabric; what a device or a task cannot do is refused where that is known."""
AUTO = "auto"
"""The sites' device decides, see `clients.worker.resolve_precision`."""
LARGEST = 2**63 - 1
"""The largest whole number that Flower's messages and the results table hold."""
PRECISION_ALIASES = {"32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed", "64": "64-true"}
"""Fabric's own short names, resolved here so that one precision has one name wherever it identifies a result."""


def _kebab(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


class GroupSettings(BaseModel):
    """Everything that one Flower run needs, as flat scalars.

    Keys are written with hyphens outside Python (``local-epochs``). Lists travel as text: methods and seeds separated
    by commas, requests by semicolons. Every key is described once, here.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=_kebab, populate_by_name=True, allow_inf_nan=False
    )

    # what it is called and where it goes
    name: Annotated[str, Field(description="experiment the results are filed under")] = "flwr-run"
    home: Annotated[str, Field(description="absolute LETHE_HOME; empty: the environment's, else ~/.lethe")] = ""
    out: Annotated[str, Field(description="absolute run folder; empty: a new one below LETHE_HOME/runs")] = ""
    depot: Annotated[
        str,
        Field(
            description="fsspec URL or absolute path that homes share data and stages by, or none; empty: LETHE_DEPOT"
        ),
    ] = ""
    # data and split
    dataset: Annotated[str, Field(description="a name of `lethe data list`")] = "lung-ct"
    cap: Annotated[int, Field(ge=0, description="records a class and patient at most; 0: all")] = 350
    split: Annotated[str, Field(description="natural, iid, dirichlet, quantity, slabs")] = "natural"
    sites: Annotated[int, Field(ge=0, le=10_000, description="number of sites; 0: as many as the split has")] = 0
    alpha: Annotated[float, Field(gt=0, description="Dirichlet concentration of a dirichlet or quantity split")] = 0.1
    sole_holder: Annotated[str, Field(description="SITE:CLASS, the only site that holds the class; empty: none")] = ""
    holdout: Annotated[
        float, Field(ge=0, le=0.9, description="share held out by sites without a split of their own")
    ] = 0.2
    split_seed: Annotated[int, Field(ge=0, description="seed of split and holdout")] = 0
    # a backdoor in the training records of one site
    backdoor_site: Annotated[str, Field(description="site whose training records are poisoned; empty: none")] = ""
    backdoor_target: Annotated[int, Field(ge=0, description="class index that the trigger stands for")] = 0
    backdoor_fraction: Annotated[
        float, Field(gt=0, le=1, description="share of that site's training records of other classes to poison")
    ] = 0.5
    backdoor_size: Annotated[int, Field(ge=1, description="side of the trigger in pixels of the stored records")] = 3
    backdoor_seed: Annotated[int, Field(ge=-1, description="seed of which are poisoned; -1: the split seed")] = -1
    # training
    task: Annotated[str, Field(description="task family")] = "classification"
    model: Annotated[str, Field(description="network: cnn or resnet18")] = "cnn"
    rounds: Annotated[int, Field(ge=1, description="training rounds")] = 20
    local_epochs: Annotated[int, Field(ge=1, description="epochs at a site in a round")] = 2
    batch_size: Annotated[int, Field(ge=1, description="records in a batch")] = 64
    last_batch: Annotated[
        Literal["keep", "drop", "merge"],
        Field(description="a last batch of one record: merge it with the one before, drop it, or keep it"),
    ] = "merge"
    lr: Annotated[float, Field(gt=0, description="learning rate of local SGD")] = 0.01
    momentum: Annotated[float, Field(ge=0, lt=1, description="momentum of local SGD")] = 0.0
    weight_decay: Annotated[float, Field(ge=0, description="weight decay of local SGD")] = 0.0
    strategy: Annotated[Literal["fedavg", "fedprox", "fedadam"], Field(description="training strategy")] = "fedavg"
    prox_mu: Annotated[float, Field(ge=0, description="FedProx proximal weight")] = 0.01
    server_lr: Annotated[float, Field(gt=0, description="FedAdam server learning rate")] = 0.01
    fraction_train: Annotated[float, Field(gt=0, le=1, description="share of sites that train in a round")] = 1.0
    train_seed: Annotated[int, Field(ge=0, description="seed of initial weights, batches and sampling")] = 0
    original: Annotated[str, Field(description="safetensors file to start from instead of training; empty: train")] = ""
    # requests and methods
    requests: Annotated[str, Field(description="requests, separated by ';'; a sequence joined by '>'")] = (
        "client:patient-1"
    )
    request_seed: Annotated[int, Field(ge=-1, description="seed of sample requests; -1: the train seed")] = -1
    methods: Annotated[str, Field(description="methods of `lethe methods`, comma separated")] = "ga,federaser,fedquit"
    preset: Annotated[str, Field(description="preset of every method: lethe, original, safe where a method has it")] = (
        "lethe"
    )
    overrides: Annotated[str, Field(description='method settings as JSON, {"ga": {"max-norm": 5}}; empty: none')] = ""
    exclude: Annotated[
        str, Field(description='cells left out, as JSON, [{"method": "ga", "request": "class:5"}]; empty: none')
    ] = ""
    search: Annotated[
        str,
        Field(description='settings to search as JSON, {"ga": {"max-norm": [1, 5]}}, on training records; empty: none'),
    ] = ""
    search_sampler: Annotated[Literal["grid", "random", "tpe"], Field(description="how a search draws its trials")] = (
        "grid"
    )
    search_trials: Annotated[
        int, Field(ge=1, le=10_000, description="trials of a method at most, for each request")
    ] = 16
    search_seed: Annotated[int, Field(ge=0, description="seed of the trials that are drawn")] = 0
    search_rule: Annotated[
        Literal["retain-forget", "oracle"],
        Field(description="best trial: retained minus forgotten training records, or nearest to gold on both"),
    ] = "retain-forget"
    search_checkpoint: Annotated[
        Literal["unlearned", "recovered"], Field(description="model of a trial that the rule looks at")
    ] = "recovered"
    unlearn_epochs: Annotated[int, Field(ge=0, description="local epochs of the unlearning step")] = 5
    unlearn_seeds: Annotated[str, Field(description="unlearning seeds, comma separated")] = "0"
    recovery_rounds: Annotated[int, Field(ge=0, description="recovery rounds on the retained records")] = 5
    recovery_epochs: Annotated[int, Field(ge=1, description="local epochs of a recovery round")] = 2
    recovery_max_norm: Annotated[float, Field(ge=0, description="gradient clip of recovery; 0: none")] = 0.0
    relearn_epochs: Annotated[
        int, Field(ge=0, description="epochs of relearning what was forgotten, a test of durability; 0: none")
    ] = 0
    evaluate_seeds: Annotated[str, Field(description="evaluation seeds, comma separated")] = "0"
    shadows: Annotated[
        int,
        Field(
            ge=0,
            le=256,
            multiple_of=2,
            description="shadow federations of the membership attacks, and as many references; 0: none",
        ),
    ] = 0
    features: Annotated[
        int, Field(ge=0, description="forget and retain records, each, a site is asked features of at most; 0: none")
    ] = 0
    # how it is computed; part of what identifies a result
    precision: Annotated[
        str,
        Field(
            description="Lightning Fabric precision: 32-true, bf16-mixed, ..., or auto: bf16-mixed where it is native"
        ),
    ] = "32-true"
    channels_last: Annotated[bool, Field(description="channels_last memory format")] = True
    threads: Annotated[int, Field(ge=1, le=256, description="torch threads of a worker")] = 1
    device: Annotated[Literal["auto", "cpu", "cuda", "mps"], Field(description="device of the sites")] = "auto"
    failure_policy: Annotated[
        Literal["fail", "continue"], Field(description="a site that raises: end the run, or go on without it")
    ] = "fail"
    # what is kept of the original's rounds, once it is trained; methods that replay them see what is left
    history_every: Annotated[
        int, Field(ge=1, description="keep the sites' updates of every n-th round of the original")
    ] = 1
    history_half: Annotated[bool, Field(description="keep those updates in 16 bits")] = False
    # where and how fast; never part of what identifies a result
    workers: Annotated[int, Field(ge=0, description="sites at work at once at most; 0: as the command says")] = 0
    gpu_share: Annotated[float, Field(ge=0, le=1, description="share of a GPU that a site takes; 0: by workers")] = 0.0
    jobs: Annotated[int, Field(ge=0, description="groups at work at once, recorded with timings; 0: unknown")] = 0
    lane: Annotated[
        str, Field(description="absolute folder in which `lethe run` names one group after the other; empty: this one")
    ] = ""
    evaluator: Annotated[str, Field(description="URL of the evaluator that scores; empty: the run itself")] = ""
    track: Annotated[str, Field(description="tools to follow the run in: tensorboard, mlflow; empty: none")] = ""
    timeout: Annotated[float, Field(gt=0, description="seconds a round may take before the run ends")] = 3600.0
    fresh: Annotated[bool, Field(description="compute again what the cache has")] = False
    keep_histories: Annotated[bool, Field(description="keep the rounds of retrained and unlearned models too")] = False

    @field_validator("*", mode="before")
    @classmethod
    def _read_scalar(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false for numbers, and read a whole number as text where text is wanted (``seeds: 0``)."""
        wanted = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and wanted in (int, float):
            raise ValueError("true and false are not numbers")
        if wanted is str and isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return value.strip() if isinstance(value, str) else value

    @field_validator("precision")
    @classmethod
    def _known_precision(cls, value: str) -> str:
        full = PRECISION_ALIASES.get(value, value)
        if full not in (AUTO, *PRECISIONS):
            raise ValueError("unknown precision")
        return full

    @field_validator("home", "out", "original", "lane")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if value and not Path(value).is_absolute():
            raise ValueError("a relative path means another folder in every process")
        return value

    @field_validator("evaluator")
    @classmethod
    def _address(cls, value: str) -> str:
        if value:
            from evaluation.service.address import check_address

            check_address(value)
        return value.rstrip("/")

    @field_validator("depot")
    @classmethod
    def _depot(cls, value: str) -> str:
        if value and value != NO_DEPOT:
            check_url(value)
        return value.rstrip("/")

    @classmethod
    def keys(cls) -> dict[str, Any]:
        """Return every key, hyphenated, with its default."""
        return {_kebab(name): field.default for name, field in cls.model_fields.items()}

    @classmethod
    def describe(cls, key: str) -> str:
        """Return what the hyphenated `key` means."""
        return cls.model_fields[key.replace("-", "_")].description or ""

    @classmethod
    def allowed(cls, key: str) -> str:
        """Return in words what the hyphenated `key` takes, for example ``"a number above 0 and up to 1"``."""
        if key == "precision":
            return "one of " + ", ".join((AUTO, *PRECISIONS))
        if key in ("home", "out", "original", "lane"):
            return "an absolute path, or empty"
        if key == "depot":
            return URLS
        if key == "evaluator":
            return "an address such as http://127.0.0.1:8799, without user and password, or empty"
        return allowed_in_words(cls.model_fields[key.replace("-", "_")])

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> GroupSettings:
        """Validate flat values from TOML, YAML or text; raises `BadInput` naming the first key at fault.

        Text is read as the key's type (``"3"``, ``"1e-4"``, ``"true"``); an unknown key's error names the nearest.
        """
        known = cls.keys()
        for key in values:
            if key not in known:
                raise unknown_key(str(key), known)
        try:
            settings = cls.model_validate(dict(values))
        except ValidationError as error:
            key = str(error.errors()[0]["loc"][0])
            raise _refusal(key, values[key]) from None
        for key, value in settings.to_run_config().items():
            if isinstance(value, int) and value > LARGEST:
                raise BadInput(key, value, f"a whole number up to {LARGEST}")
        settings.seeds("unlearn"), settings.seeds("evaluate"), settings.method_overrides(), settings.exclusions()
        settings.searched()
        return settings

    def to_run_config(self) -> dict[str, Scalar]:
        """Return the flat scalars of `flwr run --run-config`, hyphenated."""
        return {_kebab(name): getattr(self, name) for name in type(self).model_fields}

    def method_names(self) -> list[str]:
        """Return the methods in the order given, without repeats."""
        return list(dict.fromkeys(part.strip() for part in self.methods.split(",") if part.strip()))

    def tracking_names(self) -> list[str]:
        """Return the tools to follow the run in, in the order given, without repeats."""
        return list(dict.fromkeys(part.strip() for part in self.track.split(",") if part.strip()))

    def request_texts(self) -> list[str]:
        """Return the requests in the order given, without repeats; a sequence stays one text joined by '>'."""
        return list(dict.fromkeys(part.strip() for part in self.requests.split(";") if part.strip()))

    def seeds(self, which: Literal["unlearn", "evaluate"]) -> list[int]:
        """Return the unlearning or evaluation seeds."""
        key = f"{which}-seeds"
        text = self.unlearn_seeds if which == "unlearn" else self.evaluate_seeds
        try:
            seeds = list(dict.fromkeys(int(part) for part in str(text).split(",")))
        except ValueError:
            raise BadInput(key, text, "whole numbers separated by commas") from None
        if not seeds or min(seeds) < 0 or max(seeds) > LARGEST:
            raise BadInput(key, text, f"at least one whole number from 0 to {LARGEST}")
        return seeds

    def method_overrides(self) -> dict[str, dict[str, Any]]:
        """Return the method settings by method name; raises `BadInput` when `overrides` is not JSON objects."""
        return _json_objects("overrides", self.overrides, '{"ga": {"max-norm": 5}}')

    def searched(self) -> dict[str, dict[str, Any]]:
        """Return what is searched, by method and setting; raises `BadInput` when `search` is not JSON objects.

        `flower_apps.search_space.spaces_of` checks what they hold.
        """
        return _json_objects("search", self.search, '{"ga": {"max-norm": [1, 5]}}')

    def exclusions(self) -> list[Exclusion]:
        """Return the cells that are left out; raises `BadInput` when `exclude` is not JSON of the right form."""
        return read_exclusions(self.exclude)


def _json_objects(key: str, text: str, example: str) -> dict[str, dict[str, Any]]:
    if not text:
        return {}
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadInput(key, text, "a JSON object", str(error)) from None
    if not isinstance(parsed, dict) or not all(isinstance(v, dict) for v in parsed.values()):
        raise BadInput(key, text, f"a JSON object of objects, such as {example}")
    return parsed


def unknown_key(key: str, known: Iterable[str]) -> BadInput:
    """Make the error for a key that does not exist; names all keys only when none is near."""
    names = list(known)
    near = difflib.get_close_matches(key.replace("_", "-"), names, n=1, cutoff=0.5)
    if not near:
        return unknown_name("setting", key, names)
    return BadInput("setting", key, "a key that `python -m flower_apps.settings` lists", f"did you mean {near[0]!r}?")


def _refusal(key: str, value: Any) -> BadInput:
    """Make the one-line error for a value that its key does not take."""
    allowed = GroupSettings.allowed(key)
    names = allowed.removeprefix("one of ").split(", ") if allowed.startswith("one of ") else []
    near = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
    meaning = f"{key} is: {GroupSettings.describe(key)}"
    return BadInput(key, value, allowed, f"did you mean {near[0]!r}?" if near else meaning)


def flower_config() -> str:
    """Return the ``[tool.flwr.app.config]`` table of pyproject.toml: every key, its default and its meaning."""
    lines = ["[tool.flwr.app.config]"]
    for key, default in GroupSettings.keys().items():
        lines.append(f"{key} = {json.dumps(default, ensure_ascii=False)}  # {GroupSettings.describe(key)}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(flower_config(), end="")
