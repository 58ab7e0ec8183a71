"""A CLIP text tower with learnable contexts: rows of the token embedding that placeholders stand for.

Only contexts get gradients. The tower is called as it is; a hook on its token embedding puts the contexts in place of
the placeholder tokens, so that contexts equal to the embedding of literal words give the features of those words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils.checkpoint import checkpoint

from unseen.encoders.hub import HubEncoder
from unseen.errors import EncoderError, LabelError

PLACEHOLDER = "X"
CHUNK = 1024  # prompts per pass; with more, each pass is computed again for its gradient, which saves memory
DEVIATION = 0.02  # of random contexts, as CoOp draws them


class PromptTokens(NamedTuple):
    """Tokenised prompts `<context> <name>.`, whose first `length` tokens after the start are placeholders."""

    ids: Int[Tensor, "P S"]
    mask: Int[Tensor, "P S"]
    length: int

    def __getitem__(self, rows: Any) -> PromptTokens:  # type: ignore[override]
        """Some of the prompts."""
        return PromptTokens(self.ids[rows], self.mask[rows], self.length)


class PromptTower:
    """The frozen text tower of an encoder, and prompts with contexts through it."""

    def __init__(self, encoder: HubEncoder) -> None:
        if not hasattr(getattr(encoder, "model", None), "text_projection"):
            raise EncoderError(
                f"expected a CLIP model of transformers with a text tower to learn prompts, got {encoder.name}; "
                "use --encoder ViT-B/16, or a folder with one"
            )
        self.encoder, self.model = encoder, encoder.model
        self.model.requires_grad_(False)
        self.embedding: torch.nn.Embedding = self.model.text_model.embeddings.token_embedding

    @property
    def width(self) -> int:
        """The width of a context."""
        return self.embedding.embedding_dim

    def tokens(self, names: Sequence[str], words: str | int) -> PromptTokens:
        """The prompts of some names: `words` is a literal context, or how many tokens a learned one has."""
        context = words if isinstance(words, str) else " ".join([PLACEHOLDER] * words)
        own = self.encoder.tokenizer(context, add_special_tokens=False)["input_ids"]
        prompts = [f"{context} {name.replace('_', ' ')}." for name in names]
        found = self.encoder.tokenizer(prompts, padding=True, return_tensors="pt")
        ids, mask = (found[key].to(self.encoder.device) for key in ("input_ids", "attention_mask"))
        limit = self.model.config.text_config.max_position_embeddings
        if ids.shape[1] > limit:
            raise LabelError(
                f"expected prompts of at most {limit} tokens, got {ids.shape[1]} in {max(prompts, key=len)[:60]!r}; "
                "use shorter names, or a shorter context (LearnOptions)"
            )
        if ids[:, 1 : 1 + len(own)].tolist() != [own] * len(ids):
            raise EncoderError(f"expected a tokenizer that keeps {context!r} apart from names, got one that joins them")
        return PromptTokens(ids, mask, len(own))

    def random_contexts(self, *shape: int, generator: torch.Generator) -> Float[Tensor, "*G M D"]:
        """Random contexts."""
        found = DEVIATION * torch.randn(*shape, self.width, generator=generator)
        return found.to(self.embedding.weight.device)

    def features(self, prompts: PromptTokens, context: Float[Tensor, "*P M D"]) -> Float[Tensor, "P d"]:
        """Unit text features of prompts with one context for all, or one for each; gradients go to contexts."""
        context = context.expand(len(prompts.ids), -1, -1)
        chunks = torch.arange(len(prompts.ids)).split(CHUNK)
        if len(chunks) == 1:
            return self._features(prompts, context)
        parts = [checkpoint(self._features, prompts[rows], context[rows], use_reentrant=False) for rows in chunks]
        return torch.cat([part for part in parts if part is not None])

    def _features(self, prompts: PromptTokens, context: Float[Tensor, "P M D"]) -> Float[Tensor, "P d"]:
        with self._in_place(context, prompts.length):
            found = self.model.get_text_features(input_ids=prompts.ids, attention_mask=prompts.mask)
        vectors = found if isinstance(found, Tensor) else found.pooler_output
        return normalize(vectors.float(), dim=-1)

    @contextmanager
    def _in_place(self, context: Float[Tensor, "P M D"], length: int) -> Iterator[None]:
        def replace(module: Any, inputs: Any, output: Tensor) -> Tensor:
            return torch.cat([output[:, :1], context.to(output.dtype), output[:, 1 + length :]], dim=1)

        handle = self.embedding.register_forward_hook(replace)
        try:
            yield
        finally:
            handle.remove()
