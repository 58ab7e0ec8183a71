from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.streams import unit
from unseen.errors import DataError, SettingError
from unseen_bench import trial as stream
from unseen_bench.trial import Trial

WHOLE = ("shuffled", "id_first", "ood_first", "id_then_mixed", "ood_then_mixed", "bursts")


def population(known=60, unknown=30, classes=5, sets=3, seed=0):
    """Is_id and source of a small test set in random positions."""
    is_id = torch.cat([torch.ones(known), torch.zeros(unknown)]).bool()
    source = torch.cat([torch.arange(known) % classes, torch.arange(unknown) % sets])
    mixed = torch.randperm(known + unknown, generator=torch.Generator().manual_seed(seed))
    return is_id[mixed], source[mixed]


populations = st.builds(population, st.integers(0, 40), st.integers(0, 40), st.integers(1, 5), st.integers(1, 4))


@given(populations, st.sampled_from(sorted(stream.ORDERS)), st.integers(0, 5))
@settings(max_examples=100, deadline=None)
def test_every_order_but_temporal_is_a_subset_without_repeats_and_the_same_for_a_seed(given, kind, seed):
    is_id, source = given
    indices = stream.order(is_id, source, kind=kind, seed=seed)
    assert indices.dtype == torch.int64
    assert len(indices.unique()) == len(indices) or kind == "temporal"
    assert bool(((indices >= 0) & (indices < len(is_id))).all())
    assert torch.equal(indices, stream.order(is_id, source, kind=kind, seed=seed))
    if kind in WHOLE:
        assert len(indices) == len(is_id)


def test_id_first_and_ood_first_put_one_side_before_the_other():
    is_id, source = population()
    assert is_id[stream.order(is_id, source, kind="id_first")].tolist() == [True] * 60 + [False] * 30
    assert is_id[stream.order(is_id, source, kind="ood_first")].tolist() == [False] * 30 + [True] * 60


def test_a_stage_of_temporal_is_all_known_samples_shuffled_with_one_set():
    is_id, source = population()
    for sets in permutations(sorted(set(source[~is_id].tolist()))):
        indices = stream.order(is_id, source, kind="temporal", sets=sets)
        stage = stream.stages(is_id, source, indices)
        assert stage.tolist() == sorted(stage.tolist())
        for number, one in enumerate(sets):
            mine = indices[stage == number]
            expected = (is_id | (source == one)).nonzero().squeeze(1)
            assert mine.sort().values.tolist() == expected.tolist()
            assert not bool(is_id[mine][:60].all())  # shuffled: known samples are not first


@pytest.mark.parametrize(("kind", "is_known"), [("id_then_mixed", True), ("ood_then_mixed", False)])
def test_half_of_one_kind_comes_first_and_all_others_are_mixed(kind, is_known):
    is_id, source = population()
    arrived = is_id[stream.order(is_id, source, kind=kind)]
    half = (30, 15)[not is_known]
    assert set(arrived[:half].tolist()) == {is_known}
    assert 0.3 < float(arrived[half : half + 20].double().mean()) < 0.9


def test_bursts_are_one_class_after_another_with_unknown_samples_spread_evenly():
    is_id, source = population()
    indices = stream.order(is_id, source, kind="bursts")
    known = source[indices][is_id[indices]]
    assert int((known.diff() != 0).sum()) == 4
    unknown = (~is_id[indices]).cumsum(0)
    assert float((unknown - torch.arange(1, 91) * 30 / 90).abs().max()) <= 1


@pytest.mark.parametrize(
    ("share", "known", "unknown"), [(0.5, 30, 30), (0.1, 60, 7), (0.9, 3, 30), (0, 60, 0), (1, 0, 30)]
)
def test_mixture_has_the_given_share_and_the_largest_possible_size(share, known, unknown):
    is_id, source = population()
    taken = is_id[stream.order(is_id, source, kind="mixture", ood_share=share)]
    assert (int(taken.sum()), int((~taken).sum())) == (known, unknown)


def test_long_tail_falls_exponentially_and_keeps_the_unknown_side():
    is_id, source = population(known=500, unknown=30, classes=5)
    indices = stream.order(is_id, source, kind="long_tail", ratio=100)
    counts = source[indices][is_id[indices]].bincount(minlength=5).sort(descending=True).values
    assert counts.tolist() == [100, 32, 10, 3, 1]
    assert int((~is_id[indices]).sum()) == 30
    assert len(stream.order(is_id, source, kind="long_tail", ratio=1)) == 530


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "sorted"}, r"shuffled.*got 'sorted'"),
        ({"kind": "temporal", "sets": (0, 1)}, "every OOD set once"),
        ({"kind": "mixture", "ood_share": 1.5}, "ood_share"),
        ({"kind": "long_tail", "ratio": 0.5}, "ratio"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(SettingError, match=message):
        stream.order(*population(), **options)


def test_a_truth_that_fits_no_stream_is_refused():
    is_id, source = population()
    with pytest.raises(DataError, match="one length"):
        stream.order(is_id, source[:-1])
    with pytest.raises(DataError, match=r"torch\.int64"):
        stream.order(is_id.long(), source)


@pytest.fixture
def trial():
    """Four known samples of two classes and two samples of each of two unknown sets."""
    label = torch.tensor([0, 0, 1, 1, -1, -1, -1, -1])
    source = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
    return Trial(unit(8, 4), label, source, ("known", "near", "far"))


@pytest.mark.parametrize("kind", ["shuffled", "id_first", "ood_first", "bursts"])
def test_an_order_moves_features_and_truth_together(trial, kind):
    ordered = trial.ordered(kind, seed=1)
    assert sorted(map(tuple, ordered.z.tolist())) == sorted(map(tuple, trial.z.tolist()))
    for z, label, source in zip(ordered.z, ordered.label, ordered.source, strict=True):
        row = int((trial.z == z).all(1).nonzero())
        assert (label, source) == (trial.label[row], trial.source[row])
