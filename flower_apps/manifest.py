"""The manifest: experiments by name in one YAML file, each multiplied out into groups of cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flower_apps.experiment import OWN_EXAMPLES, OWN_KEYS, Experiment, check_experiment, check_key, place, resolve
from flower_apps.multiply import absolute, expand
from flower_apps.settings import GroupSettings
from flower_apps.strict_yaml import read_yaml, read_yaml_file
from partitions.errors import BadInput, unknown_name

DEFAULT = "quickstart"
"""The experiment that is meant when none is named."""


@dataclass(frozen=True)
class Manifest:
    """The experiments of one file, in its order.

    Attributes
    ----------
    path : Path
        The file.
    experiments : mapping of str to Experiment
        Those that can run: without those that are there to be extended.
    """

    path: Path
    experiments: Mapping[str, Experiment]

    def get(self, name: str) -> Experiment:
        """Return the experiment called `name`; raises `BadInput` with the nearest name."""
        if name.startswith("_"):
            raise BadInput("experiment", name, "a name without '_' at its start", "such a part is there to be extended")
        if name not in self.experiments:
            error = unknown_name("experiment", name, self.experiments)
            raise BadInput(error.key, name, f"{error.allowed}, of {self.path}", error.remedy)
        return self.experiments[name]

    def default(self) -> str:
        """Return the experiment that is meant when none is named: quickstart, or the only one there is."""
        names = list(self.experiments)
        if DEFAULT in names or len(names) == 1:
            return DEFAULT if DEFAULT in names else names[0]
        raise BadInput("experiment", "", f"one of {', '.join(names)}", f"name one: {self.path} has several")

    def choose(self, names: Sequence[str], tags: Sequence[str] = ()) -> list[str]:
        """Return the experiments that are named, then those with any of the tags; without either, the default one.

        Raises
        ------
        BadInput
            For a name or a tag that no experiment has, with the nearest.
        """
        known = {tag for experiment in self.experiments.values() for tag in experiment.tags}
        for tag in tags:
            if tag not in known:
                raise unknown_name("--tag", tag, known)
        tagged = [name for name, experiment in self.experiments.items() if set(tags) & set(experiment.tags)]
        return list(dict.fromkeys([self.get(name).name for name in names] + tagged)) or [self.default()]

    def groups(
        self, names: Sequence[str], sets: Sequence[str] = (), flags: Mapping[str, str] | None = None
    ) -> list[GroupSettings]:
        """Return the groups of the named experiments, without repeats.

        Every ``key=value`` of `sets` is applied, then `flags`, values of settings that have a flag of their own.
        """
        overrides = [*(_read_set(text) for text in sets), *(flags or {}).items()]
        with self.placing(names, sets, flags):
            found = [group for name in names for group in expand(self.get(name), overrides, self.path.parent)]
        return list(dict.fromkeys(found))

    @contextmanager
    def placing(
        self, names: Sequence[str], sets: Sequence[str] = (), flags: Mapping[str, str] | None = None
    ) -> Iterator[None]:
        """Name, in a `BadInput` about one of the experiments, the entry or the flag that states the value.

        The error's key has the experiment in front (`partitions.errors.naming`); one that has not stays as it is.
        """
        stated = {key: f"--set {key}" for key in (text.partition("=")[0].strip() for text in sets)}
        stated |= {key: f"--{key}" for key in flags or {}}
        try:
            yield
        except BadInput as error:
            raise place(error, [self.experiments[name] for name in names if name in self.experiments], stated) from None


def default_manifest() -> Path:
    """Return ``experiments.yaml`` of the working directory, else the one that ships with Lethe."""
    here = Path.cwd() / "experiments.yaml"
    return here if here.is_file() else Path(__file__).resolve().parent.parent / "experiments.yaml"


def load_manifest(path: Path) -> Manifest:
    """Read a manifest.

    Every experiment is checked, also those that nobody asked for.

    Raises
    ------
    BadInput
        Naming file, experiment, key and value: not YAML, an unknown key, a value its key does not take, an
        experiment that extends one that is not there or itself, an exclusion that fits nothing.
    """
    if not path.is_file():
        raise BadInput("manifest", str(path), "a YAML file of experiments", "name one with --manifest FILE")
    written = read_yaml_file(path)
    if not isinstance(written, dict) or not written:
        raise BadInput("manifest", str(path), "a mapping of experiment names to their settings")
    for name, values in written.items():
        check_experiment(name, values)
    experiments = resolve(written)
    for experiment in experiments:
        try:
            expand(experiment, [], path.parent)
        except BadInput as error:
            raise place(error, [experiment]) from None
    runnable = {experiment.name: experiment for experiment in experiments if not experiment.is_part}
    if not runnable:
        raise BadInput("manifest", str(path), "at least one experiment whose name has no '_' at its start")
    return Manifest(path.resolve(), runnable)


def _read_set(text: str) -> tuple[str, Any]:
    """Read one ``key=value`` of ``--set``; the value is YAML when it opens a list or a mapping, else text."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise BadInput("--set", text, "key=value, such as rounds=5 or ga.max-norm=5")
    if "." not in key:
        check_key(key, "--set")
    if key in OWN_KEYS:
        raise BadInput("--set", key, "a setting", f"write it in the manifest, such as {OWN_EXAMPLES[key]}")
    read: Any = value
    if "." in key or value.lstrip()[:1] in ("[", "{"):
        read = read_yaml(value, f"--set {key}")
    return key, absolute(read, Path.cwd()) if key == "original" else read
