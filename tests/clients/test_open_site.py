"""Sites of a prepared data set: opened once per process, memory-mapped, by place or by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clients.ops import Call, train
from clients.site import SiteSettings, open_site, reference_view
from partitions.errors import BadInput
from partitions.partition import SplitSpec


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> SiteSettings:
    split = SplitSpec(name="dirichlet", sites=4, alpha=1.0)
    return SiteSettings(tmp_path_factory.mktemp("home"), "digits", 60, split, device="cpu")


def test_a_site_is_opened_once_per_process(settings: SiteSettings) -> None:
    assert open_site(settings, 1) is open_site(settings, 1)


def test_place_and_name_open_the_same_records(settings: SiteSettings) -> None:
    by_place, by_name = open_site(settings, 1), open_site(settings, None, "site-1")
    assert by_place.name == "site-1"
    assert by_place.fingerprint == by_name.fingerprint


def test_sites_share_one_mapped_array_and_the_model(settings: SiteSettings) -> None:
    sites = [open_site(settings, k) for k in range(4)]
    assert all(site.train.inputs is sites[0].train.inputs for site in sites)
    assert isinstance(sites[0].train.inputs, np.memmap)
    assert all(site.worker is sites[0].worker for site in sites)


def test_sites_and_their_splits_are_disjoint_and_cover_the_data(settings: SiteSettings) -> None:
    views = [view for k in range(4) for view in open_site(settings, k).views]
    every = np.concatenate([view.indices for view in views])
    assert sorted(every) == list(range(len(views[0].targets)))


def test_what_a_site_is_asked_does_not_depend_on_its_settings_object(settings: SiteSettings) -> None:
    again = SiteSettings(
        Path(settings.home), "digits", 60, SplitSpec(name="dirichlet", sites=4, alpha=1.0), device="cpu"
    )
    assert open_site(again, 2) is open_site(settings, 2)


def test_a_node_too_many_is_told_how_many_there_are(settings: SiteSettings) -> None:
    with pytest.raises(BadInput, match=r"partition-id=4: allowed is 0 to 3; start 4 nodes"):
        open_site(settings, 4)


def test_an_unknown_site_is_refused_with_the_nearest_name(settings: SiteSettings) -> None:
    with pytest.raises(BadInput, match="did you mean 'site-"):
        open_site(settings, None, "sites-1")


def test_a_node_without_an_identity_is_told_so(settings: SiteSettings) -> None:
    with pytest.raises(BadInput, match="partition-id or a site"):
        open_site(settings, None)


def test_a_data_set_without_reference_has_no_reference_view(settings: SiteSettings) -> None:
    assert reference_view(settings) is None


def test_a_sample_request_is_of_training_records_only(settings: SiteSettings) -> None:
    site = open_site(settings, 0)
    summary = site.selection_summary("sample:0.1", 3)
    assert summary["num-forget"] == max(1, round(0.1 * len(site.train)))
    assert summary["forget-holdout"] == 0
    assert summary["train-hash"] != site.selection_summary("sample:0.1", 4)["train-hash"]


def test_records_of_an_earlier_request_are_neither_forgotten_nor_retained(settings: SiteSettings) -> None:
    site = open_site(settings, 0)
    both = site.selection_summary("class:1>class:2", 0)
    first = site.selection_summary("class:1", 0)
    assert int(both["num-forget"]) + int(both["num-retain"]) == len(site.train) - int(first["num-forget"])


def test_it_trains_on_real_images_from_the_map(settings: SiteSettings) -> None:
    from clients.catalogue import TASKS
    from unlearning.state import State

    site = open_site(settings, 0)
    state = State.from_module(TASKS.get("classification").build("cnn", (8, 8), 10))
    reply = train(site, Call("train", state, {"seed": 0, "lr": 0.05, "epochs": 2}))
    assert reply.config["status"] == "ok"
    assert reply.metrics["num-examples"] == len(site.train)


def test_the_hash_tells_what_is_retained_apart(settings: SiteSettings) -> None:
    site = open_site(settings, 0)
    sequence, alone = (site.selection_summary(text, 0) for text in ("class:1>class:2", "class:2"))
    assert sequence["num-forget"] == alone["num-forget"]
    assert sequence["train-hash"] != alone["train-hash"]
