"""Turn a name into text vectors: one template, or several averaged before normalising."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from unseen.errors import LabelError


class TextEncoder(Protocol):
    """What labels need of an encoder: texts in, unit vectors out, and an identity."""

    @property
    def name(self) -> str:
        """What people call the encoder."""

    @property
    def fingerprint(self) -> str:
        """A hash that changes when its vectors do."""

    @property
    def dim(self) -> int:
        """The width of its vectors."""

    def texts(self, prompts: Sequence[str]) -> Float[Tensor, "n d"]:
        """One unit vector per text."""


def text_fingerprint(encoder: TextEncoder) -> str:
    """A hash that changes when the encoder's text vectors do, even where its image space stays the same."""
    return str(getattr(encoder, "text_fingerprint", encoder.fingerprint))


class Prompt(Protocol):
    """A way to turn names into text vectors."""

    @property
    def description(self) -> str:
        """What manifests call it; two prompts that differ have different descriptions."""

    def encode(self, names: Sequence[str], encoder: TextEncoder) -> Float[Tensor, "n d"]:
        """One unit vector per name."""


class WordedPrompt(Prompt, Protocol):
    """A prompt that puts a name into words: any word of a corpus can go through it."""

    def texts(self, name: str) -> list[str]:
        """The texts whose vectors are averaged."""


@dataclass(frozen=True)
class PromptTemplates:
    """One or more templates with one `{}` each; vectors are averaged over templates, then normalised.

    `raw` averages the encoder's vectors before they are made unit (CSP); encoders that have no raw ones give unit ones.
    """

    templates: tuple[str, ...]
    raw: bool = False

    def __post_init__(self) -> None:
        """Refuse templates that would lose the name."""
        for template in self.templates or ("",):
            if template.count("{}") != 1 or template.count("{") != 1 or template.count("}") != 1:
                raise LabelError(f"expected a template with one {{}}, got {template!r}; write e.g. 'The nice {{}}.'")

    @property
    def description(self) -> str:
        """The templates, joined."""
        return " | ".join(self.templates) + (" | raw vectors averaged" if self.raw else "")

    def texts(self, name: str) -> list[str]:
        """The name in every template; underscores in class names are spaces.

        >>> PromptTemplates(("The nice {}.",)).texts("sports_car")
        ['The nice sports car.']
        """
        return [template.replace("{}", name.replace("_", " ")) for template in self.templates]

    def encode(self, names: Sequence[str], encoder: TextEncoder) -> Float[Tensor, "n d"]:
        """The normalised mean vector of each name over the templates."""
        return encode_groups([self.texts(name) for name in names], encoder, raw=self.raw)


@dataclass(frozen=True)
class AdjectiveNounTemplates:
    """CSP's prompts for adjectives: each is joined to one of several nouns, then put into templates."""

    nouns: tuple[str, ...]
    templates: PromptTemplates

    @property
    def description(self) -> str:
        """Nouns and templates, joined."""
        return f"{self.templates.description} with {' '.join(self.nouns)}"

    def texts(self, name: str) -> list[str]:
        """'<adjective> <noun>' in every template."""
        return self.templates.texts(f"{name} {self._noun(name)}")

    def encode(self, names: Sequence[str], encoder: TextEncoder) -> Float[Tensor, "n d"]:
        """The vector of '<adjective> <noun>' for each adjective."""
        return self.templates.encode([f"{name} {self._noun(name)}" for name in names], encoder)

    def _noun(self, name: str) -> str:
        # a hash, not a random stream: the choice for a word must not depend on which words came before it
        return self.nouns[int(hashlib.sha256(name.encode()).hexdigest(), 16) % len(self.nouns)]


NICE = PromptTemplates(("The nice {}.",))  # AdaNeg, TANL and the online paper
NICE_ADJECTIVE = PromptTemplates(("This is a {} photo.",))
NEGLABEL = PromptTemplates(("the nice {}",))  # a full stop is a token, and NegLabel and DNM have none
NEGLABEL_ADJECTIVE = PromptTemplates(("This is a {} photo",))
PHOTO = PromptTemplates(("a photo of a {}",))  # MCM, GL-MCM and CLIPScope
PHOTO_OF = PromptTemplates(("a photo of {}",))  # CLIPScope's farthest nouns
CSP = PromptTemplates(
    (
        "a close-up photo of the nice {}.",
        "a photo with the nice {}.",
        "a good photo with the nice {}.",
        "a photo of the nice {}.",
        "{}",
        "the {}",
        "the good {}",
        "the nice {}",
    ),
    raw=True,
)
SUPERCLASSES = "environment space object scene place item area view thing pattern structure landscape vista creature"
CSP_ADJECTIVES = AdjectiveNounTemplates(
    tuple(SUPERCLASSES.split()),
    PromptTemplates(("{}", "a nice photo of {}", "a good photo of {}", "a close-up photo of {}"), raw=True),
)
PROMPTS: dict[str, Prompt] = {"nice": NICE, "neglabel": NEGLABEL, "photo": PHOTO, "csp": CSP}


def as_prompt(prompt: str | Sequence[str] | Prompt) -> Prompt:
    """A prompt from a name in PROMPTS, a template, several templates, or a prompt."""
    if isinstance(prompt, str):
        return PROMPTS.get(prompt) or PromptTemplates((prompt,))
    if isinstance(prompt, Sequence):
        return PromptTemplates(tuple(prompt))
    return prompt


def described_templates(description: str) -> PromptTemplates:
    """The templates that the prompt of a label space describes; the usual one where it describes none."""
    templates = tuple(part for part in description.split(" | ") if part.count("{}") == 1)
    return PromptTemplates(templates) if templates else NICE


def encode_groups(groups: Sequence[Sequence[str]], encoder: TextEncoder, *, raw: bool = False) -> Float[Tensor, "n d"]:
    """The normalised mean vector of each group of equally many texts, through one call of the encoder."""
    if not groups:
        return torch.empty(0, encoder.dim)
    encode = getattr(encoder, "raw_texts", encoder.texts) if raw else encoder.texts
    vectors = encode([text for group in groups for text in group]).float()
    return normalize(vectors.view(len(groups), -1, vectors.shape[-1]).mean(1), dim=-1)
