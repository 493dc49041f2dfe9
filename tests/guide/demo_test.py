"""Runs what `make demo` prints as the next command.

usage: demo_test.py ROOT BUILD
"""

import re
import subprocess
import sys
from pathlib import Path

from pages_test import Page


def main():
    root, build = (Path(word).resolve() for word in sys.argv[1:3])
    recipe = subprocess.run(["make", "--dry-run", "--no-print-directory", "demo"], cwd=root, capture_output=True, text=True, check=True).stdout
    printed = recipe[recipe.index("printf"):]
    said = subprocess.run(["sh", "-c", printed], capture_output=True, text=True, check=True).stdout
    commands = re.findall(r"^  (.*)$", said, re.MULTILINE)
    page = Page(root, build, "Makefile")
    try:
        problem = page.shell("\n".join(commands))
    finally:
        page.close()
    print(said, problem)
    return 1 if problem or len(commands) != 2 else 0


if __name__ == "__main__":
    sys.exit(main())
