"""Results as people read them: one HTML file that needs nothing beside it, from templates over a table of verdicts."""

import base64
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader


def render(template: str, **values: Any) -> str:
    """A template with its values in place; text is escaped."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    made = Environment(loader=PackageLoader("unseen.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    made.filters["number"] = format
    made.filters["base64"] = lambda data: base64.b64encode(data).decode()
    return made
