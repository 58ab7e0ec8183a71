"""The command line: one file per topic, each command a thin call into one module of the library.

Nothing heavy is imported before a command runs: every `--help` comes without torch.
"""

import importlib
import importlib.util
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import unseen
from unseen.cli import agent, detect, discover, edit, encode, mine, models, output, score, serve, watch
from unseen.errors import DataError, UnseenError

LABORATORY = "unseen_bench.cli"  # what knows the truth of a stream; its commands join where it is installed
PANELS: Mapping[str, tuple[Callable[..., None], ...]] = {
    "Judge photos": (detect.detect, watch.watch, score.calibrate, models.models),
    "From unknown to known": (discover.explain, discover.group, edit.edit, discover.review),
    "Names and features": (mine.mine, encode.encode, score.score),
    "Serve": (serve.serve, agent.mcp, serve.keys, serve.backup, serve.restore),
}  # as they are listed; a command is called like its function


class Commands(TyperGroup):
    """The group of all commands; Ctrl-C ends one with one word, and the exit code that shells give."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the first word names; a verb of `edit` names that, and stays its first word."""
        return super().resolve_command(ctx, ["edit", *args] if args[0] in edit.VERBS else args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            output.say("stopped")
            raise typer.Exit(output.STOPPED) from None


app = typer.Typer(
    cls=Commands,
    help="Know which images belong to none of your classes. No training, no labels.\n\n"
    "Start with: `unseen demo`, then `unseen detect photos/ --label cat --label dog`",
    epilog="Exit codes: 0 done, 1 some input was skipped, or the run was stopped and what was done is kept, 2 misuse, "
    "130 stopped before.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    """Know which images belong to none of your classes. No training, no labels."""
    if version:
        typer.echo(f"unseen {unseen.__version__}")
        raise typer.Exit


if importlib.util.find_spec(LABORATORY.partition(".")[0]):
    importlib.import_module(LABORATORY).join(app)
for panel, functions in PANELS.items():
    for function in functions:
        app.command(rich_help_panel=panel)(function)


def main() -> None:
    """Run the command line; an error raised on purpose, or by a file, ends in one sentence and exit code 2."""
    warnings.filterwarnings("ignore", module="PIL")  # of odd images, whose verdict or reason says enough
    try:
        app()
    except UnseenError as error:
        output.fail(error)
    except OSError as error:
        output.fail(file_error(error))
    except MemoryError:
        output.fail(DataError("expected enough memory, got too little; use a smaller --batch, or fewer negatives"))
    except Exception as error:
        output.fail(defect(error))
    sys.exit(output.MISUSE)


def defect(error: Exception) -> UnseenError:
    """An unexpected error as one sentence; its traceback is written to a file."""
    with tempfile.NamedTemporaryFile("w", prefix="unseen-", suffix=".txt", delete=False, encoding="utf-8") as file:
        file.write(f"unseen {unseen.__version__}\n{' '.join(sys.argv)}\n{''.join(traceback.format_exception(error))}")
    return UnseenError(
        f"expected no error here, got {type(error).__name__}: {' '.join(str(error).split())[:200]}; "
        f"this is a defect of unseen: report it with {file.name}"
    )


def file_error(error: OSError) -> UnseenError:
    """An error of the system about a file or a connection as an error of this package.

    >>> print(file_error(PermissionError(13, "Permission denied", "/etc/state")))
    expected files that can be read and written, got: Permission denied (/etc/state); check permissions and free space
    """
    where = f" ({error.filename})" if error.filename else ""
    return DataError(
        f"expected files that can be read and written, got: {error.strerror or error}{where}; "
        "check permissions and free space"
    )
