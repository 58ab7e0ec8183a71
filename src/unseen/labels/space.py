"""The text side of a detector: known and negative names with one frozen unit vector each."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.errors import EncoderError, LabelError
from unseen.labels.examples import Examples
from unseen.labels.names import check_names
from unseen.storage.files import load_tensors, save_tensors

if TYPE_CHECKING:
    from unseen.labels.prompts import TextEncoder

UNIT_TOLERANCE = 1e-2  # float16 vectors on disk are unit to about 1e-3
EXAMPLE_KEYS = {"examples": "example", "spared": "spared"}  # field -> what its tensors are called in a file


KINDS = {"relative": "relatives", "everyday": "everyday words", "far": "far words", "never": "words of your own"}


class Origin(NamedTuple):
    """Why a word is a negative: a relative of a name, an everyday thing, a far one, or never to be called known."""

    kind: str  # relative, everyday, far or never
    name: str = ""  # whose relative it is


@dataclass(frozen=True, eq=False)
class LabelSpace:
    """K known names and L negative names with one unit text vector each; fixed for the life of a stream.

    >>> import torch
    >>> LabelSpace(("cat", "dog"), ("piano",), torch.eye(3)[:2], torch.eye(3)[2:]).negatives
    ('piano',)
    """

    names: tuple[str, ...]
    negatives: tuple[str, ...]
    id_anchors: Float[Tensor, "K d"]
    ood_anchors: Float[Tensor, "L d"]
    prompt: str = ""
    encoder: str = ""
    manifest: dict[str, str] = field(default_factory=dict)
    examples: Examples | None = None  # labelled images of the names, seen before any stream
    spared: Examples | None = None  # examples that teach nothing: sessions set their threshold by them
    origins: tuple[Origin, ...] = ()  # of the negatives; none in spaces of version 0.2 and in those made by hand

    def __post_init__(self) -> None:
        """Check everything once and keep exactly unit rows, so that no detector has to."""
        object.__setattr__(self, "names", check_names("names", self.names, at_least_one=True))
        object.__setattr__(self, "negatives", check_names("negatives", self.negatives))
        if shared := set(self.names) & set(self.negatives):
            raise LabelError(
                f"expected negatives that are not known names, got {sorted(shared)[:3]} on both sides; "
                "remove them from the negatives"
            )
        if self.origins and len(self.origins) != len(self.negatives):
            raise LabelError(
                f"expected an origin for each of {len(self.negatives)} negatives, got {len(self.origins)}; "
                "pass all or none"
            )
        width = self.id_anchors.shape[-1]
        object.__setattr__(self, "id_anchors", _unit_rows("id_anchors", self.id_anchors, len(self.names), width))
        object.__setattr__(self, "ood_anchors", _unit_rows("ood_anchors", self.ood_anchors, len(self.negatives), width))
        for labelled in (self.examples, self.spared):
            if labelled is not None:
                labelled.check(self)

    @staticmethod
    def build(names: Sequence[str], encoder: TextEncoder, **options: Any) -> LabelSpace:
        """`names` with negatives; `unseen.labels.build` explains the options.

        >>> class Tower:                     # `encoder` is what `load_encoder` returns, or anything with `texts`
        ...     name, dim, fingerprint = "tower", 2, "first"
        ...     def texts(self, prompts):
        ...         return torch.eye(2)[[("dog" in prompt) * 1 for prompt in prompts]]
        >>> LabelSpace.build(["cat", "dog"], Tower(), relatives=0, everyday=0).names
        ('cat', 'dog')
        """
        from unseen.labels.negatives import build  # late: it makes label spaces

        return build(names, encoder, **options)

    @property
    def kinds(self) -> dict[str, int]:
        """How many negatives are relatives, everyday things and so on."""
        return dict(Counter(origin.kind for origin in self.origins))

    @property
    def in_words(self) -> str:
        """How many names and negatives there are.

        >>> space = LabelSpace(("cat",), ("tiger",), torch.eye(2)[:1], torch.eye(2)[1:], origins=(Origin("relative"),))
        >>> space.in_words
        '1 name + 1 relatives'
        """
        counts = [f"{count:,} {KINDS.get(kind, kind)}" for kind, count in self.kinds.items()]
        counts = counts or [f"{len(self.negatives):,} negatives"]
        return " + ".join([f"{len(self.names):,} name{'s' * (len(self.names) != 1)}", *counts])

    @property
    def dim(self) -> int:
        """The width d of the vectors."""
        return self.id_anchors.shape[1]

    @cached_property
    def text_mean(self) -> Float[Tensor, " d"]:
        """The mean vector of all names, known and negative."""
        return (self.id_anchors.sum(0) + self.ood_anchors.sum(0)) / (len(self.names) + len(self.negatives))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that can move a score: names, vectors, prompt, encoder, manifest."""
        digest = hashlib.sha256(self._header().encode())
        for anchors in (self.id_anchors, self.ood_anchors):
            digest.update(anchors.float().cpu().numpy().tobytes())
        for part in self._example_tensors().values():
            digest.update(part.cpu().numpy().tobytes())
        return digest.hexdigest()

    def to(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> LabelSpace:
        """The same label space on another device or in another floating dtype."""
        move = {"device": device, "dtype": dtype}
        known, negative = (anchors.to(**move) for anchors in (self.id_anchors, self.ood_anchors))  # type: ignore[call-overload]
        examples, spared = (one and one.to(device=known.device) for one in (self.examples, self.spared))
        return replace(self, id_anchors=known, ood_anchors=negative, examples=examples, spared=spared)

    def check_vectors(self, width: int, encoder: str, what: str) -> None:
        """Refuse vectors of another encoder, by its fingerprint where it is known, or of another width."""
        own, remedy = self.manifest.get("encoder_fingerprint", ""), f"encode them with --encoder {self.encoder}"
        if encoder and own and encoder != own:
            raise EncoderError(
                f"expected {what} of the encoder of this label space, {self.encoder} ({own[:8]}), got those of another "
                f"({encoder[:8]}); {remedy}"
            )
        if width != self.dim:
            raise EncoderError(f"expected {what} of width {self.dim} as of this label space, got {width}; {remedy}")

    def with_negatives(self, count: int) -> LabelSpace:
        """The label space with only its first `count` negatives.

        >>> from unseen import demo
        >>> len(demo.load().space.with_negatives(10).negatives)
        10
        """
        return self.keeping(range(min(count, len(self.negatives))))

    def keeping(self, rows: Iterable[int]) -> LabelSpace:
        """The label space with only these of its negatives."""
        rows = list(rows)
        return replace(
            self,
            negatives=tuple(self.negatives[row] for row in rows),
            ood_anchors=self.ood_anchors[rows],
            origins=tuple(self.origins[row] for row in rows) if self.origins else (),
        )

    def adding(self, word: str, anchor: Float[Tensor, " d"], origin: Origin) -> LabelSpace:
        """The label space with one more negative."""
        return replace(
            self,
            negatives=(*self.negatives, word),
            ood_anchors=torch.cat([self.ood_anchors, anchor.unsqueeze(0)]),
            origins=(*self.origins, origin) if self.origins or not self.negatives else (),
        )

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, whole or not at all.

        >>> import tempfile
        >>> from unseen import demo
        >>> demo.load().space.save(file := Path(tempfile.mkdtemp()) / "space.safetensors")
        >>> LabelSpace.load(file).fingerprint == demo.load().space.fingerprint
        True
        """
        tensors = {"id_anchors": self.id_anchors.contiguous(), "ood_anchors": self.ood_anchors.contiguous()}
        save_tensors(path, tensors | self._example_tensors(), kind="label-space", header=self._header())

    @classmethod
    def load(cls, path: str | Path) -> LabelSpace:
        """Read what `save` wrote; a torn or altered file is refused.

        >>> import tempfile
        >>> from unseen import demo
        >>> demo.load().space.save(file := Path(tempfile.mkdtemp()) / "space.safetensors")
        >>> len(LabelSpace.load(file).negatives)
        2003
        """
        tensors, header = load_tensors(path, kind="label-space")
        fields = json.loads(header)
        names, negatives = tuple(fields.pop("names")), tuple(fields.pop("negatives"))
        if not all(isinstance(fields.get(name, ""), str) for name in ("prompt", "encoder")):
            raise LabelError(f"expected the prompt and the encoder as text in {path}, got others; save it again")
        for name, key in EXAMPLE_KEYS.items():
            if f"{key}_z" in tensors:
                fields[name] = Examples(tensors[f"{key}_z"], tensors[f"{key}_label"])
        fields["origins"] = tuple(Origin(*one) for one in fields.get("origins", ()))
        return cls(names, negatives, tensors["id_anchors"], tensors["ood_anchors"], **fields)

    def _example_tensors(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, key in EXAMPLE_KEYS.items():
            if (labelled := getattr(self, name)) is not None:
                found |= {f"{key}_z": labelled.z.contiguous(), f"{key}_label": labelled.label}
        return found

    def _header(self) -> str:
        fields = {
            "names": self.names,
            "negatives": self.negatives,
            "prompt": self.prompt,
            "encoder": self.encoder,
            "manifest": self.manifest,
        } | ({"origins": self.origins} if self.origins else {})
        return json.dumps(fields, sort_keys=True, ensure_ascii=False)

    def __repr__(self) -> str:
        return (
            f"LabelSpace({len(self.names)} names + {len(self.negatives)} negatives, d={self.dim}, "
            + (f"{len(self.examples)} examples, " if self.examples else "")
            + f"fingerprint {self.fingerprint[:8]})"
        )


def _unit_rows(which: str, anchors: Tensor, rows: int, width: int) -> Tensor:
    if anchors.shape != (rows, width):
        raise LabelError(
            f"expected {which} of shape [{rows}, {width}], one row per name, got {list(anchors.shape)}; "
            "encode the names again with one encoder"
        )
    if not anchors.is_floating_point():
        raise LabelError(f"expected floating-point {which}, got {anchors.dtype}; convert with .float()")
    anchors = anchors.detach().to(torch.promote_types(anchors.dtype, torch.float32))
    if not bool(anchors.isfinite().all()):
        raise LabelError(f"expected finite {which}, got NaN or infinity; check the encoder's output")
    norms = torch.linalg.vector_norm(anchors, dim=-1, keepdim=True)
    if bool(((norms - 1).abs() > UNIT_TOLERANCE).any()):
        worst = norms.flatten()[(norms.flatten() - 1).abs().argmax()]
        raise LabelError(
            f"expected unit rows in {which}, got a norm of {float(worst):.4g}; "
            "use torch.nn.functional.normalize(anchors, dim=-1)"
        )
    # rows that are unit to rounding stay as they are: else a saved space would load with another fingerprint
    is_exact = (norms - 1).abs() <= 8 * torch.finfo(anchors.dtype).eps
    return anchors / torch.where(is_exact, torch.ones_like(norms), norms)
