"""The operator of the FiftyOne plugin on objects with FiftyOne's interface; `make fiftyone` has the package itself."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from helpers.pictures import flat
from helpers.tiny_models import COLOURS, NamedColours
from unseen import LabelSpace, Session
from unseen.errors import LabelError
from unseen.integrations import fiftyone as integration
from unseen.integrations.fiftyone import apply, judge

PLUGIN = "unseen.integrations.fiftyone_plugin"


class View:
    """Samples as a view of FiftyOne has them: columns that are read and set whole."""

    def __init__(self, paths: list[str]) -> None:
        self.columns: dict[str, list[Any]] = {"filepath": paths}

    def values(self, field: str) -> list[Any]:
        return self.columns[field]

    def has_field(self, field: str) -> bool:
        return field in self.columns

    def set_values(self, field: str, values: list[Any], *, dynamic: bool) -> None:
        assert dynamic  # or the attributes of a Classification are not declared
        assert len(values) == len(self.columns["filepath"])
        self.columns[field] = values


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    package, operators, types = (
        ModuleType(name) for name in ("fiftyone", "fiftyone.operators", "fiftyone.operators.types")
    )
    vars(package).update(Classification=SimpleNamespace, operators=operators)
    vars(operators).update(Operator=object, OperatorConfig=SimpleNamespace, types=types)
    for module in (package, operators, types):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(integration, "load_encoder", lambda name: NamedColours())
    yield importlib.import_module(PLUGIN)
    sys.modules.pop(PLUGIN, None)


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    found = []
    for number in range(15):
        shade = tuple(min(255, value + 12 * number) for value in list(COLOURS.values())[number % 3])
        flat(shade, (20, 16)).save(tmp_path / f"{number}.png")
        found.append(str(tmp_path / f"{number}.png"))
    return [*found, str(tmp_path / "absent.png")]


@pytest.fixture
def session() -> Session:
    model, names, words = NamedColours(), ["red", "green"], ["word 1", "word 2", "word 3"]
    return Session(LabelSpace(tuple(names), tuple(words), model.texts(names), model.texts(words)), encoder=model)


def run(plugin: Any, view: View, **params: str) -> dict[str, int]:
    """What the operator of the plugin returns for a form that was filled in."""
    registered: list[Any] = []
    plugin.register(SimpleNamespace(register=registered.append))
    reloaded: list[bool] = []
    ops = SimpleNamespace(reload_dataset=lambda: reloaded.append(True))
    (operator,) = registered
    found = operator().execute(SimpleNamespace(params=params, target_view=lambda: view, ops=ops))
    assert reloaded == [True]
    return found


def test_the_operator_writes_verdicts_as_fields_and_leaves_the_state_alone(
    plugin: Any, paths: list[str], session: Session, tmp_path: Path
) -> None:
    session.observe(paths[:6])
    session.save(tmp_path / "state.safetensors")
    before, expected = (tmp_path / "state.safetensors").read_bytes(), session.score(paths[:-1])
    view = View(paths)
    counts = run(plugin, view, state=str(tmp_path / "state.safetensors"), names="", field="judged")
    fields = view.columns["judged"]
    assert [one.verdict for one in fields[:-1]] == [one.verdict for one in expected]
    assert [one.label for one in fields[:-1]] == [one.name or "unknown" for one in expected]
    assert [one.p_known for one in fields[:-1]] == [one.p_known for one in expected]
    assert {one.likely for one in fields[:-1]} <= {None, "word 1", "word 2", "word 3"}  # None where it is known
    assert view.columns["judged_margin"] == [*(one.margin for one in expected), None]
    assert [bool(reason) for reason in view.columns["judged_skipped"]] == [False] * 15 + [True]
    assert sum(counts.values()) == len(paths)
    assert counts["skipped"] == 1
    assert (tmp_path / "state.safetensors").read_bytes() == before


def test_a_view_is_judged_at_its_end_by_everything_learned(plugin: Any, paths: list[str], session: Session) -> None:
    view = View(paths)
    apply(view, session)
    again = session.score(paths[:-1])
    assert view.columns["unseen_margin"][:-1] == [one.margin for one in again]
    assert int(session.snapshot.tally.seen) == 15


def test_a_sample_that_can_be_read_again_loses_its_reason(plugin: Any, paths: list[str], session: Session) -> None:
    view = View(paths[-2:])
    apply(view, session, learn=False)
    assert view.columns["unseen_skipped"][1]
    flat((9, 9, 9), (8, 8)).save(paths[-1])
    apply(view, session, learn=False)
    assert view.columns["unseen_skipped"] == [None, None]


def test_the_names_of_the_form_are_separated_by_commas(
    plugin: Any, paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(plugin, "judge", lambda *words, **named: asked.append((words[1], named)) or {})
    run(plugin, View(paths), names=" red, dark green ,", state="")
    assert asked == [(["red", "dark green"], {"state": None, "field": "unseen"})]


def test_names_and_a_state_at_once_are_refused(plugin: Any, paths: list[str]) -> None:
    with pytest.raises(LabelError, match="expected the names that you know or a state file, got both or neither"):
        judge(View(paths), ["red"], state="state.safetensors")


def test_the_manifest_names_the_operator_and_the_version(plugin: Any) -> None:
    manifest = yaml.safe_load((Path(plugin.__file__).parent / "fiftyone.yml").read_text())
    assert manifest["operators"] == [plugin.Judging().config.name]
    from unseen import __version__

    assert manifest["version"] == __version__
