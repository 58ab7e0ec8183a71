"""Documents name files and commands that exist; classes have names of their own and methods docstrings."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections import Counter
from functools import cached_property
from pathlib import Path
from types import FunctionType

import pytest

import unseen
from helpers.commands import leaf_of

REPO = Path(__file__).parents[1]
PAGES = [*REPO.glob("*.md"), *REPO.glob("docs/**/*.md"), *REPO.glob("src/**/*.md")]
EXAMPLES = {"src/unseen/detectors/yours.py"}
LONG = {"results.md", "glossary.md", "offline-encoder.md"}  # reference, and tables


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_links_and_paths_of_a_page_exist(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\((?!http)([^)#]+)[^)]*\)", text)
    paths = re.findall(r"\b(?:tests|src|benchmarks|docs|tools|deploy)/[\w./-]+\w", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    missing += [path for path in paths if not ((REPO / path).exists() or (page.parent / path).exists())]
    assert set(missing) <= EXAMPLES


def test_the_diffs_of_contributing_fit_the_files_that_they_name() -> None:
    hunks = re.findall(r"^--- (\S+)\n(.*?)^```", (REPO / "CONTRIBUTING.md").read_text(), re.M | re.S)
    assert len(hunks) == 2
    for path, diff in hunks:
        for hunk in diff.split("@@\n"):
            kept = "".join(line[1:] for line in hunk.splitlines(keepends=True) if line[0] == " ")
            assert (REPO / path).read_text().count(kept) == 1, hunk


@pytest.mark.parametrize("page", [*REPO.glob("docs/**/*.md")], ids=lambda page: page.name)
def test_a_page_is_read_in_one_go(page: Path) -> None:
    assert len(page.read_text().split()) <= 900 or page.name in LONG


def test_what_the_paper_page_says_of_a_file_is_defined_there() -> None:
    """Each equation and theorem stands beside the function that is it."""
    page, said, where = (REPO / "docs" / "paper.md").read_text(), 0, Path()
    for names, file in re.findall(r"((?:`[\w.]+`(?:, | and )?)+) in `?(src/[\w/]+\.py|\w+\.py)`?", page):
        where = REPO / file if "/" in file else next((REPO / "src").rglob(file))
        for name in re.findall(r"`(?:\w+\.)?(\w+)`", names):
            assert re.search(rf"(def|class) {name}\b", where.read_text()), f"{name} in {where}"
            said += 1
    assert said >= 12
    for number in (*range(1, 16), "46 to 48"):
        assert re.search(rf"Eq\. [\d, to]*\b{number}\b|^\| {number} |Eq\. {number}", page, re.MULTILINE), number


def test_what_the_reproduction_page_concludes_is_what_its_table_says() -> None:
    """Where Algorithm 1 beats its gate, and where the truth does not help the rule beyond both frozen scores."""
    page = (REPO / "docs" / "reproduction.md").read_text()
    lines = re.findall(r"^\| ([\w -]+) \|" + r" ([\d.]+) / [\d.]+ \|" * 4 + r" ([\d.]+) \|$", page, re.M)
    table = [(name, *map(float, aurocs)) for name, *aurocs in lines]
    ahead = [name for name, _, neglabel, online, *_ in table if online > neglabel]
    assert (len(table), ahead) == (7, ["scenes", "flowers", "flowers"])  # the last one at low resolution
    assert "on flowers, and on scenes of imagenet200; it loses on near images, textures and digits" in page
    behind = [(name, oracle > neglabel) for name, mcm, neglabel, _, oracle, _ in table if oracle <= max(mcm, neglabel)]
    assert behind == [("digits", True)]
    assert "ahead of both frozen scores in every line but one, MCM on digits" in page


@pytest.mark.parametrize("name", ["results.md", "leaderboard.md", "performance.md", "discover.md"])
def test_figures_of_another_release_say_so_on_top(name: str) -> None:
    text = (REPO / "docs" / name).read_text()
    releases = set(re.findall(r"\b(\d+\.\d+)\.\d+\b", text))
    assert releases, "a page of figures names the release that made them"
    top = text[: text.find("\n\n", text.find("\n\n") + 2)]
    assert unseen.__version__.startswith(tuple(releases)) or re.search(r"[Ff]igures.* \d+\.\d+\.\d", top)


def test_links_of_the_site_lead_to_pages_of_the_site() -> None:
    site = REPO / "docs"
    links = [
        (page.relative_to(REPO), link)
        for page in site.glob("**/*.md")
        for link in re.findall(r"\]\((?!http)([^)#]+)[^)]*\)", page.read_text())
        if not (page.parent / link).resolve().is_relative_to(site)
    ]
    assert links == [], "a file outside of docs/ is named by its path: `examples/photos.py`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_commands_and_options_of_a_page_exist(page: Path) -> None:
    for line in re.findall(r"^    unseen (.+)$", page.read_text(), re.M):
        words = re.sub(r"#.*", "", line).split()
        parameters = leaf_of(words).params
        known = {one for each in parameters for one in (*each.opts, *each.secondary_opts)} | {"--help"}
        unknown = {word for word in words if word.startswith("--")} - known - {"--version"}
        assert not unknown, f"{line}: {unknown}"


def test_the_glossary_has_at_most_sixty_words_and_each_once() -> None:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", (REPO / "docs" / "glossary.md").read_text(), re.M)
    words = [word for row in rows if row != "word" for word in row.split(", ")]
    assert len(rows) <= 60 + 6  # the heads of six tables
    assert len(words) == len(set(words))


def test_what_runs_elsewhere_calls_targets_of_the_makefile() -> None:
    made = set(re.findall(r"^([\w-]+):", (REPO / "Makefile").read_text(), re.M))
    files = [REPO / ".ci" / "run", *(REPO / ".github").rglob("*.yml")]
    lines = [line for file in files for line in re.findall(r"^(?:\s*- run: )?make ([\w -]+)$", file.read_text(), re.M)]
    called = {target for line in lines for target in line.split()}
    assert "release" in called
    assert called <= made


def own_classes() -> set[type]:
    names = {module.name for module in pkgutil.walk_packages(unseen.__path__, "unseen.")} - {"unseen.__main__"}
    found = {one for name in names for one in vars(importlib.import_module(name)).values() if inspect.isclass(one)}
    return {one for one in found if one.__module__ in names and not one.__name__.startswith("_")}


def test_every_public_method_has_a_docstring_or_overrides_one_that_has() -> None:
    kinds = (FunctionType, classmethod, staticmethod, property, cached_property)
    methods = [(kind, name) for kind in own_classes() for name, value in vars(kind).items() if isinstance(value, kinds)]
    public = [(kind, name) for kind, name in methods if not name.startswith("_") and name not in kind.__annotations__]
    assert not [f"{kind}.{name}" for kind, name in public if not inspect.getdoc(inspect.getattr_static(kind, name))]


def test_no_two_classes_have_the_same_name() -> None:
    assert [name for name, count in Counter(kind.__name__ for kind in own_classes()).items() if count > 1] == []


def documented() -> list[str]:
    """What the pages of the API show."""
    pages = (REPO / "docs" / "api").glob("*.md")
    return [name for page in pages for name in re.findall(r"^::: (\S+)$", page.read_text(), re.M)]


@pytest.mark.parametrize("name", documented())
def test_what_the_api_pages_show_has_an_example_that_runs(name: str) -> None:
    home, _, last = name.rpartition(".")
    found = inspect.getdoc(getattr(importlib.import_module(home), last))
    assert found is not None
    assert ">>>" in found or name == "unseen.serve.client.Client"  # that one needs a service: examples/http_client.py


def test_the_api_pages_show_what_the_package_offers() -> None:
    shown = {name.rpartition(".")[2] for name in documented()}
    described = set(re.findall(r"^(\w+)  +", str(unseen.__doc__), re.M))
    assert described - {"detectors", "discover", "threshold"} <= shown
