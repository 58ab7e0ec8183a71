"""The numeric core: one recurrence (Eq. 7, 8, 12-14) behind one signature.

    scan(bank, anchors, z, step, *, kappa, tau, targets=None) -> Scan

`naive` is the equations, one sample at a time; `blocked` gives the same numbers from a few matrix products per block.
The derivation is in README.md beside this file.
"""

from unseen.scan.base import Scan
from unseen.scan.blocked import scan

__all__ = ["Scan", "scan"]
