"""Show the examples of docstrings as code: from `>>>` to the next empty line."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^ *>>> .*?(?=^ *$|\Z)", re.M | re.S)


class ExampleBlocks(griffe.Extension):
    """Put a fence around each example, so that it is not read as prose."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object that has been loaded."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(_fenced, obj.docstring.value)


def _fenced(found: re.Match[str]) -> str:
    lines = found[0].rstrip().splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    return "```pycon\n" + "\n".join(line[indent:] for line in lines) + "\n```\n"
