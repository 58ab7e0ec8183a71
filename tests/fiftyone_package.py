"""FiftyOne's own package and data base with verdicts in them: run by `make fiftyone`, in an environment of its own.

It pins packages that the tests pin otherwise, and starts a MongoDB, so it stands outside of pytest.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import fiftyone
import fiftyone.operators as operators
from fiftyone.operators import executor
from PIL import Image

from helpers.tiny_models import COLOURS, NamedColours
from unseen import LabelSpace, Session
from unseen.discover import review
from unseen.integrations import fiftyone as integration
from unseen.integrations.fiftyone import apply, apply_groups, from_fiftyone
from unseen.threshold import Fixed


def make_photos(folder: Path) -> list[str]:
    """The paths of fifteen photos of three colours, one of which has no name."""
    paths = []
    for i in range(15):
        shade = tuple(min(255, value + 12 * i) for value in list(COLOURS.values())[i % 3])
        Image.new("RGB", (20, 16), shade).save(folder / f"{i}.png")
        paths.append(str(folder / f"{i}.png"))
    return paths


def check_apply(paths: list[str], session: Session) -> None:
    """Fields written through `apply` are in the data base, and equal what the session says."""
    dataset = fiftyone.Dataset()
    dataset.add_samples([fiftyone.Sample(filepath=path) for path in paths])
    assert list(from_fiftyone(dataset)) == paths
    before = session.score(paths)
    apply(dataset, session, learn=False)
    dataset.reload()
    assert dataset.values("unseen_margin") == [one.margin for one in before]
    assert dataset.values("unseen.label") == [one.name or "unknown" for one in before]
    unknown = dataset.match(fiftyone.ViewField("unseen.verdict") == "unknown")
    assert len(unknown) == sum(one.unknown for one in before)
    assert {"unseen.verdict", "unseen.p_known", "unseen.likely"} <= set(dataset.get_field_schema(flat=True))
    by_margin = dataset.sort_by("unseen_margin").values("filepath")
    assert by_margin == [path for _, path in sorted(zip((one.margin for one in before), paths, strict=True))]
    apply(dataset.limit(3), session, field="second")  # a view, with learning
    assert int(session.snapshot.tally.seen) == 3
    assert len(dataset.exists("second")) == 3
    dataset.delete()


def check_groups(paths: list[str], session: Session) -> None:
    """Groups of unknown images are fields, and a file that is missing has a reason in place of a verdict."""
    dataset = fiftyone.Dataset()
    dataset.add_samples([fiftyone.Sample(filepath=path) for path in [*paths, "/absent/photo.png"]])
    apply(dataset, session)
    found = apply_groups(dataset, session)
    dataset.reload()
    groups = dict(zip(dataset.values("filepath"), dataset.values("unseen_group"), strict=True))
    assert found.groups
    for one in found.groups:
        assert {groups[key] for key in one.keys} == {one.number}
        assert len(dataset.match(fiftyone.ViewField("unseen_group") == one.number)) == one.size
    assert [bool(words) for words in dataset.values("unseen_skipped")] == [False] * len(paths) + [True]
    dataset.delete()


def check_operator(paths: list[str], session: Session, folder: Path) -> None:
    """FiftyOne finds the plugin in its folder, draws the form, and the operator judges a view by a saved state."""
    fiftyone.config.plugins_dir = str(Path(integration.__file__).parent)
    vars(integration)["load_encoder"] = lambda name: session.encoder
    session.save(folder / "state.safetensors")
    dataset = fiftyone.Dataset()
    dataset.add_samples([fiftyone.Sample(filepath=path) for path in [*paths, "/absent/photo.png"]])
    view, uri = dataset.skip(5), "@unseen/unseen/judge_images"
    assert uri in [operator.uri for operator in operators.list_operators(builtin=False)]
    context = executor.ExecutionContext({"dataset_name": dataset.name, "view": view._serialize(), "params": {}})
    form = operators.get_operator(uri).resolve_input(context).to_json()
    assert {"names", "state", "field"} <= set(form["type"]["properties"])
    params = {"state": str(folder / "state.safetensors"), "field": "found"}
    found = operators.execute_operator(uri, {"view": view, "params": params})
    found = asyncio.run(found) if asyncio.iscoroutine(found) else found
    assert sum(found.result.values()) == 11, found
    assert found.result["skipped"] == 1
    dataset.reload()
    expected = session.score(paths[5:])
    assert dataset.skip(5).values("found.verdict") == [*(one.verdict for one in expected), None]
    assert dataset.limit(5).values("found.verdict") == [None] * 5
    dataset.delete()


def check_export(paths: list[str], session: Session, folder: Path) -> None:
    """The labels of `unseen review --format fiftyone` are read by FiftyOne's own importer."""
    session.observe(paths[3:], paths[3:])
    rows = review.reviewed(session)
    (folder / "labels.json").write_text(json.dumps(review.fiftyone(rows)))
    dataset = fiftyone.Dataset.from_dir(
        dataset_type=fiftyone.types.FiftyOneImageClassificationDataset,
        data_path=str(folder),
        labels_path=str(folder / "labels.json"),
    )
    found = {one.filepath: one.ground_truth.label for one in dataset}
    assert found == {row.key: row.label for row in rows}, (found, rows)
    dataset.delete()


def main() -> None:
    """Run the checks and print what was tried."""
    encoder: Any = NamedColours()
    names, negatives = ["red", "green"], ["word 1", "word 2", "word 3"]
    space = LabelSpace(tuple(names), tuple(negatives), encoder.texts(names), encoder.texts(negatives))
    session = Session(space, encoder=encoder)
    with tempfile.TemporaryDirectory() as folder:
        paths = make_photos(Path(folder))
        check_apply(paths, session)
        check_export(paths, session, Path(folder))
        check_operator(paths, session, Path(folder))
        check_groups(paths, Session(space, Fixed(1e9), encoder=encoder))  # all are unknown
    print(
        f"FiftyOne {fiftyone.__version__}: fields, views, groups, operator and exported labels agree with the verdicts"
    )


if __name__ == "__main__":
    main()
