"""The recommended detector against its formula, and what must hold of every stream."""

from __future__ import annotations

import math
import pickle

import pytest
import torch

from helpers.pooled_reference import observed
from helpers.streams import cone, space, stream, two_clouds
from unseen import Session
from unseen.detectors import DetectorOutput, PooledEvidence
from unseen.detectors.pooled.state import popularity
from unseen.detectors.state import flatten, map_state
from unseen.errors import SettingError


@pytest.mark.parametrize(("count", "noise", "repeated"), [(300, 0.3, 0), (700, 0.3, 0), (300, 0.8, 0), (300, 0.3, 150)])
def test_the_detector_equals_a_reference_written_sample_by_sample(count, noise, repeated):
    labels = cone(4, 20, 8)
    detector, (z, _) = PooledEvidence(labels), two_clouds(labels, count, noise=noise)
    again = torch.randint(count, (repeated,), generator=torch.Generator().manual_seed(0))
    z = torch.cat([z[: count // 2], z[again], z[count // 2 :]])
    found, state = detector.observe(detector.start(), z)
    expected = observed(labels, z)
    assert float(state.fitted.likelihood.rate) > 0.01  # the pool takes part
    torch.testing.assert_close(found.score, expected.score, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.baseline, expected.baseline, rtol=1e-9, atol=1e-9)
    assert torch.equal(found.label, expected.label)
    assert torch.equal(found.route, expected.route)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("pieces", [[1] * 40 + [2960], [6, 500, 513, 0, 1981]])
def test_splitting_the_stream_into_calls_changes_nothing(pieces, dtype):
    labels = cone(dtype=dtype)
    detector, (z, _) = PooledEvidence(labels), two_clouds(labels, 3000)
    whole, end = detector.observe(detector.start(), z)
    state, parts = detector.start(), []
    for piece in z.split(pieces):
        output, state = detector.observe(state, piece)
        parts.append(output)
    off = 1e-9 if dtype is torch.float64 else 1e-3
    torch.testing.assert_close(DetectorOutput.joined(parts), whole, rtol=off, atol=off)
    torch.testing.assert_close(state.sums.sides, end.sums.sides, rtol=off, atol=off)


def test_a_score_is_that_of_the_sample_coming_next():
    labels = cone()
    detector, (z, _) = PooledEvidence(labels), two_clouds(labels, 400)
    for seen in (0, 7, 33, 255, 300):
        _, state = detector.observe(detector.start(), z[:seen])
        come, _ = detector.observe(state, z[seen : seen + 1])
        pure = detector.score(state, z[seen : seen + 1])
        for field in ("score", "label", "baseline"):
            torch.testing.assert_close(getattr(pure, field), getattr(come, field))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("known", "negative"), [(1, 1), (1, 5), (2, 1), (3, 2), (17, 300), (300, 17)])
def test_label_spaces_of_any_size_give_finite_outputs_and_states(known, negative, dtype):
    labels = space(known, negative, 8, dtype=dtype)
    detector = PooledEvidence(labels)
    output, state = detector.observe(detector.start(), stream(labels, 300))
    assert output.score.dtype == output.baseline.dtype == dtype
    assert bool(output.margin.isfinite().all())
    assert float(output.baseline[0]) == pytest.approx(math.log(known / negative))
    assert bool(detector.score(state, stream(labels, 5, seed=4)).margin.isfinite().all())
    assert all(bool(part.isfinite().all()) for part in flatten(state).values())


@pytest.mark.parametrize("kind", ["known", "unknown", "the same image"])
def test_streams_of_one_kind_give_finite_margins(kind):
    labels = cone()
    z, is_known = two_clouds(labels, 1200, noise=0.1)
    part = {"known": z[is_known], "unknown": z[~is_known], "the same image": z[:1].expand(500, -1)}[kind]
    detector = PooledEvidence(labels)
    output, state = detector.observe(detector.start(), part)
    assert bool(output.margin.isfinite().all())
    assert bool(detector.score(state, z).margin.isfinite().all())
    assert bool((state.sums.sides.weight >= 0).all())


def test_popularity_is_zero_where_all_names_are_as_popular_or_there_is_one():
    for votes in ([7.0, 7.0, 7.0], [90.0], [0.0, 0.0]):
        assert not popularity(torch.tensor(votes, dtype=torch.float64)).any()


@pytest.mark.parametrize(
    "options", [{"popularity": 2.5}, {"popularity": -0.1}, {"naming_popularity": 3.0}, {"tau": 0.0}]
)
def test_settings_out_of_range_are_refused(labels, options):
    with pytest.raises(SettingError, match=f"expected {next(iter(options))}"):
        PooledEvidence(labels, **options)


def test_a_session_that_has_judged_few_samples_is_pickled():
    labels = cone()
    session, (z, _) = Session(labels), two_clouds(labels, 320)
    session.observe(z[:305])
    again = pickle.loads(pickle.dumps(session))
    torch.testing.assert_close(again.observe(z[305:]).score, session.observe(z[305:]).score)


@pytest.mark.gpu
@pytest.mark.parametrize(("known", "negative", "dim"), [(10, 300, 64), (200, 742, 512)])
@pytest.mark.parametrize("pieces", [[5000], [1, 2, 500, 1, 4000, *[1] * 300, 196]])
def test_outputs_and_states_on_a_gpu_are_those_of_a_cpu_and_no_state_is_written_to(known, negative, dim, pieces):
    labels = space(known, negative, dim, dtype=torch.float32)
    z, results = stream(labels, 5000), []
    for place in ("cpu", "cuda"):
        detector = PooledEvidence(labels.to(device=place))
        state, outputs = detector.start(), []
        for part in z.to(place).split(pieces):
            kept, before = map_state(torch.clone, state), state
            output, state = detector.observe(state, part)
            torch.testing.assert_close(before, kept, rtol=0, atol=0)
            outputs.append(output.cpu())
        results.append((DetectorOutput.joined(outputs), map_state(torch.Tensor.cpu, state)))
    (one, end), (two, same) = results
    torch.testing.assert_close(two.score, one.score, rtol=1e-3, atol=1e-2)
    assert float((two.label == one.label).double().mean()) > 0.999
    assert float((two.route == one.route).double().mean()) > 0.999
    torch.testing.assert_close(same.sums.sides.weight, end.sums.sides.weight, rtol=1e-3, atol=1e-2)
    assert int(same.seen) == int(end.seen) == 5000


@pytest.mark.gpu
def test_verdicts_of_a_session_on_a_gpu_are_those_of_a_cpu():
    labels = space(20, 300, 64, dtype=torch.float32)
    z = stream(labels, 3000)
    one, two = Session(labels), Session(labels.to(device="cuda"))
    cpu, gpu = one.observe(z), two.observe(z.cuda())
    torch.testing.assert_close(gpu.margin, cpu.margin, rtol=1e-3, atol=1e-2)
    assert float((gpu.known == cpu.known).double().mean()) > 0.995
