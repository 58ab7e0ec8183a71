"""Updates of streams: the launches of kernels on tensors that stay where they are, and graphs of these launches."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.detectors.base import DetectorOutput
from unseen.detectors.pooled.gpu.formulas import KernelFormulas
from unseen.detectors.pooled.gpu.tensors import InputRows, ResidentState, TaughtRows
from unseen.detectors.pooled.state import FIRST_DIRECTION, INTERVAL
from unseen.detectors.state import flatten, map_state
from unseen.gpu import recording
from unseen.gpu.triton_import import power_of_two

ROUNDS = 4  # of refinement of a direction
SAMPLES, COLUMNS, NAMES, TILE, ROWS = 128, 8, 512, 32, 8  # numbers that one program works on
JUDGE_WARPS = 8


class Updates:
    """Judge and learn samples of `count` streams on one GPU, of each at most `capacity` between two calls."""

    def __init__(self, resident: ResidentState, capacity: int, formulas: KernelFormulas) -> None:
        self.resident, self.capacity, self.formulas = resident, capacity, formulas
        self.labels, self.count = formulas.labels, len(resident.seen)
        self.start = torch.zeros_like(resident.seen)  # the row of each stream that comes next
        self.is_followed = False  # whether the resident inverse is that of the last matrix
        self.recordings: dict[str, Callable[[], None]] = {}  # by what they do

    @cached_property
    def inputs(self) -> InputRows:
        """The rows that graphs read."""
        zeros, rows = self.labels.id_anchors.new_zeros, self.count * self.capacity
        return InputRows(self.formulas.room(rows), zeros(rows, dtype=torch.float64), zeros(rows, dtype=torch.int8))

    @cached_property
    def outputs(self) -> DetectorOutput:
        """The readings that graphs write, a row for each of the inputs."""
        like, rows = self.labels.id_anchors, self.count * self.capacity
        types = like.dtype, torch.int64, torch.int8, like.dtype, like.dtype
        return DetectorOutput(*(like.new_zeros(rows, dtype=one) for one in types))

    @cached_property
    def _gains(self) -> Float[Tensor, "S 16"]:
        return self.labels.id_anchors.new_zeros((self.count, 16), dtype=torch.float64)

    @cached_property
    def _pull(self) -> Float[Tensor, "S d"]:
        return self.labels.id_anchors.new_zeros((self.count, self.labels.dim), dtype=torch.float64)

    @cached_property
    def _scatter(self) -> tuple[Tensor, Tensor]:
        zeros = partial(self.labels.id_anchors.new_zeros, (self.count, self.labels.dim, self.labels.dim))
        return zeros(dtype=torch.float64), zeros()

    def fill(self, inputs: InputRows) -> None:
        """Put samples of each stream into the rows that graphs read."""
        count = inputs.baseline.shape[1]
        rows = map_state(lambda place: place.unflatten(0, (self.count, -1))[:, :count], self.inputs)
        map_state(torch.Tensor.copy_, rows, inputs)
        self.start.zero_()

    def read(self, count: int) -> DetectorOutput:
        """The readings of the first `count` samples of each stream."""
        return map_state(lambda column: column.unflatten(0, (self.count, -1))[:, :count].clone(), self.outputs)

    def step(self, at: int, size: int, *, exact: bool) -> None:
        """Judge and learn the next samples of each stream, after which an update is due; fit the direction anew.

        Where the inverse of its matrix cannot be followed from an earlier one, it is computed.
        """
        fits = at + size >= FIRST_DIRECTION
        self._run(f"learn {size}, {fits}", lambda: self._learn(size, fits=fits))
        if fits:
            newton = 0 if exact or not self.is_followed else newton_steps(at)
            if not newton:
                self.resident.inverse.copy_(torch.linalg.inv(self._scatter[0]))
            self._run(f"solve {newton}", lambda: self._solve(newton))
            self.is_followed = True

    def _run(self, name: str, work: Callable[[], None]) -> None:
        """Run a recorded graph; record it the first time."""
        if name not in self.recordings:
            self.recordings[name] = recording.record(work, [*flatten(self.resident).values(), self.start, self._gains])
        self.recordings[name]()

    def judge(self, size: int) -> TaughtRows:
        """Judge the next samples of each stream; return what they will teach."""
        taught = self.taught_rows(size)
        self.launch_judge(self.inputs, self.outputs, taught, self.start, self.capacity)
        return taught

    def taught_rows(self, size: int) -> TaughtRows:
        """Room for what `size` samples of each stream teach."""
        empty, dim, rows = self.labels.id_anchors.new_empty, self.labels.dim, self.count * size
        packed, weights = (empty((rows, width), dtype=torch.float64) for width in (self.formulas.packed_width, 2))
        return TaughtRows(packed, weights, empty((rows, 2, dim)), empty((rows, dim)))

    def launch_judge(
        self, inputs: InputRows, outputs: DetectorOutput, taught: TaughtRows, start: Tensor, capacity: int
    ) -> None:
        """Judge rows of the inputs, from `start` on; write readings, and what the samples will teach."""
        from unseen.detectors.pooled.gpu.kernels import judge as kernels

        sums, fitted, samples = self.resident.sums, self.resident.fitted, inputs.samples
        dim, size, tops = self.labels.dim, len(taught.z) // self.count, self.formulas.tops
        kernels.judge[(size, self.count)](
            start, samples.z, *samples.nearest.known, *samples.nearest.negative, samples.statistics, inputs.baseline,
            inputs.is_new, self.formulas.settings, self.labels.id_anchors, self.labels.ood_anchors,
            sums.known.total, sums.known.images, sums.negative.total, sums.negative.images,
            fitted.known, fitted.negative, fitted.direction.slope, fitted.direction.centre, fitted.direction.level,
            *fitted.likelihood, fitted.popularity, fitted.votes, *outputs, *taught, self._gains,
            capacity, size, *self.formulas.sizes, dim, *tops,
            power_of_two(dim), *map(power_of_two, tops), num_warps=JUDGE_WARPS,
        )  # fmt: skip

    def _learn(self, size: int, *, fits: bool) -> None:
        """Judge and learn the next samples of each stream; where it `fits`, make the system of the direction."""
        from unseen.detectors.pooled.gpu.kernels import learn as kernels

        seen, sums, fitted, *_ = self.resident
        sides, direction = sums.sides, fitted.direction
        (known, negatives), dim, tops = self.formulas.sizes, self.labels.dim, self.formulas.tops
        taught = self.judge(size)
        products = torch.bmm(taught.weighted.view(self.count, size, 2 * dim).mT, taught.z.view(self.count, size, dim))
        kernels.learn_names[(size * sum(tops) + 1, self.count)](
            self.start, seen, taught.rows, taught.weights, taught.z, self._gains,
            sums.known.total, sums.known.images, sums.negative.total, sums.negative.images, sums.votes,
            sides.weight, sides.margin, *sums.predictions, direction.level, direction.images, *fitted.likelihood,
            size, known, negatives, dim, *tops, power_of_two(dim), fits, num_warps=1,
        )  # fmt: skip
        column_programs = -(-dim // COLUMNS)
        kernels.learn_columns[(column_programs - (-known // NAMES), self.count)](
            taught.rows, taught.weights, sides.weight, sides.margin, sides.image, sides.cross,
            self.labels.text_mean, fitted.known, fitted.negative, direction.centre, self._pull,
            sums.votes, fitted.popularity, fitted.votes, size, known, dim, taught.rows.shape[1], column_programs,
            SAMPLES, COLUMNS, NAMES, fits, num_warps=4,
        )  # fmt: skip
        (scatter, rough), tiles = self._scatter, -(-dim // TILE)
        kernels.learn_gram[(tiles * tiles, self.count)](
            products, sides.gram, sides.weight, direction.centre, scatter, rough, dim, tiles, TILE, fits, num_warps=4
        )

    def _solve(self, newton: int) -> None:
        """Follow the inverse by steps of Newton's method, products only, and refine the direction that it gives."""
        from unseen.detectors.pooled.gpu.kernels import solve as kernels

        inverse, error, slope = self.resident.inverse, self.resident.error, self.resident.fitted.direction.slope
        (scatter, rough), pull, dim = self._scatter, self._pull, self.labels.dim
        if newton:
            followed = inverse
            for _ in range(newton):
                followed = torch.baddbmm(followed, followed, torch.bmm(rough, followed), beta=2, alpha=-1)
            inverse.copy_(followed)
        grid, width, left = (-(-dim // ROWS), self.count), power_of_two(dim), torch.empty_like(pull)
        for number in range(ROUNDS + 1):
            kernels.correct[grid](
                inverse, left, pull, slope, error, dim, ROWS, width, number == 0, number == ROUNDS, num_warps=4
            )
            if number < ROUNDS:
                kernels.residual[grid](scatter, pull, slope, left, dim, ROWS, width, num_warps=4)


def newton_steps(at: int) -> int:
    """How many steps follow a matrix after `at` samples: the more a few samples change it, the more."""
    return 4 if at < 4 * INTERVAL else 3 if at < 16 * INTERVAL else 2 if at < 64 * INTERVAL else 1
