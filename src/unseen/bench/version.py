"""Which code made a row: rows of other code are computed again."""

import hashlib
from functools import cache
from pathlib import Path

import unseen

# All of the package decides the numbers of a row except these: callers, output, and what makes or reads the files whose
# fingerprint a row has. A new module counts until it is named here.
NOT_COUNTED = {
    *("cli", "scale", "serve", "report", "integrations", "__main__.py", "estimator.py", "keyed.py", "partitions.py"),
    *("alarm.py", "demo", "encoders", "features", "images", "storage", "progress.py", "threads.py", "install.py"),
    *("bench", "errors.py", "version.py"),
}


@cache
def code_version() -> str:
    """Return the version of the package and a hash of the modules that decide numbers."""
    return f"{unseen.__version__}+{code_digest(Path(unseen.__file__).parent)}"


def code_digest(root: Path) -> str:
    """Return eight digits of a hash of the modules below `root` that decide numbers."""
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        if file.relative_to(root).parts[0] not in NOT_COUNTED:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:8]
