"""The command ``octavo``, and ``python -m octavo``: an interrupt while it is imported is a line."""

import sys

INTERRUPTED = 130


def main() -> int:
    """Import the command line and run it; an interrupt of the import is a code, too."""
    try:
        from octavo.cli import main as run

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("octavo: interrupted\n")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
