"""Every command in README and docs is run here word for word, is run by another test, or says why none runs it."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from helpers.commands import run
from helpers.pictures import save_shade
from helpers.scenes import save_coco
from helpers.tiny_models import COLOURS, NamedColours
from unseen import detectors

pytestmark = pytest.mark.slow  # run by make docs-commands

REPO = Path(__file__).parents[2]
PAGES = [REPO / "README.md", REPO / "CONTRIBUTING.md", *sorted(REPO.glob("docs/**/*.md"))]
COMMAND = re.compile(r"^    ((?:unseen|python|make|pip|curl|git|ray|benchmarks/\S+|TOWERS=\S*) .+)$", re.M)
PROSE = ("unseen implements", "benchmarks/      ", "unseen 0.")

# A command that is not run here: which file runs it, or why none does. The first pattern that is found counts.
ELSEWHERE = {
    r"^make (test|lint|ray-equal)\b": ".ci/run",
    r"^make demo": "tests/cli/test_demo.py",
    r"^make ": "by hand: make release, hours, a GPU, or an installation of hooks",
    r"^(python|benchmarks/\S+|git|TOWERS)": "by hand: a measurement, whose output stands beside the command",
    r"^pip|^unseen (models fetch|demo|serve --demo)": "tests/first_hour.py",
    r"s3://|^ray |--host 0.0.0.0": "by hand: needs an object store or several machines",
    r"--ray": "tests/scale/test_verbs.py",
    r"--device cuda|ViT-B/16": "by hand: needs a GPU or a model hub",
    r"^unseen watch": "tests/cli/test_watch.py",
    r"^unseen (group|promote|rename|retire|dismiss|undo|review)": "tests/cli/test_discover.py",
    r"^unseen (serve|keys)": "tests/serve/http/test_security.py",
    r"^unseen (backup|restore)": "tests/serve/test_backup.py",
    r"^curl .*(promote|rename|retire|dismiss|correct|undo|review)": "tests/serve/http/test_edits.py",
    r"^curl .*(groups|explain)": "tests/serve/http/test_discover.py",
    r"^curl .*(state|restore)": "tests/serve/http/test_api.py",
    r"^curl .*(images|jpeg)": "tests/serve/http/test_images.py",
    r"^curl": "tests/serve/http/test_api.py",
    r"^unseen bench (paper|imagenet|--check)": "tests/bench/test_command.py",
    r"^unseen bench": "tests/suites/test_images.py",
    r"^unseen detect \S+ --space prompts": "tests/learn/test_learn.py",
}


def commands(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    fenced = "\n".join(re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S))
    found = COMMAND.findall(text) + COMMAND.findall(re.sub("^", "    ", fenced, flags=re.M))
    return [re.sub(r"\s+#.*", "", one).strip() for one in found if not one.startswith(PROSE)]


def elsewhere(command: str) -> str | None:
    return next((where for pattern, where in ELSEWHERE.items() if re.search(pattern, command)), None)


def run_here(page: Path) -> list[str]:
    if page.name == "quickstart.md":  # all of it by tests/first_hour.py
        return []
    return [command for command in commands(page) if elsewhere(command) is None]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with everything that the commands name; the encoder knows colours."""
    made: Any = NamedColours()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("unseen.encoders.load_encoder", lambda name, **options: made)
    monkeypatch.setattr(detectors, "_own", {})
    monkeypatch.setattr(sys, "path", [str(tmp_path), *(one for one in sys.path if not one.endswith("benchmarks"))])
    monkeypatch.delitem(sys.modules, "examples", raising=False)  # benchmarks/examples.py, if a test has imported it
    shutil.copytree(REPO / "examples", tmp_path / "examples")
    hues = list(COLOURS.values())[:3]
    folders = {"photos": hues, "more": hues, "known/cat": hues[:1], "known/dog": hues[1:2], "path/to/folder": hues}
    for name, own in folders.items():  # a photo under two names would be an example of none
        for i in range(12):
            save_shade(tmp_path / name / f"{'ab'[i] if i < 2 else i}.jpg", own[i % len(own)], 3 * i)
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    halves = {"red": (0, 0, 10, 16), "green": (10, 0, 20, 16)}
    save_coco(tmp_path / "detections.json", ["a.jpg", "b.jpg"], squares=halves)
    return tmp_path


PREPARED = {  # what a page takes for granted
    "README.md": [],
    "alarms.md": [
        "unseen detect photos/ --label cat --label dog --state state.safetensors",
        "unseen mine --label cat --label dog -o space.safetensors",
        "unseen encode photos/ -o features/",
    ],
    "regions.md": ["unseen detect photos/ --boxes detections.json --labels classes.txt --state state.safetensors"],
    "scale.md": ["unseen mine --label cat --label dog -o space.safetensors", "unseen encode photos/ -o features/"],
    "why-unknown.md": ["unseen detect photos/ --label cat --label dog --state state.safetensors"],
}


@pytest.mark.parametrize("page", [page for page in PAGES if run_here(page)], ids=lambda page: page.name)
def test_the_commands_of_a_page_run_word_for_word(page: Path, folder: Path) -> None:
    (folder / "pets.txt").write_text("cat\n")
    (folder / "birds.txt").write_text("robin\n")
    for command in [*PREPARED.get(page.name, []), *run_here(page)]:
        if command.startswith("unseen detect") and "--label" in command and "--state" in command:
            for old in folder.glob("state.*"):  # pages begin anew where they name labels
                shutil.rmtree(old) if old.is_dir() else old.unlink()
        run(*shlex.split(command)[1:])


def test_every_other_command_is_run_by_a_file_that_exists_or_says_why_not() -> None:
    found = {where for page in PAGES for command in commands(page) if (where := elsewhere(command))}
    assert found == set(ELSEWHERE.values()), "a pattern that no command needs, or the reverse"
    assert all((REPO / where).exists() or where.startswith("by hand: ") for where in found)


def test_lines_of_the_demo_in_the_docs_are_what_it_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPO / "tools"))
    made = import_module("docs_pictures")
    lines = made.demo_lines()
    for page in made.PAGES:
        text = page.read_text(encoding="utf-8")
        assert len(made.LINE.findall(text)) >= 4
        assert made.with_lines(text, lines) == text, "run: python tools/docs_pictures.py"
