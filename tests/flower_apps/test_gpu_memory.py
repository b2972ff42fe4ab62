"""Facts about the memory that sites take of a GPU, with GPUs that are only said to be there."""

from __future__ import annotations

import pytest

from flower_apps.gpu_memory import PROCESS, check_memory, site_bytes
from flower_apps.lanes import Means
from flower_apps.runs import group_id
from flower_apps.settings import GroupSettings
from partitions.errors import BadInput

SHAPE = (28, 28)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


def group(home="", **values) -> GroupSettings:
    return GroupSettings.parse({"dataset": "digits", "cap": 5, "model": "resnet18", "home": str(home), **values})


def working(**values) -> float:
    return site_bytes(group(**values), SHAPE, 10) - PROCESS


def test_activations_grow_with_the_batch_and_weights_do_not():
    small, middle, large = (working(**{"batch-size": size}) for size in (16, 32, 48))
    assert large - middle == pytest.approx(middle - small)
    weights = small - (middle - small)
    assert weights == pytest.approx(6 * 4 * 11.2e6, rel=0.02)


def test_half_precision_halves_what_it_holds():
    full, mixed, half = (working(precision=precision) for precision in ("32-true", "bf16-mixed", "bf16-true"))
    assert half == pytest.approx(full / 2)
    assert half < mixed < full
    assert working(precision="64-true") == pytest.approx(2 * full)


def test_a_larger_network_takes_more():
    assert working(model="cnn") < working(model="resnet18") / 5


def test_nothing_is_limited_without_a_gpu(home):
    assert check_memory([group(home)], Means(gpus=0), print) == {}
    assert check_memory([group(home, device="cpu")], Means(gpus=2), print, memory=[1.0]) == {}


def test_no_more_sites_than_fit_are_put_on_a_gpu_and_that_is_said(home):
    asked, said = group(home, split="iid", sites=16, cap=0), []
    each = site_bytes(asked, SHAPE, 10)
    limits = check_memory([asked], Means(gpus=2, workers=16, cores=16), said.append, memory=[9 * each, 3.4 * each])
    assert limits == {group_id(asked): 3}
    (text,) = said
    assert "3 sites at once on a GPU instead of 8" in text and "GB a site" in text
    said.clear()
    assert check_memory([asked], Means(gpus=1, workers=2), said.append, memory=[3.4 * each]) and not said


def test_a_share_that_puts_too_many_on_a_gpu_is_refused_with_the_least_share(home):
    asked = group(home, **{"gpu-share": 0.04})
    with pytest.raises(BadInput, match=r"gpu-share=0.04: allowed is from 0.333 to 1: .* GB a site \(estimated\)"):
        check_memory([asked], Means(gpus=1, workers=4), print, memory=[3.4 * site_bytes(asked, SHAPE, 10)])


def test_a_site_that_does_not_fit_alone_is_refused_with_the_remedy(home):
    asked = group(home, **{"batch-size": 512})
    with pytest.raises(BadInput, match=r"batch-size=512: .*precision=bf16-mixed"):
        check_memory([asked], Means(gpus=1), print, memory=[site_bytes(asked, SHAPE, 10)])


def test_no_more_sites_are_planned_for_than_there_are_and_the_group_allows(home):
    said = []
    means = Means(gpus=1, cores=16, jobs=4)
    for values in ({"sites": 3}, {"sites": 16, "workers": 3}):
        asked = group(home, split="iid", cap=0, **values)
        check_memory([asked], means.sharing([asked]), said.append, memory=[3.4 * site_bytes(asked, SHAPE, 10)])
    assert not said
