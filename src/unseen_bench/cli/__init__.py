"""The commands of the laboratory."""

from unseen_bench.cli.commands import join
