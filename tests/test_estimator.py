"""UnknownDetector among scikit-learn's own tools."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.streams import space, stream
from helpers.tiny_text import HashEncoder
from unseen import Session
from unseen.labels import Corpus, mining

base = pytest.importorskip("sklearn.base")
pipeline = pytest.importorskip("sklearn.pipeline")

from sklearn.exceptions import NotFittedError  # noqa: E402
from sklearn.preprocessing import Normalizer  # noqa: E402

from unseen.estimator import UnknownDetector  # noqa: E402


def test_it_says_what_a_session_says() -> None:
    labels = space()
    z = stream(labels, 90)
    estimator = UnknownDetector(encoder=None, recall=0.9).fit(labels).partial_fit(z[:60].numpy())
    session = Session(labels, estimator.session_.rule)
    session.observe(z[:60])
    expected = session.score(z[60:])
    assert estimator.predict(z[60:].numpy()).tolist() == [verdict.name or "unknown" for verdict in expected]
    assert ((estimator.decision_function(z[60:]) >= 0) == expected.known.numpy()).all()
    assert estimator.session_.rule.settings["recall"] == 0.9


def test_parameters_are_cloned_and_prediction_learns_nothing() -> None:
    estimator = UnknownDetector(encoder=None, detector="online", unknown="other").fit(space())
    copy = base.clone(estimator)
    assert copy.get_params() == estimator.get_params()
    with pytest.raises(NotFittedError):
        copy.predict(stream(space(), 3))
    estimator.predict(stream(space(), 3))
    assert int(estimator.session_.snapshot.tally.seen) == 0
    assert estimator.classes_[-1] == "other"


def test_it_is_the_last_step_of_a_pipeline() -> None:
    labels = space()
    steps = pipeline.Pipeline([("unit", Normalizer()), ("unknown", UnknownDetector(encoder=None).fit(labels))])
    assert steps.predict(3 * stream(labels, 5).numpy()).shape == (5,)


def test_names_are_enough_to_fit(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path))
    words = Corpus("words", {"noun.own": tuple(f"word {i}" for i in range(40))})
    monkeypatch.setattr(mining, "_mined_lists", lambda *given: words)
    estimator = UnknownDetector(encoder=HashEncoder()).fit(["cat", "dog"])  # type: ignore[arg-type]
    assert estimator.classes_.tolist() == ["cat", "dog", "unknown"]
    rows = np.asarray(HashEncoder().texts(["cat", "word 3"]))
    assert set(estimator.predict(rows)) <= {"cat", "dog", "unknown"}


# The other checks of scikit-learn fit to random numbers, where this estimator is fitted to names.
WITHOUT_DATA = (
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
)


@pytest.mark.parametrize("name", WITHOUT_DATA)
def test_it_passes_the_checks_of_scikit_learn_that_fit_nothing(name: str) -> None:
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    getattr(checks, name)("UnknownDetector", UnknownDetector())
