from partitions.seeds import derive_seed, generator


def test_a_seed_is_the_same_number_in_every_process() -> None:
    assert derive_seed(0, "train", "patient-1", 3) == 1623514551559455388
    assert derive_seed(0, "train") == 4936421395359003153


def test_every_part_gives_a_seed_of_its_own() -> None:
    parts = [(0, "a", "s", 1), (1, "a", "s", 1), (0, "b", "s", 1), (0, "a", "t", 1), (0, "a", "s", 2)]
    assert len({derive_seed(*one) for one in parts}) == len(parts)


def test_a_generator_is_its_seeds_stream() -> None:
    assert generator(3, "x").random() == generator(3, "x").random() != generator(4, "x").random()
