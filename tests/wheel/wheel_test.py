"""The wheels of `make wheel` in roots that have Python and pip, and no compiler. Needs root and mmdebstrap.

usage: wheel_test.py WHEELS FOLDER SUITE ...    e.g. build/wheels build/wheel-roots bookworm trixie

Each suite of Debian becomes FOLDER/SUITE once. The wheel is installed there without a package index, then installed.py runs.
"""

import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MOST_BYTES = 25_000_000


def root_of(suite, folder):
    root = folder / suite
    if not (root / "usr/bin/python3").exists():
        print(f"{suite}: making {root}")
        subprocess.run(["mmdebstrap", "--quiet", "--variant=apt", "--include=python3,python3-venv,python3-pip", suite, root],
                       check=True)
    return root


def inside(root, command):
    """Runs it in the root, with a /proc and a /dev/shm that end with it."""
    mounts = f"mount -t proc proc '{root}/proc' && mount -t tmpfs shm '{root}/dev/shm' && exec chroot '{root}' sh -e -c '{command}'"
    begin = time.monotonic()
    subprocess.run(["unshare", "--mount", "--pid", "--fork", "sh", "-e", "-c", mounts], check=True)
    return time.monotonic() - begin


def check(root, wheels):
    shutil.rmtree(root / "try", ignore_errors=True)
    (root / "try").mkdir()
    shutil.copy(HERE / "installed.py", root / "try")
    for wheel in wheels:
        shutil.copy(wheel, root / "try")
    (root / "dev/shm").mkdir(exist_ok=True)
    inside(root, "python3 -m venv /try/venv")
    seconds = inside(root, "/try/venv/bin/pip install --quiet --no-index --find-links /try cachalot-kv")
    print(f"pip install: {seconds:.1f} s")
    inside(root, "/try/venv/bin/python /try/installed.py")


def main():
    wheels = sorted(Path(sys.argv[1]).glob("*.whl"))
    assert wheels, f"{sys.argv[1]}: no wheel, expected what `make wheel` builds"
    for wheel in wheels:
        size = wheel.stat().st_size
        print(f"{wheel.name}: {size / 1e6:.1f} MB")
        assert size <= MOST_BYTES, f"{wheel.name}: {size} bytes, expected at most {MOST_BYTES}"
        assert "manylinux_2_28_" + platform.machine() in wheel.name, wheel.name
    folder = Path(sys.argv[2]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for suite in sys.argv[3:]:
        print(f"== {suite}")
        check(root_of(suite, folder), wheels)


if __name__ == "__main__":
    main()
