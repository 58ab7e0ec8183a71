"""The command line, from the first moment on: Ctrl-C ends it quietly, even while torch is being imported."""

import signal


def main() -> None:
    """Run the command line."""
    # imports in C swallow a KeyboardInterrupt and leave half a module behind: until they are done, Ctrl-C just ends
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from unseen.cli import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
