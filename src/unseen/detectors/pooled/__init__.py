"""The recommended detector: pool the frozen evidence of images that look alike. docs/method.md derives and measures it.

Symbols, in docs/method.md and here: f the evidence of an image by itself (`Evidence.value`), u what the pool predicts
for it (`predicted`), h its leverage, m the mean evidence so far (`level`), K and L the numbers of known and negative
names, T samples, d the width of features.
"""

from unseen.detectors.pooled.detector import PooledEvidence, PooledState
from unseen.detectors.pooled.evidence import TERMS, Contrast, EvidenceTerm, LogOdds, Surprise
