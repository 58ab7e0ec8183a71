"""Verdicts as Parquet files by stream and day, read by an SQL engine."""

from __future__ import annotations

import pyarrow
import pyarrow.parquet
import pytest
import torch
from typer.testing import CliRunner

from helpers.streams import space, stream
from unseen.cli import app
from unseen.errors import DataError
from unseen.keyed import day_of

duckdb = pytest.importorskip("duckdb")
STREAMS = ("gate 1", "a/b", "süd")


@pytest.fixture
def words(tmp_path):
    labels = space(dtype=torch.float32)
    labels.save(tmp_path / "space.safetensors")
    z = stream(labels, 90)
    columns = {
        "key": [f"{row:02d}.jpg" for row in range(90)],
        "camera": [STREAMS[row % 3] for row in range(90)],
        "time": [f"2026-11-{17 + row // 60}T12:00:00" for row in range(90)],
        "z": z.tolist(),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "table.parquet")
    given = ["score", tmp_path / "table.parquet", "--space", tmp_path / "space.safetensors"]
    return [*map(str, given), "--by", "camera"]


def run(*words):
    result = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)
    assert result.exit_code == 0
    return result


def test_an_sql_engine_joins_the_verdicts_with_the_table_they_are_of(words, tmp_path):
    run(*words, "-o", tmp_path / "verdicts")
    run(*words, "-o", tmp_path / "verdicts")  # the same samples again: the same rows
    found = f"read_parquet('{tmp_path}/verdicts/*/*/*.parquet', hive_partitioning = true) as verdicts"
    table = f"read_parquet('{tmp_path}/table.parquet') as photos"
    rows = duckdb.sql(
        f"select camera, stream, cast(day as varchar), count(*), count(distinct key), min(margin) "
        f"from {found} join {table} using (key) group by all order by 1, 3"
    ).fetchall()
    expected = [
        (camera, camera, f"2026-11-{day}", count, count)
        for camera in sorted(STREAMS)
        for day, count in ((17, 20), (18, 10))
    ]
    assert [row[:5] for row in rows] == expected
    assert all(row[5] is not None for row in rows)
    printed = [line.split() for line in run(*words).stdout.splitlines()]
    known = duckdb.sql(f"select count(*) from {found} where verdict = 'known'").fetchall()
    assert known == [(sum(line[1] == "known" for line in printed),)]


def test_a_column_that_holds_no_times_is_refused_and_nothing_is_written(words, tmp_path):
    table = pyarrow.parquet.read_table(words[1])
    pyarrow.parquet.write_table(table.drop("time").append_column("time", table["key"]), words[1])
    with pytest.raises(DataError, match="expected times such as"):
        run(*words, "-o", tmp_path / "verdicts")
    assert not (tmp_path / "verdicts").exists()
    with pytest.raises(DataError, match="expected times"):
        day_of("1e400")
