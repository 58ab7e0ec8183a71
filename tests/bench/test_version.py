"""A row is computed again where code that decides its numbers has changed, and only there."""

import shutil
from pathlib import Path

import pytest

import unseen
import unseen_bench
from unseen_bench.run import version


@pytest.mark.parametrize(
    ("package", "counted"),
    [
        (unseen, ("detectors/mcm.py", "labels/space.py", "session.py", "new.py")),
        (unseen_bench, ("metrics.py", "oracles.py", "methods/__init__.py")),
    ],
)
def test_a_row_has_another_version_where_a_module_that_decides_numbers_changed(tmp_path, package, counted):
    source = Path(package.__file__).parent
    for path in source.rglob("*.py"):
        (tmp_path / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / path.relative_to(source))
    for module in (*counted, "report/page.py"):
        before = version.code_digest(tmp_path)
        (tmp_path / module).parent.mkdir(exist_ok=True)
        with (tmp_path / module).open("a") as file:
            file.write("SHRINKAGE = 2\n")
        assert (version.code_digest(tmp_path) != before) == (module in counted)


def test_what_does_not_count_exists():
    homes = (Path(package.__file__).parent for package in (unseen, unseen_bench))
    assert {path.name for home in homes for path in home.iterdir()} >= version.NOT_COUNTED
