"""A row is computed again where code that decides its numbers has changed, and only there."""

import shutil
from pathlib import Path

import pytest

import unseen
from unseen_bench.run import version


@pytest.fixture
def package(tmp_path):
    source = Path(unseen.__file__).parent
    return Path(shutil.copytree(source, tmp_path / "unseen", ignore=lambda _, names: _not_python(names)))


def _not_python(names):
    return [name for name in names if "." in name and not name.endswith(".py")]


@pytest.mark.parametrize(
    "module", ["detectors/mcm.py", "labels/space.py", "fewshot/prototypes.py", "session.py", "odds.py", "metrics.py"]
)
def test_another_module_that_decides_numbers_is_another_version(package, module):
    before = version.code_digest(package)
    with (package / module).open("a") as file:
        file.write("# changed\n")
    assert version.code_digest(package) != before


def test_a_new_module_counts_and_output_does_not(package):
    before = version.code_digest(package)
    (package / "report" / "page.py").write_text("")
    assert version.code_digest(package) == before
    (package / "new.py").write_text("SHRINKAGE = 2\n")
    assert version.code_digest(package) != before


def test_what_does_not_count_exists(package):
    assert {path.name for path in package.iterdir()} >= version.NOT_COUNTED


def test_the_version_of_this_package_has_its_digest(package):
    assert version.code_version() == f"{unseen.__version__}+{version.code_digest(package)}"
