"""Algorithm 1 of the paper as it is printed, label-free, one sample after another, in NumPy: read it beside the text.

python examples/algorithm1.py
"""

from collections.abc import Iterable, Iterator

import numpy as np

from unseen import demo

Array = np.ndarray


def softmax(logits: Array) -> Array:
    """The probabilities of logits."""
    shifted = np.exp(logits - logits.max())
    return shifted / shifted.sum()


def updated(w: Array, r: Array, z: Array, step: float, *, kappa: float, tau: float) -> Array:
    """The bank after one step on Eq. 7, whose targets are the frozen text's, and back on the sphere (Eq. 8)."""
    gradient = np.outer(softmax(w @ z / kappa) - softmax(r @ z / tau), z) / kappa
    w = w - step * gradient
    return w / np.linalg.norm(w, axis=1, keepdims=True)


def share(known: Array, negative: Array, z: Array, tau: float) -> float:
    """The probability mass of the known rows among all (Eq. 3 with text, Eq. 14 with prototypes)."""
    return float(softmax(np.concatenate([known, negative]) @ z / tau)[: len(known)].sum())


def algorithm1(
    samples: Iterable[Array], r: Array, r_neg: Array, tau: float = 0.01, kappa: float = 0.05, rho: float = 0.1,
    beta: float = 0.95,
) -> Iterator[float]:  # fmt: skip
    """The score of each sample as it arrives: `r` is the text of the known names, `r_neg` of the negatives."""
    positives = negatives = 0
    w, w_neg = r, r_neg  # Eq. 15
    for z in samples:
        trust = share(r, r_neg, z, tau)  # S_NegLabel, by the frozen text
        if trust >= beta:  # Eq. 10
            positives += 1  # Eq. 11
            w = updated(w, r, z, rho / positives**0.5, kappa=kappa, tau=tau)  # Eq. 12
        elif trust <= 1 - beta:
            negatives += 1
            w_neg = updated(w_neg, r_neg, z, rho / negatives**0.5, kappa=kappa, tau=tau)  # Eq. 13
        yield share(w, w_neg, z, tau)  # Eq. 14


if __name__ == "__main__":
    pack = demo.load().shuffled(seed=0)
    text = pack.space.id_anchors.double().numpy(), pack.space.ood_anchors.double().numpy()
    scores = list(algorithm1(pack.z.double().numpy(), *text))
    for key, score in list(zip(pack.keys, scores, strict=True))[-10:]:
        print(f"{key:<20} {score:.1e}")
