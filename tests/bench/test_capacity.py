"""benchmarks/queueing.py and capacity.py: the simulation against what can be computed by hand."""

from __future__ import annotations

import json
import sys

import pytest

import capacity
from queueing import Failure, Simulation, Stage

WORK = [Stage("decode", "core", 1.0), Stage("encode", "gpu", 0.5)]


def test_the_last_shard_is_done_when_the_busiest_resource_has_had_all_of_them():
    found = Simulation(WORK, {"core": 2, "gpu": 1}, nodes=2, ahead=8).run([0.0] * 40)
    assert found.seconds == pytest.approx(10 * 1.0 + 2 * 0.5)  # ten pairs on each node; the last pair waits for the GPU
    assert dict(found.busy) == {"core": 40.0, "gpu": 20.0}
    assert len(found.waits) == 40
    assert found.redone == 0


def test_what_a_dying_node_had_is_done_again_and_nothing_is_lost_or_doubled():
    failures = [Failure(0, back=3.0, at=2.2)]
    found = Simulation(WORK, {"core": 1, "gpu": 1}, nodes=2, ahead=2).run([0.0] * 20, failures)
    assert len(found.waits) == 20
    assert found.redone == 2  # one decoding, one in its queue or at the GPU
    calm = Simulation(WORK, {"core": 1, "gpu": 1}, nodes=2, ahead=2).run([0.0] * 20)
    assert calm.seconds < found.seconds <= calm.seconds + 3.0
    assert found.busy["core"] == 20.0 + found.lost["core"]


def test_a_node_that_dies_after_so_many_shards_is_away_until_it_is_back():
    failures = [Failure(0, back=10.0, after=2)]
    found = Simulation([WORK[0]], {"core": 1}, nodes=1, ahead=2).run([0.0] * 4, failures, ready=5.0)
    assert found.seconds == 5 + 2 + 10 + 2
    assert found.redone == 1  # the third; the fourth had not been sent


def test_a_plan_names_the_first_bottleneck_and_predicts_the_run_in_the_file(tmp_path, monkeypatch, capsys):
    stages = {"what": "stages", "load_s": 2.0, "decode_s": 0.01, "encode_s": 0.1, "write_s": 0.02, "send_s": 0.0}
    stages |= {"score_s": 3e-4, "journal_s": 0.004, "image_bytes": 39_000}
    stages |= {"start_s": 4.0, "plan_s": 1.0, "first_decode_s": 0.5}
    run = {"what": "ray", "images": 80, "shard": 8, "actors": 2, "seconds": 12.0, "killed_after": 0, "others": 0.0}
    run |= {"running_per_s": 16.0}
    busy = run | {"what": "ray, busy", "others": 1.0, "seconds": 15.0}
    (tmp_path / "stages.jsonl").write_text("\n".join(map(json.dumps, (stages, run, busy))))
    monkeypatch.setattr(
        sys, "argv", ["capacity.py", str(tmp_path / "stages.jsonl"), "--images", "1e8", "--seconds", "60"]
    )
    capacity.main()
    printed = capsys.readouterr().out
    # 7.5 s to start, 5 shards of 0.9 s at each worker; with half of the cores, twice as long
    assert "| ray | 80 | 12.0 / 12.0 | +0 % | 16.0 / 17.8 | +11 % | 0.0 |" in printed
    assert "| ray, busy | 80 | 15.0 / 16.5 | +10 % | 16.0 / 8.9 | -44 % | 1.0 |" in printed
    assert "| decoded on 16 cores | 1 | 16 | core |" in printed
    assert "| decoded on the GPU | 1 | 16 | gpu |" in printed
