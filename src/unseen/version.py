"""The version of this package: in `--version`, reports, states and results."""

__version__ = "0.2.0"
