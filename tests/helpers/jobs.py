"""Jobs of experiments that another process can import."""

import os
from typing import Any


def square(number: int) -> dict[str, Any]:
    """The square and the process that computed it."""
    return {"square": number**2, "process": os.getpid()}
