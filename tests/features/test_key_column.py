from __future__ import annotations

from pathlib import Path

import pytest

from helpers.streams import unit
from unseen.errors import DataError
from unseen.features import load_features


def test_a_key_column_with_nulls_is_refused_with_the_first_row(tmp_path: Path) -> None:
    arrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    table = arrow.table({"z": unit(3, 4).tolist(), "camera": ["a", None, "b"]})
    parquet.write_table(table, tmp_path / "z.parquet")
    with pytest.raises(DataError, match="got none for 1 of 3, row 1 the first"):
        load_features(tmp_path / "z.parquet").column("camera")
