"""The numeric core: one recurrence (Eq. 7, 8, 12-14) behind one signature.

    scan(bank, teacher, z, step, *, kappa, tau) -> Scan

`teacher` holds logits whose softmax each teaching sample pulls the bank towards: the frozen text's, which the gate has
computed anyway, or the log of anyone's own soft targets. `step == 0` reads and does not learn.
`naive` is the equations, one sample at a time; `blocked` gives the same numbers from a few matrix products per block.
The derivation is in README.md beside this file.
"""

from unseen.scan.base import Scan
from unseen.scan.blocked import scan

__all__ = ["Scan", "scan"]
