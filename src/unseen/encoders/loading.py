"""What goes wrong when transformers loads a model class, in words that help."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from unseen.errors import UnseenError


@contextmanager
def explained_imports() -> Iterator[None]:
    """Say what kept transformers from loading a class: it imports more when one is asked for, and hides the reason."""
    try:
        yield
    except UnseenError:
        raise
    except ImportError as error:
        reason = error.__cause__ or error
        raise UnseenError(
            f"expected transformers to load its models, got {type(reason).__name__}: {reason}; {_remedy(str(reason))}"
        ) from error


def _remedy(reason: str) -> str:
    if "torchvision" in reason:
        return (
            f"this torchvision was built for another torch than {torch.__version__}: remove it, as only the extra "
            "open-clip needs it (pip uninstall torchvision), or install the one that belongs to this torch"
        )
    return "install builds of transformers, and of what it imports, that fit the torch you have"
