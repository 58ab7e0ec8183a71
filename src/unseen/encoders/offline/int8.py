"""CLIP's vision transformer with int8 products, for CPUs that have instructions for them (VNNI).

Weights have one scale per output channel. Activations are stored as bytes, with one scale and offset per input channel
that are folded into the layer norm before and the weights after. The channels' ranges differ a hundredfold; they were
measured once on photos (`tools/measure_ranges.py`), and most of the difference is moved into the weights. What goes
into the last product of a block differs as much from token to token, so there each token has a scale of its own.
Everything between the products stays as in `tower`; attention runs in bfloat16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn.functional import layer_norm

from unseen.encoders.offline.fetch import file_sha256
from unseen.encoders.offline.merging import Tokens
from unseen.encoders.offline.tower import EPSILON, Affine, Block, VisionTower, after_merges
from unseen.errors import EncoderError
from unseen.storage.files import read_safetensors

RANGES = Path(__file__).with_name("ranges.safetensors")
LAYERS = ("qkv", "out", "fc1", "fc2")
MOVED = 0.8  # power of a channel's range that is moved from activations into weights
LARGEST = 255


def is_available() -> bool:
    """Whether this CPU multiplies int8, and this torch offers it."""
    features: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    return features.get("avx512_vnni", False) and hasattr(torch.ops.onednn, "qlinear_pointwise")


def identity() -> str:
    """All that the vectors depend on besides the tower, for a fingerprint."""
    return f"int8 {file_sha256(RANGES)} moved {MOVED} fc2 by token"


@dataclass(frozen=True)
class Int8Linear:
    """A projection whose input is one byte per channel: `x = (byte - offset) / gain`."""

    packed: Tensor
    scale: Float[Tensor, " o"]
    bias: Float[Tensor, " o"]
    gain: Float[Tensor, " i"]
    offset: Float[Tensor, " i"]

    @classmethod
    def quantise(
        cls, layer: Affine, low: Float[Tensor, " i"], high: Float[Tensor, " i"], *, by_token: bool = False
    ) -> Int8Linear:
        """The projection in eight bits, for inputs between `low` and `high`, or for `project_by_token`."""
        weight, middle = layer.weight.float(), (low + high) / 2
        half = ((high - low) / 2).clamp(min=1e-3)
        step = half**MOVED / weight.abs().amax(0).clamp(min=1e-6) ** (1 - MOVED)
        step = step * (half / step).max() * 2 / LARGEST  # the widest channel uses all 256 values
        scaled = weight * step
        scale = scaled.abs().amax(1).clamp(min=1e-12) / 127
        values = (scaled / scale[:, None]).round().clamp(-127, 127).to(torch.int8)
        lowest = low if by_token else middle - LARGEST / 2 * step
        return cls(
            torch.ops.onednn.qlinear_prepack(values, None),
            scale,
            # with the rounded weights: their errors then meet x and not the far larger distance of x from `lowest`
            layer.bias.float() + (values.float() * scale[:, None]) @ (lowest / step),
            1 / step,
            0.5 - lowest / step,  # a byte is what is left of the point: half a step more rounds to the nearest
        )

    def encode(self, x: Float[Tensor, "*n i"]) -> UInt8[Tensor, "*n i"]:
        """An input as bytes."""
        return torch.addcmul(self.offset, x.float(), self.gain).clamp_(0, LARGEST).to(torch.uint8)

    def project_by_token(self, x: Float[Tensor, "*n i"]) -> Float[Tensor, "*n o"]:
        """`weight @ x + bias`; the bytes of each token have a scale of their own, so that no range cuts them."""
        raised = torch.addcmul(self.offset - 0.5, x.float(), self.gain)  # how far x is above its lowest, in steps
        step = raised.amax(-1, keepdim=True).clamp_(min=1e-3).div_(LARGEST)
        codes = raised.div_(step).add_(0.5).clamp_(min=0).to(torch.uint8)
        return torch.addcmul(self.bias, self._product(codes, None), step)

    def after(self, norm: Affine) -> Affine:
        """A layer norm that ends in bytes for this projection, but for rounding."""
        return Affine(norm.weight * self.gain, norm.bias * self.gain + self.offset)

    def project(
        self, codes: UInt8[Tensor, "*n i"], dtype: torch.dtype = torch.float32, activation: str = "none"
    ) -> Float[Tensor, "*n o"]:
        """`weight @ x + bias`, and its activation, in a floating dtype."""
        return self._product(codes, self.bias, dtype, activation)

    def _product(
        self, codes: Tensor, bias: Tensor | None, dtype: torch.dtype = torch.float32, activation: str = "none"
    ) -> Tensor:
        zeros = torch.zeros(len(self.scale), dtype=torch.long)
        arguments: list[Any] = [1.0] if activation == "swish" else []
        rows = torch.ops.onednn.qlinear_pointwise(
            codes.flatten(0, -2), 1.0, 0, self.packed, self.scale, zeros, bias,
            1.0, 0, dtype, activation, arguments, "",
        )  # fmt: skip
        return rows.unflatten(0, codes.shape[:-1])


@dataclass(frozen=True)
class Int8Block:
    """One transformer block with int8 products, made from a block in float32."""

    block: Block
    norm1: Affine
    qkv: Int8Linear
    out: Int8Linear
    norm2: Affine
    fc1: Int8Linear
    fc2: Int8Linear

    @classmethod
    def quantise(cls, block: Block, ranges: Mapping[str, Tensor]) -> Int8Block:
        """A block in eight bits; `ranges` has the lowest and highest input of every layer, `[2, i]`."""
        layers = {"qkv": _scaled_queries(block), "out": block.out, "fc1": block.fc1, "fc2": block.fc2}
        parts = {n: Int8Linear.quantise(one, *ranges[n], by_token=n == "fc2") for n, one in layers.items()}
        return cls(block, norm1=parts["qkv"].after(block.norm1), norm2=parts["fc1"].after(block.norm2), **parts)

    def tokens(self, tokens: Tokens, *, merges: int = 0) -> Tokens:
        """All tokens after this block, some of them merged before its second half."""
        query, key, value = self.qkv.project(_bytes(self.norm1, tokens.x), torch.bfloat16).chunk(3, dim=-1)
        mixed = tokens._replace(x=tokens.x + self._attend(query, key, value, tokens.log_size))
        return after_merges(mixed, key, self.block.heads, merges, self._mlp)

    def summary(self, tokens: Tokens) -> Float[Tensor, "n d"]:
        """The class token alone."""
        query, key, value = self.qkv.project(_bytes(self.norm1, tokens.x), torch.bfloat16).chunk(3, dim=-1)
        return self._mlp(tokens.x[:, :1] + self._attend(query[:, :1], key, value, tokens.log_size))[:, 0]

    def values(self, x: Float[Tensor, "n t d"]) -> Float[Tensor, "n t d"]:
        """Tokens that attend to themselves only, in float32."""
        return self.block.values(x)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, log_size: Float[Tensor, "n t"] | None) -> Tensor:
        heads = self.block.heads
        query, key, value = (_by_head(part, heads) for part in (query, key, value))
        # three plain products beat the fused kernel here: 197 tokens of 64 channels are too few for its tiles
        logits = torch.bmm(query, key.transpose(1, 2))
        if log_size is not None:
            logits += log_size.repeat_interleave(heads, dim=0)[:, None].to(logits.dtype)
        mixed = torch.bmm(logits.softmax(-1), value)
        joined = mixed.unflatten(0, (-1, heads)).transpose(1, 2).flatten(2)
        return self.out.project(self.out.encode(joined))

    def _mlp(self, x: Tensor) -> Tensor:
        hidden = self.fc1.project(_bytes(self.norm2, x), torch.bfloat16, "swish")
        return x + self.fc2.project_by_token(hidden)


def quantise_tower(tower: VisionTower, ranges: Mapping[str, Float[Tensor, "2 i"]]) -> VisionTower:
    """A float32 tower with its blocks in eight bits; ranges are called `block.layer`, such as `11.fc2`."""
    if not is_available():
        raise EncoderError(
            "expected a CPU with int8 instructions (avx512_vnni) and torch with oneDNN for precision int8, got none; "
            "leave --precision out"
        )
    parts = [{layer: ranges[f"{i}.{layer}"] for layer in LAYERS} for i in range(len(tower.blocks))]
    pairs = zip(tower.blocks, parts, strict=True)
    return replace(
        tower, blocks=tuple(Int8Block.quantise(block, part) for block, part in pairs if isinstance(block, Block))
    )


def load_ranges(path: Path = RANGES) -> dict[str, Tensor]:
    """The ranges that `tools/measure_ranges.py` wrote."""
    return {name: tensor.float() for name, tensor in read_safetensors(path)[0].items()}


def _bytes(norm: Affine, x: Tensor) -> UInt8[Tensor, "*n d"]:
    return layer_norm(x, x.shape[-1:], norm.weight, norm.bias, EPSILON).clamp_(0, LARGEST).to(torch.uint8)


def _by_head(part: Tensor, heads: int) -> Tensor:
    return part.unflatten(-1, (heads, -1)).transpose(1, 2).flatten(0, 1)


def _scaled_queries(block: Block) -> Affine:
    """Query, key and value with attention's factor in the rows of the query."""
    width = block.qkv.weight.shape[1]
    factor = torch.ones(3 * width)
    factor[:width] = (width // block.heads) ** -0.5
    return Affine(block.qkv.weight * factor[:, None], block.qkv.bias * factor)
