"""Documents name files and commands that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from unseen.cli import app

REPO = Path(__file__).parents[1]
PAGES = [*REPO.glob("*.md"), *REPO.glob("docs/*.md"), *REPO.glob("src/**/*.md")]
EXAMPLES = {"src/unseen/detectors/yours.py"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_links_and_paths_of_a_page_exist(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\((?!http)([^)#]+)[^)]*\)", text)
    paths = re.findall(r"\b(?:tests|src|benchmarks|docs|tools|deploy)/[\w./-]+\w", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    missing += [path for path in paths if not ((REPO / path).exists() or (page.parent / path).exists())]
    assert set(missing) <= EXAMPLES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_commands_and_options_of_a_page_exist(page: Path) -> None:
    commands = vars(typer.main.get_command(app))["commands"]
    for line in re.findall(r"^    unseen (.+)$", page.read_text(), re.M):
        words = re.sub(r"#.*", "", line).split()
        command, *rest = [commands[words[0]], *words[1:]]
        found = [command, *vars(command).get("commands", {}).values()]
        known = {option for one in found for parameter in one.params for option in parameter.opts}
        unknown = {word for word in rest if word.startswith("--")} - known
        assert not unknown, f"{line}: {unknown}"
