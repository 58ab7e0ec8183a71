"""What every detector must satisfy. For a detector of your own: `check_detector(MyDetector(labels))`.

Each check takes a detector and a stream of features and raises AssertionError with what went wrong. A claim about
numbers allows half of the dtype's digits, because a matrix product rounds differently in another shape.
"""

import inspect
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from unseen import checkpoint
from unseen.detectors import Detector, DetectorOutput
from unseen.detectors.state import flatten, is_state
from unseen.errors import FeatureError

TRUTH_PARAMETERS = {"y", "y_true", "label", "labels", "target", "targets", "is_id", "is_ood", "truth", "ground_truth"}
PATCHES = 3

Check = Callable[[Detector[Any], Tensor], None]


def check_detector(detector: Detector[Any], z: Tensor | None = None) -> None:
    """Run every check on `detector` with the stream `z`, or with one drawn around its own anchors.

    >>> from unseen import demo, detectors
    >>> check_detector(detectors.make("mcm", demo.load().space))
    """
    z = example_stream(detector) if z is None else z
    for check in ALL_CHECKS:
        try:
            check(detector, z)
        except AssertionError as error:
            raise AssertionError(f"{check.__name__}: {error}") from error


def example_stream(detector: Detector[Any], samples: int = 60, *, noise: float = 1.2, seed: int = 0) -> Tensor:
    """Features around the anchors of both sides, some near enough that a gate is sure of them."""
    labels = detector.labels
    anchors = torch.cat([labels.id_anchors, labels.ood_anchors])
    generator = torch.Generator().manual_seed(seed)
    shape = (samples, 1 + PATCHES) if detector.parts else (samples,)
    side = torch.rand(shape, generator=generator) < 0.5
    known = torch.randint(len(labels.names), shape, generator=generator)
    other = torch.randint(len(anchors), shape, generator=generator)
    near = anchors[torch.where(side, known, other).to(anchors.device)]
    drawn = torch.randn(*shape, labels.dim, generator=generator, dtype=torch.float64).to(anchors)
    reach = noise * torch.rand(*shape, 1, generator=generator, dtype=torch.float64).to(anchors)
    return normalize(near + reach * normalize(drawn, dim=-1), dim=-1)


def check_no_label_parameter(detector: Detector[Any], z: Tensor) -> None:
    """No public method has a parameter through which the truth could come in."""
    for name, method in inspect.getmembers(type(detector), callable):
        if name.startswith("_"):
            continue
        leaks = TRUTH_PARAMETERS & set(inspect.signature(method).parameters)
        _require(not leaks, f"{name}() without a parameter for the truth", f"{sorted(leaks)}")


def check_finite_scores(detector: Detector[Any], z: Tensor) -> None:
    """Every sample gets one finite score, one known name and one route, while learning and after."""
    learned, state = detector.observe(detector.start(), z)
    for output in (learned, detector.score(state, z)):
        shapes = [tuple(part.shape) for part in output]
        _require(
            shapes == [(len(z),)] * len(output), f"{len(z)} scores, labels, routes and baselines", f"shapes {shapes}"
        )
        _require(output.score.is_floating_point(), "floating-point scores", str(output.score.dtype))
        for name in ("score", "baseline"):
            _require(bool(getattr(output, name).isfinite().all()), f"finite {name}s", "NaN or infinity")
        known = (output.label >= 0) & (output.label < len(detector.labels.names))
        _require(bool(known.all()), f"labels from 0 to {len(detector.labels.names) - 1}", str(output.label.tolist()))
        _require(output.route.dtype == torch.int8, "routes as int8", str(output.route.dtype))
        _require(bool((output.route.abs() <= 1).all()), "routes -1, 0 and 1", str(output.route.unique().tolist()))


def check_score_is_pure(detector: Detector[Any], z: Tensor) -> None:
    """Scoring twice gives the same readings, teaches nothing, and does not change what is learned afterwards."""
    _, state = detector.observe(detector.start(), z)
    learned, _ = detector.observe(state, z)
    first, second = detector.score(state, z), detector.score(state, z)
    require_same(first, second, "score() of the same state and features", exact=True)
    _require(not bool(first.route.any()), "score() to teach nothing", "a route that is not 0")
    require_same(learned, detector.observe(state, z)[0], "observe() with and without a score() before it", exact=True)


def check_score_order_free(detector: Detector[Any], z: Tensor) -> None:
    """Scoring samples in another order gives the same scores in that order."""
    _, state = detector.observe(detector.start(), z)
    order = torch.arange(len(z) - 1, -1, -1, device=z.device)
    straight, turned = detector.score(state, z), detector.score(state, z[order])
    require_same(DetectorOutput(*(part[order] for part in straight)), turned, "score() of samples in reverse order")


def check_blocking(detector: Detector[Any], z: Tensor) -> None:
    """Any division of a stream into calls of observe() gives the readings of one call, and an equal state."""
    whole, end = detector.observe(detector.start(), z)
    for sizes in ([1] * len(z), [0, 1, len(z) // 3, 0, len(z) - 1 - len(z) // 3, 0]):
        divided, state = observe_in_parts(detector, z, sizes)
        require_same(whole, divided, f"observe() in calls of {sorted(set(sizes))} samples")
        require_same(detector.score(end, z), detector.score(state, z), f"the state after calls of {sorted(set(sizes))}")


def check_causal(detector: Detector[Any], z: Tensor) -> None:
    """What comes later changes no earlier reading: random vectors, and the later samples turned around."""
    half = len(z) // 2
    expected = _first(half, detector, z)
    for later in (random_vectors(z[half:]), -z[half:].flip(0)):
        got = _first(half, detector, torch.cat([z[:half], later]))
        require_same(expected, got, "earlier readings of streams that differ later")


def check_length_free(detector: Detector[Any], z: Tensor) -> None:
    """A stream that ends earlier or goes on longer changes no earlier reading."""
    half = len(z) // 2
    expected = _first(half, detector, z)
    for stream in (z[:half], torch.cat([z, random_vectors(z), random_vectors(z[:half])])):
        got = _first(half, detector, stream)
        require_same(expected, got, f"earlier readings of streams of {len(z)} and {len(stream)} samples")


def check_state_survives_checkpoint(detector: Detector[Any], z: Tensor) -> None:
    """A state written to a file and read back goes on as the one in memory."""
    half = len(z) // 2
    _, state = detector.observe(detector.start(), z[:half])
    _require(is_state(state), "a state that is None or a NamedTuple of tensors", type(state).__name__)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        checkpoint.save(path, {"detector": state}, {})
        states = checkpoint.load(path).states
    back = checkpoint.restore_state(detector.start(), states.get("detector", {}))
    expected, got = detector.observe(state, z[half:])[0], detector.observe(back, z[half:])[0]
    require_same(expected, got, "observe() after a checkpoint")


def check_inputs_may_be_overwritten(detector: Detector[Any], z: Tensor) -> None:
    """Overwriting features after a call changes neither what it returned nor what comes next."""
    half = len(z) // 2
    expected_past, state = detector.observe(detector.start(), z[:half])
    expected = detector.score(state, z[half:])
    mine = z[:half].clone()
    past, state = detector.observe(detector.start(), mine)
    _require(torch.equal(mine, z[:half]), "observe() not to change its input", "other values in it")
    mine.fill_(torch.nan)
    require_same(expected_past, past, "readings after their input was overwritten", exact=True)
    require_same(expected, detector.score(state, z[half:]), "a state after its input was overwritten", exact=True)


def check_does_not_write_state(detector: Detector[Any], z: Tensor) -> None:
    """Neither verb writes to the state it is given or to the label space: a reader always holds a whole snapshot."""
    labels = detector.labels
    for state in (detector.start(), detector.observe(detector.start(), z)[1]):
        held = {**checkpoint.flat(state), "id_anchors": labels.id_anchors, "ood_anchors": labels.ood_anchors}
        before = {name: tensor.clone() for name, tensor in held.items()}
        detector.observe(state, z)
        detector.score(state, z)
        after = {**flatten(state), "id_anchors": labels.id_anchors, "ood_anchors": labels.ood_anchors}
        written = sorted(name for name, tensor in after.items() if not torch.equal(tensor, before[name]))
        _require(not written, "a state that stays as it was", f"other values in {written}")


def check_memory_is_bounded(detector: Detector[Any], z: Tensor) -> None:
    """The state takes as many bytes after four times the stream as after one."""
    _, state = detector.observe(detector.start(), z)
    once = _bytes(state)
    for _ in range(3):
        _, state = detector.observe(state, z)
    _require(_bytes(state) == once, f"a state of {once} bytes after four times the stream", f"{_bytes(state)}")


def check_bad_input(detector: Detector[Any], z: Tensor) -> None:
    """Features it cannot use raise FeatureError from both verbs; an empty batch is no error and changes nothing."""
    _, state = detector.observe(detector.start(), z)
    bad = {
        "one dimension too few": z[0],
        "a wrong width": z[..., :-1],
        "an integer dtype": (100 * z).long(),
        "NaN": _with_first(z, torch.nan),
        "a zero vector": _with_first(z, 0.0),
        "a vector that is not unit": _with_first(z, 2 * z[0]),
    }
    for what, features in bad.items():
        for verb in (detector.score, detector.observe):
            _require(_is_refused(verb, state, features), f"FeatureError from {verb.__name__}() on {what}", "none")
    output, after = detector.observe(state, z[:0])
    lengths = [len(part) for part in (*output, *detector.score(state, z[:0]))]
    _require(not any(lengths), "empty readings of an empty batch", f"lengths {lengths}")
    require_same(detector.score(state, z), detector.score(after, z), "the state after an empty batch", exact=True)


ALL_CHECKS: tuple[Check, ...] = (
    check_no_label_parameter,
    check_finite_scores,
    check_bad_input,
    check_score_is_pure,
    check_score_order_free,
    check_causal,
    check_length_free,
    check_blocking,
    check_state_survives_checkpoint,
    check_inputs_may_be_overwritten,
    check_does_not_write_state,
    check_memory_is_bounded,
)


def _require(holds: bool, expected: str, got: str) -> None:
    if not holds:
        raise AssertionError(f"expected {expected}, got {got}" if got else f"expected {expected}")


def require_same(expected: DetectorOutput, got: DetectorOutput, what: str, *, exact: bool = False) -> None:
    """Raise AssertionError unless two readings agree: within half of the digits, or in every bit."""
    tolerance = 0.0 if exact else tolerance_of(expected.score)
    shapes = expected.score.shape == got.score.shape
    _require(shapes, f"{what} to be as long", f"{list(got.score.shape)} for {list(expected.score.shape)}")
    for name in ("score", "baseline"):  # a margin is score less baseline
        apart = _largest_difference(getattr(expected, name), getattr(got, name))
        _require(apart <= tolerance, f"{what} to agree within {tolerance:.2g}", f"{name} {apart:.2g} apart")
    _require(torch.equal(expected.route, got.route), f"{what} to agree", "other routes")
    ties = 0 if exact else 1  # rounding may turn a tie between two names
    _require(int((expected.label != got.label).sum()) <= ties, f"{what} to agree", "other labels")


def _largest_difference(one: Tensor, other: Tensor) -> float:
    apart = torch.where(one == other, 0.0, (one - other).abs()).nan_to_num(torch.inf)  # equal infinities are equal
    return float(apart.max()) if len(apart) else 0.0


def tolerance_of(score: Tensor) -> float:
    """Half of the digits of the largest score."""
    return float(torch.finfo(score.dtype).eps ** 0.5 * score.abs().max()) if len(score) else 0.0


def random_vectors(z: Tensor) -> Tensor:
    """As many random unit vectors, the same ones every time."""
    drawn = torch.randn(z.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return normalize(drawn, dim=-1).to(z)


def _first(count: int, detector: Detector[Any], z: Tensor) -> DetectorOutput:
    return DetectorOutput(*(part[:count] for part in detector.observe(detector.start(), z)[0]))


def observe_in_parts(detector: Detector[Any], z: Tensor, sizes: list[int]) -> tuple[DetectorOutput, Any]:
    """The readings of a stream that comes in calls of these sizes, and the state after the last one."""
    state, outputs = detector.start(), []
    for part in z.split(sizes):
        output, state = detector.observe(state, part)
        outputs.append(output)
    return DetectorOutput.joined(outputs), state


def _with_first(z: Tensor, value: float | Tensor) -> Tensor:
    changed = z.clone()
    changed[0] = value
    return changed


def _is_refused(verb: Callable[[Any, Tensor], Any], state: Any, z: Tensor) -> bool:
    try:
        verb(state, z)
    except FeatureError:
        return True
    return False


def _bytes(state: Any) -> int:
    return sum(part.element_size() * part.nelement() for part in checkpoint.flat(state).values())
