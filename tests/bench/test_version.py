"""A row is computed again where code that decides its numbers has changed, and only there."""

import shutil
from pathlib import Path

import pytest

import unseen
import unseen_bench
from unseen_bench.run import version

HOMES = {package.__name__: Path(package.__file__).parent for package in (unseen, unseen_bench)}


def copy_of(package: str, folder: Path) -> Path:
    return Path(shutil.copytree(HOMES[package], folder / package, ignore=lambda _, names: _not_python(names)))


def _not_python(names):
    return [name for name in names if "." in name and not name.endswith(".py")]


@pytest.mark.parametrize(
    ("package", "module", "counts"),
    [
        *(
            ("unseen", module, True)
            for module in ("detectors/mcm.py", "labels/space.py", "session.py", "odds.py", "new.py")
        ),
        *(("unseen_bench", module, True) for module in ("metrics.py", "oracles.py", "methods/parse.py")),
        *((package, "report/page.py", False) for package in HOMES),
    ],
)
def test_a_row_has_another_version_where_a_module_that_decides_numbers_changed(tmp_path, package, module, counts):
    home = copy_of(package, tmp_path)
    before = version.code_digest(home)
    (home / module).parent.mkdir(exist_ok=True)
    with (home / module).open("a") as file:
        file.write("SHRINKAGE = 2\n")
    assert (version.code_digest(home) != before) == counts


def test_what_does_not_count_exists():
    assert {path.name for home in HOMES.values() for path in home.iterdir()} >= version.NOT_COUNTED
