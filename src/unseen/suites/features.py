"""One safetensors file of features: `features`, optional `labels`, and what made them in the metadata."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from torch import Tensor

from unseen.errors import DataError


@dataclass(frozen=True, eq=False)
class FeatureSet:
    """Features of one data set or of one list of names, as they lie on disk, in float32."""

    name: str
    z: Float[Tensor, "n d"]
    labels: Int[Tensor, " n"] | None = None
    classes: tuple[str, ...] = ()  # what the labels count; in a file of text features, one name per row
    encoder: str = ""

    def __post_init__(self) -> None:
        """Refuse what no detector could read, once, where the file can still be named."""
        if self.z.ndim != 2 or not self.z.is_floating_point():
            raise DataError(
                f"expected floating-point features of shape [n, d] in {self.name}, "
                f"got {self.z.dtype} {list(self.z.shape)}; write one row per image"
            )
        if not bool(self.z.isfinite().all()):
            row = int((~self.z.isfinite()).any(1).nonzero()[0])
            raise DataError(
                f"expected finite features in {self.name}, got NaN or infinity in row {row}; "
                "drop the images that failed to encode"
            )
        if self.labels is not None:
            _check_labels(self.name, self.labels, len(self.z), len(self.classes))

    def __len__(self) -> int:
        return len(self.z)

    @classmethod
    def load(cls, path: str | Path) -> FeatureSet:
        """Read one file; the set is named after it."""
        path = Path(path)
        if not path.is_file():
            raise DataError(f"expected a features file, got no file at {path}; check the path")
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except (SafetensorError, OSError) as error:
            raise DataError(
                f"expected a safetensors file at {path}, got something else or a damaged one ({error}); write it again"
            ) from error
        if "features" not in tensors:
            raise DataError(f"expected a tensor `features` in {path}, got {sorted(tensors)}; rename the tensor")
        labels = tensors.get("labels")
        return cls(
            name=path.stem,
            z=tensors["features"].float() if tensors["features"].is_floating_point() else tensors["features"],
            labels=labels if labels is None or labels.is_floating_point() else labels.long(),
            classes=_names(path, metadata),
            encoder=metadata.get("encoder", ""),
        )


def _check_labels(name: str, labels: Tensor, rows: int, classes: int) -> None:
    if labels.shape != (rows,) or labels.dtype != torch.int64:
        raise DataError(
            f"expected one integer label per row in {name}, [{rows}], "
            f"got {labels.dtype} {list(labels.shape)}; write class indices"
        )
    if classes and rows and not bool(((labels >= 0) & (labels < classes)).all()):
        raise DataError(
            f"expected labels from 0 to {classes - 1} in {name}, one index into its {classes} classes, "
            f"got {int(labels.min())} to {int(labels.max())}; list every class"
        )


def _names(path: Path, metadata: dict[str, str]) -> tuple[str, ...]:
    for key in ("classes", "names"):
        if key in metadata:
            try:
                names = json.loads(metadata[key])
            except json.JSONDecodeError:
                names = None
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise DataError(f"expected {key!r} as a JSON list of strings in the metadata of {path}; write it again")
            return tuple(names)
    return ()
