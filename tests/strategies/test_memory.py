import gc

import torch
from fake_sites import Hospitals, counts, federation, schedule, start_state

from strategies.recording import RecordingFedAvg


def tensors_held_after(rounds):
    fed = federation(Hospitals(counts()))
    strategy = RecordingFedAvg(
        fed,
        schedule(rounds=rounds),
        seed=0,
        participants=fed.sites,
        message_config={"records": "all", "request": "", "request-seed": 0},
        history=None,
        label="original",
    )
    strategy.run(start_state(), rounds)
    fed.grid.log.clear()  # the fake remembers every message
    gc.collect()
    return sum(issubclass(type(found), torch.Tensor) for found in gc.get_objects())


def test_a_strategy_holds_as_many_tensors_after_many_rounds_as_after_few():
    tensors_held_after(1)  # whatever is made once
    assert tensors_held_after(12) == tensors_held_after(2)
