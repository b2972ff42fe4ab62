"""UNSIR, server half (METHODS 2.5): holders of a class, or of forget and retained records, impair and repair once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from partitions.requests import parse_request
from strategies.base import MethodConfig, Needs, UnlearningStrategy
from strategies.plans import RequestPlan
from strategies.rounds import Ask, Contribution, Merged
from strategies.wire import Scalar
from unlearning.state import State


class UnsirConfig(MethodConfig):
    """Settings of UNSIR: of the class version from the authors' notebook, of the instance version from MUFAC's."""

    noise_steps: Annotated[int, Field(ge=0, description="Adam steps on a class's noise; 40 authors, 25 SUPREME")] = 40
    noise_lr: Annotated[float, Field(ge=0, description="Adam's rate on a class's noise [authors]")] = 0.1
    noise_weight: Annotated[
        float, Field(ge=0, description="of the noise's squared size, summed over pixels [authors]")
    ] = 0.1
    noise_repeats: Annotated[int, Field(ge=0, description="times the noise is shown; 20 authors, 80 SUPREME")] = 20
    retain_per_class: Annotated[
        int, Field(ge=1, description="retained records of a class at most; 1000 authors, 500 SUPREME")
    ] = 1000
    instance_steps: Annotated[int, Field(ge=0, description="Adam steps on the noise of a pair of batches [MUFAC]")] = 5
    instance_lr: Annotated[float, Field(ge=0, description="Adam's rate on that noise [MUFAC]")] = 0.01
    optimizer: Annotated[
        Literal["sgd", "adam"], Field(description="of the weights: sgd as in training and MUFAC, adam authors, SUPREME")
    ] = "sgd"
    impair_lr: Annotated[
        float, Field(ge=0, description="0: the training's; 0.02 authors, 1e-4 SUPREME, 1e-3 MUFAC")
    ] = 0.0
    repair_lr: Annotated[
        float, Field(ge=0, description="0: the training's; 0.01 authors, 1e-4 SUPREME, 1e-3 MUFAC")
    ] = 0.0
    impair_epochs: Annotated[int, Field(ge=0, description="passes over noise and retained records")] = 1
    repair_epochs: Annotated[int, Field(ge=0, description="passes over retained records alone")] = 1
    bn_mode: Annotated[
        Literal["eval", "train"], Field(description="BatchNorm of the weights' steps: train authors, eval MUFAC")
    ] = "train"


class Unsir(UnlearningStrategy):
    """Teach the model noise in place of what it must forget, then repair it on retained records."""

    name: ClassVar[str] = "unsir"
    title: ClassVar[str] = "UNSIR"
    citation: ClassVar[str] = "Tarun et al. 2023, TNNLS; instance version: Choi and Na 2023, arXiv 2311.02240"
    provenance: ClassVar[str] = (
        "authors' notebook (class version) and MUFAC's (instance version), values of SUPREME as a preset; ours are the "
        "training's optimiser by default, noise labelled with its own class, pairs of unequal batches cut, not skipped"
    )
    family: ClassVar[str] = "noise"
    granularities: ClassVar[tuple[str, ...]] = ("class", "patient", "sample")
    not_for: ClassVar[dict[str, str]] = {
        "client": "the instance version pairs forget with retained records at one site, and a departing site keeps none"
    }
    needs: ClassVar[Needs] = Needs(forget_data=True, retain_data=True, logits=True)
    Config = UnsirConfig
    presets = {  # noqa: RUF012
        "lethe": {},
        "common": {},
        "original": {"optimizer": "adam", "impair-lr": 0.02, "repair-lr": 0.01},
        "supreme": {
            **{"noise-steps": 25, "noise-repeats": 80, "retain-per-class": 500},
            **{"optimizer": "adam", "impair-lr": 1e-4, "repair-lr": 1e-4},
        },
        "mufac": {"impair-lr": 1e-3, "repair-lr": 1e-3, "bn-mode": "eval"},
        "safe": {"recovery-max-norm": 5.0},
    }

    config: UnsirConfig

    @classmethod
    def unfit_for(cls, request: RequestPlan) -> str:
        """Return why not where no holder of forget records could pair them with retained ones."""
        if request.granularity == "class" or set(request.forget_holders) & set(request.retain_holders):
            return ""
        return f"not applicable to {request.text}: no site holds both forget and retained records to pair"

    @property
    def rounds(self) -> int:
        """Return 1."""
        return 1

    def ask_for(self, round_: int) -> Ask:
        """Ask the sites to learn their noise, impair and repair."""
        config = self.config
        own: dict[str, Scalar | list[str]] = {
            "optimizer": config.optimizer,
            "impair-lr": config.impair_lr or self.schedule.lr,
            "repair-lr": config.repair_lr or self.schedule.lr,
            "impair-epochs": config.impair_epochs,
            "repair-epochs": config.repair_epochs,
            "epochs": config.impair_epochs + config.repair_epochs,
            "bn-mode": config.bn_mode,
        }
        if self.request.granularity != "class":
            noise = {"noise-steps": config.instance_steps, "noise-lr": config.instance_lr}
            return Ask("unsir_instance", self._sites, {**self.step_config(round_, "both"), **own, **noise})
        noise = {"noise-steps": config.noise_steps, "noise-lr": config.noise_lr, "noise-weight": config.noise_weight}
        own["classes"] = list(parse_request(self.request.text).steps[-1].values)
        sizes = {"noise-repeats": config.noise_repeats, "retain-per-class": config.retain_per_class}
        message = {**self.step_config(round_, "retain"), **own, **noise, **sizes}
        return Ask("unsir_class", self._sites, message, weight_key="num-retain")

    def merge(self, round_: int, state: State, contributions: Sequence[Contribution]) -> Merged:
        """Average by retained records for a class, by forget records otherwise, and name the holders left out."""
        merged = super().merge(round_, state, contributions)
        left_out = ", ".join(site for site in self.request.forget_holders if site not in self._sites)
        if not left_out:
            return merged
        return replace(merged, remarks=(*merged.remarks, f"without retained records, so not asked: {left_out}"))

    @property
    def _sites(self) -> tuple[str, ...]:
        """Return the forget holders that keep retained records; for a class any other site can stand in for them."""
        request = self.request
        keepers = tuple(site for site in request.forget_holders if site in request.retain_holders)
        return keepers or (request.retain_holders if request.granularity == "class" else ())


METHOD = Unsir
