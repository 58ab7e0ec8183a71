"""The session that a command line asks for: a new one, or the one that a state file was saved by.

Loads torch: commands import it when they run.
"""

import importlib
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from unseen import LabelSpace, Session, detectors, encoders
from unseen.cli import output, spaces
from unseen.cli.calibration import KnownImages
from unseen.cli.known import ExampleImages, without_odd
from unseen.encoders import Encoder
from unseen.errors import SettingError
from unseen.report.stream_page import about
from unseen.threshold import Adaptive, Calibrated, Calibration
from unseen.threshold.base import check_recall
from unseen.threshold.calibrated import fewest_images, recall_interval

BUYS = (20, 50, 200)  # numbers of images whose spread is printed
UNSURE = 0.15  # of recall that may be missing before the summary asks for known photos


def session_of_run(
    labels: LabelSpace, state: Path | None, detector: str | None, *, recall: float | None = None, is_told: bool = False
) -> Session:
    """A new session, or the one that `state` was saved by; refuse options that it was not learned with.

    Where calibration photos come with them, a calibrated rule may get another recall.
    """
    if state is None or not state.exists():
        return Session(detectors.make(detector_name(detector), labels), None if recall is None else Adaptive(recall))
    saved = Session.load(state, labels)
    is_set_anew = is_told and isinstance(saved.rule, Calibrated)
    for option, given, kept in (
        ("--detector", detector and detectors.find(detector_name(detector)).name, saved.detector.name),
        ("--recall", None if is_set_anew else recall, getattr(saved.rule, "recall", None)),
    ):
        if given not in (None, kept):
            raise SettingError(f"expected {option} as {state} was learned with, {kept}, got {given}; leave it out")
    return saved


def detector_name(given: str | None) -> str:
    """What the detector of a run is called: one of your own, `module:Class`, is registered; one of parts is refused."""
    name = _register_own(given) if given and ":" in given else given or detectors.DEFAULT
    if detectors.find(name).parts:
        raise SettingError(f"expected a detector that reads whole images, got {given!r}; leave it out")
    return name


def _register_own(name: str) -> str:
    """Register the class that `module:Class` names, found from the working folder too; return the detector's name."""
    module, _, cls = name.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does; an installed command does not
    try:
        kind = getattr(importlib.import_module(module), cls)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingError(
            f"expected --detector module:Class, got {name!r} ({error}); "
            "run it in the folder of the module, or install the module"
        ) from error
    return detectors.register(kind)


class Start(NamedTuple):
    """What a run over images begins with."""

    session: Session
    model: Encoder
    known_images: KnownImages | None
    skipped: int  # examples and calibration photos that could not be read


def prepare(
    state: Path | None,
    labels: Path | None,
    label: list[str] | None,
    encoder: str | None,
    *,
    device: str | None = None,
    space: Path | None = None,
    examples: str | None = None,
    never: Sequence[str] = (),
    detector: str | None = None,
    recall: float | None = None,
    calibrate: str | None = None,
) -> Start:
    """The session and the encoder that the options ask for; what can be refused is, before anything is encoded."""
    kind = detectors.find(detector_name(detector))
    if recall is not None:
        check_recall(recall)
    known = KnownImages.find(calibrate, recall) if calibrate else None
    saved = spaces.saved_space(space, state, has_names=bool(labels or label or examples))
    taught = ExampleImages.find(examples, saved=saved, state=state) if examples else None
    names: list[str] = []  # of a saved space, or to be checked against it
    if labels or label or not (saved or taught):
        names = spaces.names_from_options(labels, label)
    elif taught and not saved:
        names = list(taught.folders)
    if taught:
        taught.check_names(names or (saved.names if saved else names))
    if not saved:
        kind.check_counts(len(names), 1)
    model = encoders.load_encoder(encoder or (saved.encoder if saved else "offline"), device=device)
    if saved:
        spaces.check_space(saved, names, model, never=never)
    made = saved or spaces.make_space(names, model, never=never)
    if taught:
        made = taught.teach(made, model)
    opened = partial(session_of_run, state=state, detector=detector, recall=recall, is_told=known is not None)
    session = opened(made)
    if taught and (alike := without_odd(session)):
        session = opened(alike)
    if known:
        known.read(made, model)
    output.say(about(session))
    if known:
        known.guarantee = isinstance(session.rule, Calibrated)  # one that the state has is kept
        for line in calibration_lines(session, known.calibrate(session)):
            output.say(line)
    return Start(session, model, known, sum(one.skipped for one in (taught, known) if one))


def calibration_lines(session: Session, found: Calibration) -> list[str]:
    """What a calibration does, and what a guarantee promises, costs here and would gain from more images."""
    if not isinstance(session.rule, Calibrated):
        return [f"{found.images:,} photos of known names · {threshold_in_words(session)}"]
    buys = {n: recall_interval(n, found.recall) for n in BUYS if n >= fewest_images(found.recall)}
    return [
        f"guaranteed by {found.images:,} photos: a new known image is kept with probability at least "
        f"{100 * found.recall:g} %; in nine of ten calibrations with {found.images:,} photos the share of all known "
        f"images kept lies between {100 * found.low:.1f} and {100 * found.high:.1f} %",
        *(f"  {n:>4} photos: {100 * low:.1f} to {100 * high:.1f} %" for n, (low, high) in buys.items()),
    ]


def threshold_in_words(session: Session) -> str:
    """The threshold of a session, and what its rule does: what share of the known images it keeps."""
    rule, interval, words = session.rule, session.recall_interval, session.rule.name
    if isinstance(rule, Calibrated):
        ago = int(session.snapshot.tally.seen - session.snapshot.threshold.at)
        when = f" {ago:,} images ago" if ago else ""
        words = f"keeps at least {100 * rule.recall:g} % of known: guaranteed by {rule.images:,} photos{when}"
    elif isinstance(rule, Adaptive) and interval is None:
        words = f"aims at {100 * rule.recall:g} % of known; a guess with {session.detector.name}: --calibrate known/"
    elif isinstance(rule, Adaptive) and interval:
        low, high = 100 * interval.low, 100 * interval.high
        words = f"keeps likely {low:.0f} to {high:.0f} % of known, {100 * rule.recall:g} % wanted"
        if interval.low < rule.recall - UNSURE and not bool(session.snapshot.threshold.told.photos.any()):
            words += "; surer with photos of your names: --calibrate known/"
    return f"threshold {session.threshold:z.2f} ({words})"
