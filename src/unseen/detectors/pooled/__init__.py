"""The recommended detector: frozen log-odds, corrected by what the stream shows; docs/method.md derives it.

Symbols, in docs/method.md and here: u the margin that similar images have (`predicted`), K and L the numbers of known
and negative names, T samples, d the width of features.

constants    every number, and where it comes from
names        what names look like in this stream
sides        the pool: a direction in image space along which margins change, and what it is worth
state        what is learned, and when
detector     all of it together
"""

from unseen.detectors.pooled.detector import PooledEvidence
from unseen.detectors.pooled.state import PooledState
