"""The recommended detector: frozen evidence, corrected by what the stream shows; docs/method.md derives it.

Symbols, in docs/method.md and here: f the evidence of the frozen text (`Evidence.value`), b its baseline, e the margin
before pooling (`margin`), u the margin that similar images have (`predicted`), K and L the numbers of known and
negative names, T samples, d the width of features.
"""

from unseen.detectors.pooled.detector import PooledEvidence
from unseen.detectors.pooled.evidence import TERMS, Contrast, EvidenceTerm, LogOdds, Surprise
from unseen.detectors.pooled.state import PooledState
