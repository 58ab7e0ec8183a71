"""Panels in the help of commands with many options: options that belong together stand together."""

from typing import Any

import typer

VERDICTS = ("detector", "recall", "threshold", "calibrate", "rejudge", "alarm")
LEARNING = ("state", "learn", "again")
OUTPUT = ("report", "as_json", "as_csv", "help")
PANELS: dict[str, dict[str, tuple[str, ...]]] = {
    "detect": {
        "Names": ("labels", "label", "examples", "space", "negatives", "vocabulary"),
        "Verdicts": VERDICTS,
        "Learning": LEARNING,
        "Photos and encoder": (
            "encoder",
            "device",
            "precision",
            "runtime",
            "batch",
            "order",
            "features",
            "root",
            "stride",
        ),
        "Output": OUTPUT,
    },
    "score": {"Names": ("space",), "Verdicts": VERDICTS, "Learning": LEARNING, "Output": OUTPUT},
    "serve": {
        "Service": ("host", "port", "data", "demo", "encoder", "logs", "require_key"),
        "Streams": ("every", "retain", "threads", "group_minutes", "volatile"),
        "Limits": ("rate", "batch", "body"),
        "Output": OUTPUT,
    },
}


def arrange(name: str, command: Any) -> None:
    """Put the options of a command into its panels, in the order of the table."""
    panels = PANELS.get(name, {})
    places = {option: (at, panel) for at, (panel, names) in enumerate(panels.items()) for option in names}
    help_option = command.get_help_option(typer.Context(command)) if panels else None
    for parameter in [*command.params, *filter(None, [help_option])]:
        if found := places.get(parameter.name):
            parameter.rich_help_panel = found[1]
    command.params.sort(key=lambda parameter: places.get(parameter.name, (-1, ""))[0])
