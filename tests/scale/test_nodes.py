"""Three nodes, one killed in the middle of every verb; in a process of its own: the tests hold a Ray already."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).parents[2]

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    environment = os.environ | {"PYTHONPATH": f"{REPO / 'src'}:{REPO / 'tests'}"}
    command = [sys.executable, "-m", "helpers.three_nodes"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]  # Ray prints of dead nodes between
    return {row["verb"]: row for row in map(json.loads, lines)}


@pytest.mark.parametrize("verb", ["encode", "score --by", "encode by GPUs"])
def test_a_node_that_dies_in_the_middle_loses_and_doubles_nothing(rows: dict[str, dict[str, Any]], verb: str) -> None:
    row = rows[verb]
    assert row["killed"] == 1
    assert row["rows_in"] == row["rows_out"] > 0
    assert (row["lost"], row["doubled"], row["equal"]) == (0, 0, True)


def test_a_cluster_of_another_version_is_refused(rows: dict[str, dict[str, Any]]) -> None:
    other_ray, other_package = rows["versions"]["told"]
    assert "expected a cluster at" in other_ray
    assert "0.0.1" in other_ray
    assert "expected unseen 0.0.1 on every node, as here, got version" in other_package
