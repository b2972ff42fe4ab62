"""Facts about waiting."""

from __future__ import annotations

from partitions.patience import Patience


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_in_which_nobody_looked_counts_for_one_step():
    clock = Clock()
    patience = Patience(5.0, clock)
    clock.now += 3.0
    assert patience.spent() == 3.0
    clock.now += 3600.0  # stopped
    assert patience.spent() == 8.0
    clock.now += 1.0
    assert patience.spent() == 9.0
