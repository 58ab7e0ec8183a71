"""Which code made a row: rows of other code are computed again."""

import hashlib
from functools import cache
from pathlib import Path

import unseen
import unseen_bench

# All of both packages decides the numbers of a row except these: callers, output, and what makes or reads the files
# whose fingerprint a row has. A new module counts until it is named here.
NOT_COUNTED = {
    *("cli", "scale", "serve", "report", "integrations", "__main__.py", "estimator.py", "keyed.py"),
    *("alarm.py", "demo", "encoders", "features", "images", "storage", "progress.py"),
    *("run", "errors.py", "version.py", "exhibits", "demo.py", "theory.py"),
}


@cache
def code_version() -> str:
    """The version of the package and a hash of the modules that decide numbers."""
    digests = (code_digest(Path(str(package.__file__)).parent) for package in (unseen, unseen_bench))
    return f"{unseen.__version__}+{''.join(digests)}"


def code_digest(root: Path) -> str:
    """Four digits of a hash of the modules below `root` that decide numbers."""
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        if file.relative_to(root).parts[0] not in NOT_COUNTED:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:4]
