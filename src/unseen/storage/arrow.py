"""pyarrow, an optional dependency, imported by those who need it."""

import importlib
from typing import Any

from unseen.errors import MissingExtra


def import_pyarrow(module: str = "") -> Any:
    """Return pyarrow or one of its modules, or say what to install."""
    try:
        return importlib.import_module(f"pyarrow.{module}" if module else "pyarrow")
    except ImportError as error:
        raise MissingExtra("pyarrow", "ray") from error
