"""The command line, from the first moment on: Ctrl-C ends it quietly, even while torch is being imported."""

import signal
import sys


def main() -> None:
    """Run the command line."""
    if sys.argv[1:] == ["--version"]:
        from unseen import __version__

        print(f"unseen {__version__}")
        return
    # imports in C swallow a KeyboardInterrupt and leave half a module behind: until they are done, Ctrl-C just ends
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from unseen.cli import main as run

    run()


if __name__ == "__main__":
    main()
