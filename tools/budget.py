"""What the house costs to own: lines, functions, numbers, files, commands, options; held to the budgets of the design.

    python tools/budget.py          # counts and budgets; exit code 1 where a budget in force is exceeded
    python tools/budget.py --ways   # also how many functions and files three ways through the code touch

Each budget has what is in force and the target. Whoever makes a number smaller lowers the one in force to what is
there now, in the last commit of that work; raising one needs its reason in the commit message. Where `due` names the
issue that is to meet a target, it is printed and fails nothing until then. A constant is a name of a module or class
that holds a number, outside frozen dataclasses, named tuples and signatures. It is a budget for things, not for air:
no joined lines, no docstring dropped.
"""

from __future__ import annotations

import ast
import io
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FILE_LINES = 350  # the longest file, docstrings and comments included


class Package(NamedTuple):
    """A part of the tree that has a budget of its own."""

    name: str
    folder: str
    without: str = ""


PACKAGES = (
    Package("unseen", "src/unseen", without="src/unseen/serve"),
    Package("serve", "src/unseen/serve"),
    Package("unseen_bench", "src/unseen_bench"),
    Package("tests", "tests"),
    Package("benchmarks", "benchmarks"),
    Package("pooled", "src/unseen/detectors/pooled"),
    Package("threshold", "src/unseen/threshold"),
)


class Budget(NamedTuple):
    """What a count may be today, what it is to become, and the issue that is to bring it there."""

    package: str
    what: str
    in_force: int
    target: int
    due: str = ""


BUDGETS = (
    Budget("unseen", "lines", 11_990, 11_700),
    Budget("serve", "lines", 3_466, 3_500),
    Budget("unseen_bench", "lines", 5_643, 5_700),
    Budget("tests", "lines", 14_531, 13_500),
    Budget("benchmarks", "lines", 2_712, 2_200),
    Budget("pooled", "lines", 445, 700),
    Budget("pooled", "files", 6, 8),
    Budget("threshold", "lines", 468, 600),
    Budget("all", "constants", 166, 250),
    Budget("all", "long files", 0, 0),
    Budget("all", "commands", 22, 22),
    Budget("all", "options", 129, 130),
    Budget("README.md", "lines", 84, 110),
    Budget("docs", "words", 25_000, 25_000),
    Budget("detect", "functions", 271, 200),
    Budget("detect", "files", 40, 30),
    Budget("observe", "functions", 155, 110, due="31"),
    Budget("observe", "files", 29, 20, due="31"),
    Budget("bench", "functions", 249, 200),
    Budget("bench", "files", 38, 30),
)


@dataclass
class Counts:
    """What was counted in one package."""

    lines: int = 0
    functions: int = 0
    constants: int = 0
    files: int = 0
    long_files: int = 0

    def add(self, path: Path) -> None:
        """Count one file too."""
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        self.files += 1
        self.lines += code_lines(text, tree)
        self.long_files += text.count("\n") > FILE_LINES
        self.functions += sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(tree))
        self.constants += sum(1 for _ in constants(tree))


def code_lines(text: str, tree: ast.Module) -> int:
    """The number of lines that hold code: no blank line, no comment, no docstring."""
    bare = (line.strip() for line in text.splitlines())
    held = {number for number, line in enumerate(bare, start=1) if line and not line.startswith("#")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr) and (node.end_lineno or 0) > node.lineno:
            held.update(range(node.lineno, (node.end_lineno or 0) + 1))  # what looks bare inside a text is not
    return len(held - {line for first, last in _docstrings(tree) for line in range(first, last + 1)})


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            has_one = ast.get_docstring(node, clean=False) is not None
            yield from ((one.lineno, one.end_lineno or one.lineno) for one in node.body[:has_one])


def constants(tree: ast.Module | ast.ClassDef) -> Iterator[str]:
    """The names of modules and classes that hold numbers; frozen dataclasses and named tuples are homes of numbers."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not _is_home(node):
            yield from constants(node)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and _holds_number(node.value):
            yield ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)


def _is_home(node: ast.ClassDef) -> bool:
    heads = [ast.unparse(head) for head in (*node.decorator_list, *node.bases)]
    return any("frozen=True" in head or head == "NamedTuple" for head in heads)


def _holds_number(value: ast.expr) -> bool:
    """Whether there is a number in an expression, but for those in calls of a class: they are named there."""
    found = (node.value for node in ast.walk(value) if isinstance(node, ast.Constant))
    named = isinstance(value, ast.Call) and value.keywords
    return not named and any(type(one) in (int, float) for one in found)


def command_options() -> dict[str, int]:
    """The number of options of every leaf command, `--help` aside."""
    sys.path.insert(0, str(ROOT / "tests"))
    from helpers.commands import leaves

    return {" ".join(words): sum(one.param_type_name == "option" for one in leaf.params) for words, leaf in leaves()}


def count(root: Path) -> dict[str, Counts]:
    """What there is in each package, and in both packages of the wheel together."""
    found = {"all": Counts(), **{package.name: Counts() for package in PACKAGES}}
    for package in PACKAGES:
        for path in sorted((root / package.folder).rglob("*.py")):
            if not (package.without and path.is_relative_to(root / package.without)):
                found[package.name].add(path)
    for name in ("unseen", "serve", "unseen_bench"):
        for field, value in vars(found[name]).items():
            setattr(found["all"], field, getattr(found["all"], field) + value)
    return found


UNNAMED = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")  # functions in some versions of Python only


class Walked(NamedTuple):
    """How much of our code ran: calls, and the functions and files that they were of."""

    calls: int
    functions: int
    files: int


def walked(work: Callable[[], object]) -> Walked:
    """What of src runs, on any thread, when `work` is done a second time."""
    calls: Counter[CodeType] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls[frame.f_code] += 1

    threading.setprofile(note)  # of threads that start from now on: those that wait for the second time too
    sys.setprofile(note)
    try:
        work()
        calls.clear()
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    ours = {
        code: count
        for code, count in calls.items()
        if code.co_filename.startswith(str(ROOT / "src")) and code.co_name not in UNNAMED
    }
    return Walked(sum(ours.values()), len(ours), len({code.co_filename for code in ours}))


def walk_detect(folder: Path) -> Walked:
    """One photo through `unseen detect`, with a CLIP model of two layers."""
    from PIL import Image

    from helpers import tiny_models
    from unseen.cli import app

    tower = tiny_models.save_clip(folder / "clip")
    Image.new("RGB", (48, 32), (200, 30, 60)).save(folder / "photo.png")
    space = _save_space(folder, dim=8)
    words = ["detect", str(folder / "photo.png"), "--space", str(space), "--encoder", str(tower), "--device", "cpu"]
    return walked(lambda: app(words, standalone_mode=False))


def walk_observe(folder: Path) -> Walked:
    """One vector to POST /v1/streams/ID/observe."""
    from starlette.testclient import TestClient

    from unseen.serve.http.app import create_app
    from unseen.serve.http.service import Service
    from unseen.serve.settings import Settings

    app, space = create_app(Service(Settings(folder / "data", encoder=None))), _save_space(folder, dim=8)
    with ExitStack() as stack:

        @cache
        def opened() -> tuple[TestClient, str]:
            """A client and the path of a stream; the thread of its loop starts while calls are counted."""
            client = stack.enter_context(TestClient(app, base_url="http://127.0.0.1"))
            made = client.post("/v1/streams", files={"space": space.read_bytes()}, data={"stream": "{}"})
            return client, f"/v1/streams/{made.json()['id']}/observe"

        def observe() -> None:
            client, path = opened()
            client.post(path, json={"features": [[1.0] + [0.0] * 7]}).raise_for_status()

        return walked(observe)


def walk_bench(folder: Path) -> Walked:
    """One row of `unseen bench`: a set in one order through one detector."""
    from helpers import suite_files
    from unseen.cli import app

    suite = suite_files.write(folder, table=suite_files.TABLE.partition("[unknown.far]")[0])
    words = ["bench", str(suite), "--features", str(folder), "--detectors", "online", "--seeds", "1"]
    return walked(lambda: app(words, standalone_mode=False))


def _save_space(folder: Path, dim: int) -> Path:
    import torch

    from unseen import LabelSpace

    drawn = torch.nn.functional.normalize(torch.randn(12, dim, generator=torch.Generator().manual_seed(0)), dim=1)
    names = tuple(f"name {place}" for place in range(len(drawn)))
    LabelSpace(names[:4], names[4:], drawn[:4], drawn[4:]).save(folder / "space.safetensors")
    return folder / "space.safetensors"


def walks() -> dict[str, Walked]:
    """Every way, walked in an empty folder; what the commands print is left out."""
    sys.path.insert(0, str(ROOT / "tests"))
    found = {}
    for name, walk in {"detect": walk_detect, "observe": walk_observe, "bench": walk_bench}.items():
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            os.environ["UNSEEN_CACHE"] = os.path.join(folder, "cache")
            found[name] = walk(Path(folder))
    return found


def measured(ways: bool) -> dict[tuple[str, str], int]:
    """Every count that a budget may hold, by what it is of and its name."""
    found = {
        (name, field.replace("_", " ")): value
        for name, counts in count(ROOT).items()
        for field, value in vars(counts).items()
    }
    slots = command_options()
    found |= {("all", "commands"): len(slots), ("all", "options"): sum(slots.values())}
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    found[("docs", "words")] = sum(len(page.read_text(encoding="utf-8").split()) for page in pages)
    found[("README.md", "lines")] = pages[0].read_text(encoding="utf-8").count("\n")
    if ways:
        found |= {(name, field): value for name, way in walks().items() for field, value in way._asdict().items()}
    return found


def state(budget: Budget, value: int) -> str:
    """What a count means for its budget."""
    if value <= budget.target:
        return "met"
    if value <= budget.in_force:
        return f"due in issue {budget.due}" if budget.due else "under what is in force"
    return f"due in issue {budget.due}, and grown" if budget.due else "TOO MUCH"


def main() -> int:
    """Print the counts and the budgets; 1 where one in force is exceeded."""
    found = measured(ways="--ways" in sys.argv[1:])
    print(f"{'':14}{'lines':>8}{'functions':>11}{'constants':>11}{'files':>7}")
    for package in (*(one.name for one in PACKAGES), "all"):
        cells = [found[(package, field)] for field in ("lines", "functions", "constants", "files")]
        print(f"{package:14}{cells[0]:>8,}{cells[1]:>11,}{cells[2]:>11,}{cells[3]:>7,}")
    print(f"\n{'budget':24}{'today':>8}{'in force':>10}{'target':>8}")
    exceeded = False
    for budget in BUDGETS:
        value = found.get((budget.package, budget.what))
        if value is not None:
            told = state(budget, value)
            exceeded |= told == "TOO MUCH"
            name = f"{budget.package} {budget.what}"
            print(f"{name:24}{value:>8,}{budget.in_force:>10,}{budget.target:>8,}  {told}")
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main())
