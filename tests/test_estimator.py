"""UnknownDetector among scikit-learn's own tools."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.pictures import save_shade
from helpers.streams import space, stream
from helpers.tiny_models import COLOURS, NamedColours
from unseen import LabelSpace, Session, demo
from unseen.errors import LabelError
from unseen_bench.demo import trial

base = pytest.importorskip("sklearn.base")

from sklearn.exceptions import NotFittedError  # noqa: E402
from sklearn.model_selection import cross_val_score  # noqa: E402
from sklearn.pipeline import Pipeline  # noqa: E402
from sklearn.preprocessing import Normalizer  # noqa: E402
from sklearn.utils.estimator_checks import parametrize_with_checks  # noqa: E402

from unseen.estimator import UnknownDetector  # noqa: E402

ASIDE = "decision_function tells known from unknown, not class from class"
FAILED = {
    "check_classifiers_classes": ASIDE,
    "check_classifiers_train": ASIDE,
    "check_decision_proba_consistency": ASIDE,
    "check_estimators_dtypes": "a vector of zeros has no direction, and is refused",
    "check_methods_subset_invariance": "products in float32 are rounded by the size of the batch, by some 1e-7",
}


@parametrize_with_checks([UnknownDetector()], expected_failed_checks=lambda _: FAILED, xfail_strict=False)
def test_it_passes_the_checks_of_scikit_learn(estimator, check) -> None:
    check(estimator)


def test_it_says_what_a_session_says() -> None:
    labels = space()
    z = stream(labels, 90)
    estimator = UnknownDetector(names=labels, encoder=None, recall=0.9).fit(z[:60].numpy())
    session = Session(labels, estimator.session_.rule)
    session.observe(z[:60])
    session.rejudge(z[:60])
    expected = session.score(z[60:])
    assert estimator.verdicts(z[60:].numpy()).tolist() == expected.verdict
    assert estimator.predict(z[60:].numpy()).tolist() == [verdict.name or "unknown" for verdict in expected]
    assert ((estimator.decision_function(z[60:]) < 0) == expected.unknown.numpy()).all()
    probability = estimator.predict_proba(z[60:])
    assert probability.sum(1) == pytest.approx(1)
    assert 1 - probability[:, -1] == pytest.approx(expected.p_known.numpy(), abs=1e-6)
    estimator.partial_fit(z[60:])
    assert int(estimator.session_.snapshot.tally.seen) == 90
    assert estimator.session_.rule.settings["recall"] == 0.9


def test_parameters_are_cloned_and_names_alone_are_enough() -> None:
    estimator = UnknownDetector(names=space(), encoder=None, detector="online", unknown="other").fit()
    copy = base.clone(estimator).set_params(recall=0.8)
    assert copy.names.fingerprint == estimator.names.fingerprint
    assert copy.get_params() == estimator.get_params() | {"recall": 0.8, "names": copy.names}
    with pytest.raises(NotFittedError):
        copy.predict(stream(space(), 3))
    estimator.predict(stream(space(), 3))
    assert int(estimator.session_.snapshot.tally.seen) == 0
    assert estimator.classes_[-1] == "other"
    with pytest.raises(LabelError, match="expected names, or X and y to take classes from"):
        UnknownDetector().fit(np.eye(3))


def test_it_is_the_last_step_of_a_pipeline_and_is_cross_validated() -> None:
    pack, truth = demo.load(), trial()
    X = 3 * pack.z.numpy()[::5]
    y = np.array([pack.space.names[label] if label >= 0 else "unknown" for label in truth.label[::5].tolist()])
    last = UnknownDetector(names=pack.space.with_negatives(200), encoder=None)
    steps = Pipeline([("unit", Normalizer()), ("unknown", last)])
    known = y != "unknown"
    assert cross_val_score(steps, X[known], y[known], cv=2).min() > 0.75
    by_examples = steps.fit(X[known][::2], y[known][::2])
    assert by_examples["unknown"].session_.detector.labels.examples is not None
    by_examples["unknown"].partial_fit(X)  # what is unknown, it learns from the stream
    assert by_examples.score(X, y) > 0.85


def test_vectors_of_a_model_of_ones_own_need_labels_and_no_names() -> None:
    pack, truth = demo.load(), trial()
    known = truth.is_id.numpy()
    fitted = UnknownDetector().fit(pack.z[known].numpy(), truth.label[known].numpy())
    assert fitted.classes_.tolist() == [0, 1, 2, 3, 4, 5, -1]
    assert (fitted.predict(pack.z[known].numpy()) >= 0).mean() > 0.9
    assert (fitted.predict(pack.z[~known].numpy()) == -1).mean() > 0.5


def test_photos_and_names_are_enough(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path))
    paths = [tmp_path / f"{name}-{i}.png" for i in range(4) for name in COLOURS]
    for path in paths:
        save_shade(path, COLOURS[path.stem.partition("-")[0]], 3)
    estimator = UnknownDetector(names=["red", "green"], encoder=NamedColours()).fit(paths)
    assert estimator.classes_.tolist() == ["red", "green", "unknown"]
    assert {name for name, *_ in zip(estimator.predict(paths), paths, strict=True)} <= {"red", "green", "unknown"}
    examples = [path for path in paths if path.stem[0] in "rg"]
    taught = estimator.fit(examples, [path.stem.partition("-")[0] for path in examples])
    assert isinstance(taught.session_.detector.labels, LabelSpace)
    with pytest.raises(LabelError, match="expected y with names out of red, green, got blue"):
        estimator.fit(paths, [path.stem.partition("-")[0] for path in paths])
