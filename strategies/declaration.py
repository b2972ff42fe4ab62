"""What a method says about itself, checked before anything runs, and the model of its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

from partitions.errors import BadInput, unknown_name
from partitions.wording import allowed_in_words
from strategies.plans import RequestPlan

DEFAULT_PRESET = "lethe"
SHARED_PRESETS = ("lethe", "original", "safe", "common")
"""Presets that can be asked of every method; one that lacks it uses its `DEFAULT_PRESET`."""


@dataclass(frozen=True)
class Needs:
    """What a method must be given.

    Attributes
    ----------
    history : bool
        The recorded rounds of the original training.
    every_round : bool
        Of that history the sites' updates of every round.
    history_helps : bool
        It uses those rounds where they are there, and knows what to do without.
    forget_data, retain_data : bool
        Sites open those records during the unlearning step.
    logits : bool
        The task has class logits.
    departed_online : bool
        The departing site takes part in the unlearning step.
    """

    history: bool = False
    every_round: bool = False
    history_helps: bool = False
    forget_data: bool = False
    retain_data: bool = False
    logits: bool = False
    departed_online: bool = False


def _kebab(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


class MethodConfig(BaseModel):
    """Settings of a method: keys with hyphens, unknown ones refused, each with its range and source."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, alias_generator=_kebab, populate_by_name=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError("true and false are not numbers")
        return value

    recovery_max_norm: Annotated[
        float, Field(ge=0, description="gradient clip of this method's recovery; 0: the schedule's")
    ] = 0.0

    @classmethod
    def keys(cls) -> dict[str, Any]:
        """Return every key, hyphenated, with its default."""
        return {key: field.default for key, field in cls.fields_by_key().items()}

    @classmethod
    def fields_by_key(cls) -> dict[str, FieldInfo]:
        """Return every setting's field, which has its default, range and meaning, by its hyphenated key."""
        return {_kebab(name): field for name, field in cls.model_fields.items()}

    @classmethod
    def key_of(cls, name: str) -> str:
        """Return the hyphenated key of a field's name."""
        return _kebab(name)


class MethodDeclaration:
    """The declaration that every method class makes through class attributes.

    Attributes
    ----------
    name, title, citation, provenance, family : str
        Registry name, name to print, paper, where the facts were checked, kind of method.
    granularities : tuple of str
        Of client, class, patient and sample, those it can forget at.
    needs : Needs
        What it must be given, under the default preset's settings; see `needs_of`.
    not_for : dict of str to str
        Why it cannot be run honestly at the other granularities, where there is more to say.
    version : int
        Raised when a change makes old results wrong.
    Config : type of MethodConfig
        Its settings.
    presets : dict of str to dict
        Settings by preset; "lethe" is the paper's.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    citation: ClassVar[str]
    provenance: ClassVar[str]
    family: ClassVar[str]
    granularities: ClassVar[tuple[str, ...]]
    needs: ClassVar[Needs]
    not_for: ClassVar[dict[str, str]] = {}
    version: ClassVar[int] = 1
    Config: ClassVar[type[MethodConfig]] = MethodConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {DEFAULT_PRESET: {}}

    @classmethod
    def resolve_config(cls, preset: str = DEFAULT_PRESET, overrides: Mapping[str, Any] | None = None) -> MethodConfig:
        """Return the settings of a preset with some of them replaced.

        Raises
        ------
        BadInput
            For a preset or key that does not exist, with the nearest name, or a value out of range.
        """
        if preset not in {*cls.presets, *SHARED_PRESETS}:
            raise unknown_name("preset", preset, {*cls.presets, *SHARED_PRESETS})
        given = {**cls.presets.get(preset, cls.presets[DEFAULT_PRESET]), **(overrides or {})}
        known = cls.Config.keys()
        for key in given:
            if key not in known:
                raise unknown_name(f"{cls.name} setting", key, known)
        try:
            return cls.Config.model_validate(given)
        except ValidationError as error:
            key = str(error.errors()[0]["loc"][0])
            field = cls.Config.fields_by_key()[key]
            allowed = allowed_in_words(field)
            raise BadInput(f"{cls.name}.{key}", given[key], allowed, f"{key} is: {field.description}") from None

    @classmethod
    def needs_of(cls, config: MethodConfig) -> Needs:
        """Return what the method must be given under these settings: `needs`, where no setting changes it."""
        return cls.needs

    @classmethod
    def unfit(
        cls,
        granularity: str,
        *,
        has_history: bool,
        has_logits: bool,
        every_round: bool = True,
        config: MethodConfig | None = None,
    ) -> str:
        """Return why this method cannot do a request of that granularity, and what would help; empty when it can."""
        needs = cls.needs if config is None else cls.needs_of(config)
        if granularity not in cls.granularities:
            why = cls.not_for.get(granularity, f"{cls.name} forgets {', '.join(cls.granularities)} only")
            return f"not applicable to a {granularity} request: {why}"
        if needs.history and not has_history:
            return "it needs the history of the original training: train the original here instead of importing it"
        if needs.every_round and not every_round:
            return "it needs the updates of every round of the original training: train it with history-every=1"
        if needs.logits and not has_logits:
            return "it needs class logits, which this task has not"
        return ""

    @classmethod
    def unfit_for(cls, request: RequestPlan) -> str:
        """Return why this method cannot do this very request, given who holds what; empty when it can."""
        return ""
