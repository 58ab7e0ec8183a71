from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import normalize
from typer.testing import CliRunner

from helpers.inline_ray import InlineRay
from helpers.methods import ALL
from helpers.streams import space, stream, unit
from unseen import Session
from unseen.cli import app
from unseen.detectors import Detector, DetectorOutput, Online, OnlineID, PooledEvidence, make
from unseen.detectors.merging import merged_bank
from unseen.detectors.state import flatten
from unseen.errors import SettingError
from unseen.scale.merge import LocalObservers, RayObservers, ShardedDetector, ray_observers

MERGING = sorted(name for name, kind in ALL.items() if kind.merges and not kind.parts)
LEARNING = ["pooled", "online", "online-id", "framework"]


def equal(one: DetectorOutput, other: DetectorOutput) -> bool:
    return all(torch.equal(left, right) for left, right in zip(one, other, strict=True))


def test_detectors_with_sums_or_banks_merge_and_detectors_that_store_samples_do_not() -> None:
    assert set(LEARNING) < set(MERGING)
    assert not {"adaneg", "tanl"} & set(MERGING)
    with pytest.raises(SettingError, match="adaneg"):
        ShardedDetector.of(make("adaneg", space()))


@pytest.mark.parametrize("every", [7, 1000])
@pytest.mark.parametrize("name", MERGING)
def test_one_observer_gives_the_sequential_result(name: str, every: int) -> None:
    detector = make(name, space(dtype=torch.float32))
    z = stream(detector.labels, 50)
    sequential, end = detector.observe(detector.start(), z)
    output, state = ShardedDetector.of(detector, shards=1, every=every).observe(detector.start(), z)
    torch.testing.assert_close(output, sequential, rtol=1e-4, atol=1e-4)
    if every == 1000:  # the same calls: the same bits
        assert equal(output, sequential)
        assert all(torch.equal(flatten(end)[name], part) for name, part in flatten(state).items())


@pytest.mark.parametrize("split", ["interleaved", "contiguous"])
@pytest.mark.parametrize(("shards", "every"), [(2, 30), (3, 1024), (16, 1024)])
def test_pooled_gives_the_sequential_result_whatever_the_number_of_observers(
    shards: int, every: int, split: str
) -> None:
    detector = PooledEvidence(space())
    z = stream(detector.labels, 1500)
    sequential, end = detector.observe(detector.start(), z)
    output, state = ShardedDetector.of(detector, shards=shards, every=every, split=split).observe(detector.start(), z)
    torch.testing.assert_close(output, sequential, rtol=1e-9, atol=1e-9)
    one, other = (each.updated(detector.labels) for each in (state, end))
    torch.testing.assert_close(one[:-1], other[:-1], rtol=1e-7, atol=1e-7)
    assert int(state.pending.size) == int(end.pending.size)


@pytest.mark.parametrize("rule", ["mean", "sum"])
def test_banks_stay_on_the_sphere_and_counts_add_up(rule: str) -> None:
    detector = Online(space())
    z = stream(detector.labels, 100)
    output, state = ShardedDetector.of(detector, shards=4, every=40, rule=rule).observe(detector.start(), z)
    sequential, end = detector.observe(detector.start(), z)
    assert torch.equal(output.route, sequential.route)  # the frozen text routes
    assert (int(state.id_seen), int(state.ood_seen)) == (int(end.id_seen), int(end.ood_seen))
    assert int(state.id_seen) > 10 < int(state.ood_seen)
    for bank in state[:2]:
        torch.testing.assert_close(torch.linalg.vector_norm(bank, dim=1), torch.ones(len(bank), dtype=bank.dtype))


def test_the_mean_is_weighted_by_teaching_counts_and_the_sum_adds_moves() -> None:
    start, one, two = (unit(5, 8, seed=seed) for seed in (1, 2, 3))
    counts = [torch.tensor(3), torch.tensor(1)]
    mean = merged_bank(start, [one, two], counts, rule="mean")
    torch.testing.assert_close(mean, normalize(0.75 * one + 0.25 * two, dim=-1))
    total = merged_bank(start, [one, two], counts, rule="sum")
    torch.testing.assert_close(total, normalize(one + two - start, dim=-1))


def test_an_observer_that_taught_nothing_has_no_weight_in_the_merged_bank() -> None:
    start, one, two = (unit(5, 8, seed=seed) for seed in (1, 2, 3))
    none, some = torch.tensor(0), torch.tensor(9)
    torch.testing.assert_close(merged_bank(start, [one, two], [none, some], rule="mean"), two)
    assert torch.equal(merged_bank(start, [one, two], [none, none], rule="mean"), start)


@pytest.mark.parametrize("name", LEARNING)
def test_every_observer_starts_a_round_with_the_merged_state_and_sees_its_own_part_only(name: str) -> None:
    detector = make(name, space())
    start = learned(detector, 256)
    z = stream(detector.labels, 32)
    output, state = ShardedDetector.of(detector, shards=2, every=16).observe(start, z)
    for part, scores in ((z[:16], output.score[:16]), (z[16:], output.score[16:])):
        own = [detector.observe_part(start, part[first::2]) for first in (0, 1)]
        torch.testing.assert_close(torch.stack([one.score for one, _ in own], dim=1).flatten(), scores)
        start = detector.merge(start, [taught for _, taught in own])
    torch.testing.assert_close(state, start)


def learned(detector: Detector[Any], count: int) -> Any:
    """The state after so many samples, which one observer learned."""
    return detector.observe(detector.start(), stream(detector.labels, count, seed=5))[1]


def test_rounds_that_cross_an_update_are_an_approximation() -> None:
    class LongRounds(PooledEvidence):
        def merge_interval(self, state: Any, most: int) -> int:
            return most

    labels = space()
    start, z = learned(PooledEvidence(labels), 4096), stream(labels, 1024)
    sequential, _ = PooledEvidence(labels).observe(start, z)
    output, state = ShardedDetector.of(LongRounds(labels), shards=8, every=1024).observe(start, z)
    torch.testing.assert_close(output.score[:256], sequential.score[:256])
    assert not torch.allclose(output.score[256:], sequential.score[256:])
    assert int(state.seen) == 4096 + 1024


def test_the_margins_of_all_observers_of_a_young_stream_have_one_baseline() -> None:
    detector = PooledEvidence(space())
    z = stream(detector.labels, 400)
    sequential, _ = detector.observe(detector.start(), z)
    output, _ = ShardedDetector.of(detector, shards=16, every=1024).observe(detector.start(), z)
    assert equal(*(DetectorOutput(*(column[:256] for column in each)) for each in (sequential, output)))
    assert torch.equal(output.baseline, sequential.baseline)


class Counting(LocalObservers):
    """Observers that count the samples of each round."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def observe(
        self, detector: Any, state: Any, parts: Sequence[Tensor], rule: Any
    ) -> tuple[list[DetectorOutput], Any]:
        self.rounds.append(sum(map(len, parts)))
        return super().observe(detector, state, parts, rule)


def test_observers_merge_where_one_of_them_would_change_its_state() -> None:
    detector, counting = PooledEvidence(space()), Counting()
    sharded = ShardedDetector.of(detector, shards=4, every=1024, observers=counting)
    sharded.observe(detector.start(), stream(detector.labels, 4608))
    assert counting.rounds == [32] * 8 + [64] * 8 + [128] * 8 + [256] * 10


def test_sessions_with_one_and_with_many_observers_load_each_others_states(tmp_path: Path) -> None:
    detector = OnlineID(space())
    z = stream(detector.labels, 60)
    many = Session(ShardedDetector.of(detector, shards=3, every=20))
    many.observe(z)
    many.save(tmp_path / "state.safetensors")
    one = Session.load(tmp_path / "state.safetensors", detector.labels)
    assert type(one.detector) is OnlineID
    assert torch.equal(one.score(z).output.score, many.score(z).output.score)
    again = Session.load(
        tmp_path / "state.safetensors", detector.labels, detector=ShardedDetector.of(detector, shards=2, every=9)
    )
    assert torch.equal(again.snapshot.detector.bank, many.snapshot.detector.bank)


def test_an_empty_stream_is_scored_and_bad_options_are_refused() -> None:
    detector = Online(space())
    output, state = ShardedDetector.of(detector, shards=4, every=8).observe(detector.start(), unit(0, 16))
    assert len(output.score) == 0
    assert int(state.id_seen) == 0
    for options in ({"shards": 0}, {"shards": 9, "every": 8}, {"rule": "median"}, {"split": "cards"}):
        with pytest.raises(SettingError, match="expected"):
            ShardedDetector.of(detector, **options)


class Backwards(LocalObservers):
    """Observers that finish in another order than they were asked."""

    def observe(
        self, detector: Any, state: Any, parts: Sequence[Tensor], rule: Any
    ) -> tuple[list[DetectorOutput], Any]:
        done = [detector.observe_part(state, part) for part in parts[::-1]][::-1]
        return [output for output, _ in done], detector.merge(state, [taught for _, taught in done], rule=rule)


def test_the_order_in_which_observers_finish_changes_no_bit() -> None:
    detector = Online(space(dtype=torch.float32))
    z = stream(detector.labels, 90)
    sharded = (ShardedDetector.of(detector, shards=4, every=16, observers=o) for o in (LocalObservers(), Backwards()))
    one, two = (each.observe(each.start(), z) for each in sharded)
    assert equal(one[0], two[0])
    assert all(torch.equal(a, b) for a, b in zip(one[1], two[1], strict=True))


def files(folder: Path, samples: int = 100) -> list[str]:
    labels = space(dtype=torch.float32)
    labels.save(folder / "space.safetensors")
    save_file({"features": stream(labels, samples)}, folder / "features.safetensors")
    return ["score", str(folder / "features.safetensors"), "--space", str(folder / "space.safetensors"), "--json"]


def scored(*options: str) -> str:
    result = CliRunner().invoke(app, list(options), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def without_rate(output: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in output.splitlines()]
    return [{name: value for name, value in row.items() if name != "images_per_second"} for row in rows]


def test_the_command_shards_a_stream_and_saves_a_state_that_one_observer_can_resume(tmp_path: Path) -> None:
    asked = files(tmp_path)
    rows = [json.loads(line) for line in scored(*asked, "--shards", "3", "--merge-every", "40").splitlines()]
    detector = PooledEvidence(space(dtype=torch.float32))
    z = load_file(tmp_path / "features.safetensors")["features"]
    expected = Session(ShardedDetector.of(detector, shards=3, every=40)).observe(z)
    assert [row["margin"] for row in rows[:-1]] == pytest.approx([verdict.margin for verdict in expected], rel=1e-4)
    state = ("--state", str(tmp_path / "state.safetensors"))
    scored(*asked, *state, "--shards", "2", "--merge-every", "40")
    assert json.loads(scored(*asked, *state).splitlines()[-1])["summary"]["seen"] == 200


def test_the_command_refuses_to_share_a_stream_that_does_not_learn(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="expected --shards for a stream that learns"):
        CliRunner().invoke(app, [*files(tmp_path), "--shards", "2", "--no-learn"], catch_exceptions=False)


@pytest.mark.parametrize("name", ["pooled", "online", "mcm"])
def test_actors_get_the_same_numbers_and_are_stopped(name: str) -> None:
    ray, detector = InlineRay(), make(name, space(dtype=torch.float32))
    z = stream(detector.labels, 400)
    with ray_observers(ray, detector, 4) as team:
        there = ShardedDetector.of(detector, shards=4, every=16, observers=team).observe(detector.start(), z)
    here = ShardedDetector.of(detector, shards=4, every=16).observe(detector.start(), z)
    assert equal(there[0], here[0])
    for one, other in zip(flatten(there[1]).values(), flatten(here[1]).values(), strict=True):
        assert torch.equal(one, other)
    assert ray.started == ray.killed == 4


def test_actors_of_pooled_are_sent_what_was_taught_and_the_state_only_if_they_lack_it() -> None:
    ray, detector = InlineRay(), PooledEvidence(space(dtype=torch.float32))
    start, z = learned(detector, 4096), stream(detector.labels, 1024)
    sent, put = [], ray.put
    with ray_observers(ray, detector, 2) as team:
        ray.put = lambda change: sent.append(change) or put(change)  # type: ignore[method-assign,assignment,func-returns-value]
        sharded = ShardedDetector.of(detector, shards=2, every=256, observers=team)
        _, state = sharded.observe(start, z[:512])
        team.actors[0]._own.round = -1  # as one that died and came back
        output, _ = sharded.observe(state, z[512:])
    assert [change.taught is None for change in sent] == [True, False, False, True, False]
    torch.testing.assert_close(output, sharded.detector.observe(state, z[512:])[0], rtol=1e-4, atol=1e-4)


@pytest.mark.ray
def test_the_command_gives_the_same_numbers_on_ray_although_an_observer_dies(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [*files(tmp_path, 400), "--shards", "2", "--merge-every", "30"]  # one observer begins alone
    rounds, observe = [], RayObservers.observe

    def dying(team: RayObservers, *what: Any) -> Any:
        rounds.append(what)
        if len(rounds) == 2:
            ray.kill(team.actors[0], no_restart=False)
        return observe(team, *what)

    monkeypatch.setattr(RayObservers, "observe", dying)
    assert without_rate(scored(*asked, "--ray", "local")) == without_rate(scored(*asked))
    assert len(rounds) > 2
