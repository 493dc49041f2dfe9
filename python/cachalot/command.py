"""The command `cachalot` of an installed package: starts the program that lies in the package."""

import os
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "bin" / "cachalot"


def main():
    """Replaces this process by the program, with the same arguments."""
    try:
        os.execv(PROGRAM, ["cachalot", *sys.argv[1:]])
    except OSError as error:
        print(f"cachalot: {PROGRAM}: {error.strerror}; expected the program that `pip install` puts there", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
