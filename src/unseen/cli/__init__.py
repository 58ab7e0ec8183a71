"""The command line: one file per command, each a thin call into one module of the library.

A command is imported when it is called: the list of commands needs the first line of each only, and no torch.
"""

import ast
import importlib
import pkgutil
import signal
import sys
import tempfile
import traceback
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import unseen
from unseen.cli import options, panels, terminal
from unseen.errors import DataError, UnseenError

COMMAND_PANELS = {
    "Judge photos": ("demo", "detect", "calibrate", "models"),
    "From unknown to known": ("explain", "group", "promote", "rename", "retire", "dismiss", "undo", "review"),
    "Names and features": ("mine", "learn", "encode", "score", "gap", "export"),
    "Serve": ("serve", "keys", "backup", "restore"),
    "Benchmarks": ("bench",),
}  # as they are listed; unseen.cli.NAME holds the function or the group NAME
COMMANDS = tuple(name for names in COMMAND_PANELS.values() for name in names)
EXTENDED = {"score": ("streams",), "bench": ("compare", "paper")}  # also `unseen bench compare`: bench_compare.py
GROUPS = ("models", "keys")
LABORATORY = ("demo", "bench", "gap", "learn")  # what knows the truth of a stream stands in unseen_bench
MARKUP: Any = "markdown"


class LazyGroup(TyperGroup):
    """The group of all commands: lists them by their first line, and imports the one that is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for panel, names in COMMAND_PANELS.items():
            self.commands.update((name, TyperCommand(name, rich_help_panel=panel)) for name in names)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command with its first line alone, which is what a list of commands shows."""
        command = self.commands.get(cmd_name)
        if command:
            command.help = first_line(cmd_name)
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run the command; Ctrl-C ends it with one word, and the exit code that shells give."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            terminal.err.print("stopped")
            raise typer.Exit(terminal.STOPPED) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the first word names, imported, and the other words."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and load_command(str(name)), rest


def first_line(name: str) -> str:
    """The first line of a command's help, or of the file of a group, without importing it."""
    file = ast.parse(pkgutil.get_data(_home(name), f"{name}.py") or b"")
    functions = [node for node in file.body if isinstance(node, ast.FunctionDef) and node.name == name]
    return (ast.get_docstring(functions[0] if functions else file) or "").partition("\n")[0]


def load_command(name: str) -> Any:
    """A command with its options and subcommands, imported."""
    part = typer.Typer(rich_markup_mode=MARKUP)
    if name in EXTENDED:
        part.add_typer(_command_group(name, EXTENDED[name]), name=name, help=_find(name, name).__doc__)
    elif name in GROUPS:
        part.add_typer(_find(name, name), name=name)
    else:
        part.command(name)(_find(name, name))
    _catch_interrupts()
    command = typer.main.get_group(part).commands[name]
    panels.arrange(name, command.commands[name] if isinstance(command, TyperGroup) and name in EXTENDED else command)
    return command


def _command_group(name: str, others: tuple[str, ...]) -> typer.Typer:
    """A command that takes any words, and further commands under its name."""
    group = options.default_group()
    group.command(name)(_find(name, name))
    for other in others:
        module = other if name in LABORATORY else f"{name}_{other}"
        group.command(other)(_find(module, other, package=_home(name)))
    return group


def _home(name: str) -> str:
    return "unseen_bench.cli" if name in LABORATORY else "unseen.cli"


def _find(module: str, name: str, package: str | None = None) -> Any:
    return getattr(importlib.import_module(f"{package or _home(name)}.{module}"), name)


def _catch_interrupts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, now that the imports are done (see `unseen.__main__`)."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


app = typer.Typer(
    cls=LazyGroup,
    help="Know which images belong to none of your classes. No training, no labels.\n\n"
    "Start with: `unseen demo`, then `unseen detect photos/ --label cat --label dog`",
    epilog="Exit codes: 0 done, 1 some input was skipped, or the run was stopped and what was done is kept, 2 misuse, "
    "130 stopped before.",
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    """Know which images belong to none of your classes. No training, no labels."""
    if version:
        typer.echo(f"unseen {unseen.__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; an error raised on purpose, or by a file, ends in one sentence and exit code 2."""
    warnings.filterwarnings("ignore", module="PIL")  # of odd images, whose verdict or reason says enough
    try:
        app()
    except UnseenError as error:
        terminal.fail(error)
        sys.exit(terminal.MISUSE)
    except OSError as error:
        terminal.fail(file_error(error))
        sys.exit(terminal.MISUSE)
    except MemoryError:
        terminal.fail(DataError("expected enough memory, got too little; use a smaller --batch or --negatives"))
        sys.exit(terminal.MISUSE)
    except Exception as error:
        terminal.fail(defect(error))
        sys.exit(terminal.MISUSE)


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
