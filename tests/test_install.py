"""What a newcomer meets first: the command for a missing extra, the version in every place, completion and help."""

from __future__ import annotations

import pydoc
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml

import unseen
from helpers.streams import space
from unseen import Session, checkpoint
from unseen.errors import UnseenError, extra_command, import_extra
from unseen.report.stream_page import about

REPO = Path(__file__).parents[1]
REQUIRES = ["torch>=2.4", "av>=12; extra == 'video'", 'pyarrow>=17; extra == "tables"']


def test_the_command_for_an_extra_names_what_it_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "requires", lambda name: REQUIRES)
    assert extra_command("tables") == "pip install 'pyarrow>=17'"
    assert extra_command("video") == "pip install 'av>=12'"


def test_the_command_for_an_extra_of_a_checkout_that_was_never_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    assert extra_command("video") == "pip install 'unseen[video]'"


@pytest.mark.parametrize("said", ["RuntimeError: operator nms does not exist", "ImportError: libGL.so.1: not found"])
def test_a_package_that_does_not_load_is_told_from_one_that_is_missing(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, _, words = said.partition(": ")
    (tmp_path / f"raises_{kind}.py").write_text(f"raise {kind}('{words}')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnseenError, match=f"to load, got {said}; install builds"):
        import_extra(f"raises_{kind}", "open-clip")


def test_the_quickstart_lists_every_extra() -> None:
    extras = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    rows = [line for line in (REPO / "docs" / "quickstart.md").read_text().splitlines() if line[:3] == "| `"]
    assert {extra for row in rows for extra in re.findall(r"`([\w-]+)`", row.split("|")[1])} == set(extras)


def test_the_version_is_in_the_citation_in_reports_and_in_states(tmp_path: Path) -> None:
    cited = yaml.safe_load((REPO / "CITATION.cff").read_text())
    assert cited["version"] == unseen.__version__
    session = Session(space())
    assert about(session).endswith(f"unseen {unseen.__version__}")
    session.save(tmp_path / "state")
    found = checkpoint.load(tmp_path / "state")
    assert found.written_by == unseen.__version__
    assert found.identity == session.identity


def test_help_and_completion_show_what_there_is() -> None:
    described = re.findall(r"^(\w+)  +", str(unseen.__doc__), re.M)
    assert {"Session", "load_encoder", "detectors"} < set(described) <= set(dir(unseen))
    assert all(getattr(unseen, name) is not None for name in described)
    with pytest.raises(AttributeError, match="module 'unseen' has no attribute 'Sesion'"):
        unseen.Sesion  # type: ignore[attr-defined] # noqa: B018
    lines = pydoc.plain(pydoc.render_doc(unseen)).splitlines()
    assert len(lines) <= 80  # the description is one screen; below it are the names of modules, and no class
    assert (Path(unseen.__file__).parent / "py.typed").is_file()


def test_every_command_loads_without_extras() -> None:
    extras = (
        "PIL onnx onnxruntime transformers fastapi starlette httpx uvicorn prometheus_client websockets ray pyarrow"
    )
    block = f"class Block:\n def find_spec(self, name, *_):\n  if name.partition('.')[0] in {extras.split()}: "
    block += "raise ModuleNotFoundError(name, name=name)\n"
    script = f"import sys\n{block}sys.meta_path.insert(0, Block())\nimport unseen.cli\n"
    script += "from unseen.errors import MissingExtra\n"
    script += "try:\n import unseen.serve.client\nexcept MissingExtra as error: print(error.extra)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "serve\n", "")
