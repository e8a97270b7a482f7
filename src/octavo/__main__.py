"""The command ``octavo``, and ``python -m octavo``: an interrupt while it is imported is a line."""

import signal
import sys

from octavo import interrupts


def main() -> int:
    """Import the command line and run it; an interrupt of the import is a code, too."""
    try:
        from octavo.cli import main as run

        code = run()
    except KeyboardInterrupt:
        code = interrupts.tell()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done and told
    return code


if __name__ == "__main__":
    sys.exit(main())
