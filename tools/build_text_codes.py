"""Build the codes of the offline text tower's corpus vectors (src/unseen/encoders/offline/codes.safetensors).

    python tools/build_text_codes.py         # encodes every word of WordNet once: ten CPU minutes, kept in the cache

Prints the manifest that the file carries: which text tower and corpus, how many words, how large, how near. The words
are those of the corpus in the package (src/unseen/labels/vocabulary.txt.gz, WordNet's licence beside it); the file
holds a hash of each and a code of its vector, no text.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float, Int, UInt8
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import normalize

from unseen.encoders.offline import encoder as offline
from unseen.encoders.offline.codes import CODES, TextCodes, hash_names
from unseen.encoders.offline.fetch import file_sha256
from unseen.labels.corpus import wordnet
from unseen.labels.prompts import NICE, NICE_ADJECTIVE
from unseen.labels.vectors import CorpusPrompts, chunk_corpus, encode_rows

WIDTH, CENTROIDS, ROUNDS, SAMPLE = 4, 256, 20, 40_000


def read_words(cache: Path | None) -> tuple[list[str], Float[Tensor, "n d"], str]:
    """The distinct words of WordNet in lower case, their exact vectors, and the tower's fingerprint."""
    offline.fetch()
    encoder = offline.OfflineEncoder()
    chunks = chunk_corpus(wordnet(), encoder, CorpusPrompts(NICE, NICE_ADJECTIVE), cache=cache)
    encode_rows(chunks, [list(range(len(chunk.words))) for chunk in chunks], encoder, progress=_print_progress)
    vectors = torch.cat([chunk.read() for chunk in chunks])
    places = {word.lower(): i for i, word in enumerate(word for chunk in chunks for word in chunk.words)}
    return (
        list(places),
        normalize(vectors[torch.tensor(list(places.values()))].float(), dim=-1),
        encoder.text_fingerprint,
    )


def _print_progress(done: int, total: int) -> None:
    print(f"\r{done:,} of {total:,} words", end="", flush=True)


def cosine_metric(vectors: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "d d"], Float[Tensor, "d d"]]:
    """A matrix, and its inverse, after which a squared distance is the mean squared error of cosines to texts.

    E (a . e)^2 over text vectors a is e^T E[a a^T] e, so the matrix is the square root of E[a a^T].
    """
    values, axes = torch.linalg.eigh((vectors.T @ vectors).double() / len(vectors))
    roots = values.clamp(min=1e-9).sqrt()
    return ((axes * roots) @ axes.T).float(), ((axes / roots) @ axes.T).float()


def principal_axes(centred: Float[Tensor, "n d"], parts: int) -> Float[Tensor, "d parts*width"]:
    """The leading axes, dealt out so that the parts have like products of variances."""
    values, axes = torch.linalg.eigh((centred.T @ centred).double() / len(centred))
    variance, axes = values.flip(0)[: parts * WIDTH], axes.flip(1)[:, : parts * WIDTH].float()
    return axes[:, deal_out(variance.log(), parts)]


def deal_out(weights: Float[Tensor, " m"], parts: int) -> Int[Tensor, " m"]:
    """The indices of descending weights, grouped by part: each goes to the part with the smallest sum so far."""
    members: list[list[int]] = [[] for _ in range(parts)]
    totals = [0.0] * parts
    low = float(weights.min())
    for index, weight in enumerate((weights - low).tolist()):
        free = [part for part in range(parts) if len(members[part]) < WIDTH]
        part = min(free, key=lambda p: totals[p])
        members[part].append(index)
        totals[part] += weight
    return torch.tensor([index for part in members for index in part])


def fit_centroids(rows: Float[Tensor, "n width"], generator: torch.Generator) -> Float[Tensor, "256 width"]:
    """The centroids of k-means; one that loses its rows starts again at a random row."""
    rows = rows[torch.randperm(len(rows), generator=generator)[:SAMPLE]]
    centroids = rows[:CENTROIDS].clone()
    for _ in range(ROUNDS):
        nearest = assign(rows, centroids)
        counts = torch.bincount(nearest, minlength=CENTROIDS)
        sums = torch.zeros_like(centroids).index_add_(0, nearest, rows)
        fresh = rows[torch.randint(len(rows), (CENTROIDS,), generator=generator)]
        centroids = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], fresh)
    return centroids


def assign(rows: Float[Tensor, "n width"], centroids: Float[Tensor, "256 width"]) -> Int[Tensor, " n"]:
    """The nearest centroid of each row."""
    half = centroids.square().sum(1) / 2
    return torch.cat([(part @ centroids.T - half).argmax(1) for part in rows.split(8192)])


def quantise(
    vectors: Float[Tensor, "n d"], parts: int
) -> tuple[Float[Tensor, " d"], Float[Tensor, "m d"], Float[Tensor, "parts 256 width"], UInt8[Tensor, "n parts"]]:
    """Mean, basis, centroids and codes of unit vectors."""
    generator = torch.Generator().manual_seed(0)
    mean = vectors.mean(0).half().float()
    metric, inverse = cosine_metric(vectors)
    weighted = (vectors - mean) @ metric
    axes = principal_axes(weighted, parts)
    rotated = (weighted @ axes).unflatten(1, (parts, WIDTH))
    centroids = torch.stack([fit_centroids(rotated[:, part], generator) for part in range(parts)])
    codes = torch.stack([assign(rotated[:, part], centroids[part]) for part in range(parts)], 1)
    return mean, (axes.T @ inverse).half().float(), centroids.half().float(), codes.to(torch.uint8)


def cosine_errors(
    found: TextCodes, codes: UInt8[Tensor, "n parts"], vectors: Float[Tensor, "n d"]
) -> tuple[float, float]:
    """The root mean square and the largest error of cosines to 1,000 words."""
    texts = vectors[:: max(len(vectors) // 1000, 1)].T
    pairs = zip(codes.split(4096), vectors.split(4096), strict=True)
    squares, largest = 0.0, 0.0
    for part, exact in pairs:
        errors = (found.decode(part) - exact) @ texts
        squares, largest = squares + float(errors.square().sum()), max(largest, float(errors.abs().max()))
    return round((squares / (len(vectors) * texts.shape[1])) ** 0.5, 5), round(largest, 4)


def find_salt(names: Sequence[str]) -> int:
    """The first salt with which no two names have the same hash."""
    return next(salt for salt in range(1000) if len(set(hash_names(names, salt=salt).tolist())) == len(names))


def build(names: Sequence[str], vectors: Float[Tensor, "n d"], fingerprint: str, parts: int) -> TextCodes:
    """The codes of names, with a manifest that says how far they are from the exact vectors."""
    mean, basis, centroids, codes = quantise(vectors, parts)
    salt = find_salt(names)
    hashes = torch.from_numpy(hash_names(names, salt=salt))
    order = hashes.argsort()
    found = TextCodes(hashes[order], codes[order], centroids, basis, mean, {})
    rms, largest = cosine_errors(found, codes, vectors)
    manifest = {
        "text_fingerprint": fingerprint,
        "corpus": wordnet().name,
        "corpus_sha256": wordnet().fingerprint,
        "words": len(names),
        "bytes_per_word": parts,
        "salt": salt,
        "cosine_error": rms,
        "largest_cosine_error": largest,
    }
    return TextCodes(found.hashes, found.codes, centroids, basis, mean, manifest)


def save(codes: TextCodes, path: Path) -> None:
    """Write the codes, what is not a code in half precision; the manifest travels in the metadata."""
    halves = {name: getattr(codes, name).half().contiguous() for name in ("centroids", "basis", "mean")}
    tensors = {"hashes": codes.hashes, "codes": codes.codes.contiguous(), **halves}
    save_file(tensors, path, metadata={"manifest": json.dumps(codes.manifest)})


def main() -> None:
    """Read the words, fit, write, and print the manifest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=80, help="of a word's code: one for every four dimensions kept")
    parser.add_argument("--cache", type=Path, help="where exact vectors are kept")
    parser.add_argument("-o", "--output", type=Path, default=CODES)
    arguments = parser.parse_args()
    codes = build(*read_words(arguments.cache), arguments.bytes)
    save(codes, arguments.output)
    size = arguments.output.stat().st_size
    print(json.dumps(codes.manifest | {"file_bytes": size, "sha256": file_sha256(arguments.output)}, indent=1))


if __name__ == "__main__":
    main()
