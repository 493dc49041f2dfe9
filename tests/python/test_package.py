"""The package: its types, its version, and the examples."""

import ast
import contextlib
import pydoc
import re
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

import cachalot
from conftest import pool_path

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples/python").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example):
    assert len(example.read_text().splitlines()) <= 60
    pool, keeper = pool_path(), contextlib.nullcontext()
    if "cachalot serve" in example.read_text():
        keeper = cachalot.EmbeddedKeeper(pool=pool, block_bytes=32 << 10, capacity_blocks=256)
    with keeper:
        ran = subprocess.run([sys.executable, example, pool], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""


def test_a_copy_that_fails_ends_the_layerwise_example():
    """Its computation must not wait for a layer that never comes."""
    program = """if True:
        import runpy, sys
        import cachalot

        class Failing:
            def __init__(self, load):
                self._load = load

            def load_layer(self, layer):
                if layer == 3:
                    raise OSError("layer 3 is lost")
                return self._load.load_layer(layer)

        class Client(cachalot.Client):
            def begin_load(self, *arguments):
                return Failing(super().begin_load(*arguments))

        cachalot.Client = Client
        runpy.run_path(sys.argv.pop(1), run_name="__main__")
    """
    ran = subprocess.run([sys.executable, "-c", program, ROOT / "examples/python/layerwise.py", pool_path()], capture_output=True,
                         text=True, timeout=60, check=False)
    assert ran.returncode == 1 and "layer 3 is lost" in ran.stderr


def test_the_commands_of_the_readme(monkeypatch):
    """Its keeper, and the example after it, as they are printed."""
    monkeypatch.chdir(ROOT)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pool = pool_path()
    serve, example = (shlex.split(re.search(f"^    ({command} .*?/dev/shm/kv.*?)(?: &)?$", readme, re.MULTILINE)[1].replace("/dev/shm/kv", pool))
                      for command in ("cachalot serve", "python examples/python/share_prefix.py"))
    keeper = subprocess.Popen([sys.executable, "-m", "cachalot.command", *serve[1:]], stdout=subprocess.PIPE, text=True)
    try:
        assert keeper.stdout.readline().startswith("ready")
        for _ in range(2):  # the second time the first engine finds the blocks, too
            ran = subprocess.run([sys.executable, *example[1:]], capture_output=True, text=True, timeout=120, check=False)
            assert ran.returncode == 0, ran.stdout + ran.stderr
        assert "engine 1: 8 blocks loaded" in ran.stdout
    finally:
        keeper.kill()
        keeper.communicate()
        Path(pool).unlink(missing_ok=True)


def test_the_types_are_part_of_the_package():
    package = Path(cachalot.__file__).parent
    assert (package / "py.typed").exists()
    stub = ast.parse((package / "_cachalot.pyi").read_text())
    classes = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef)}
    functions = {node.name for node in stub.body if isinstance(node, ast.FunctionDef)}
    assert functions == {"layout_names", "model_names", "random_offer_id"}
    methods = {node.name for node in classes["Client"].body if isinstance(node, ast.FunctionDef)}
    assert {"lookup", "load", "store", "load_async", "begin_load", "detach"} <= methods
    assert set(classes) <= set(cachalot.__all__)
    methods = {node.name for node in classes["BlockHashes"].body if isinstance(node, ast.FunctionDef)}
    assert {"__iter__", "__contains__", "__len__", "__getitem__", "__hash__", "index", "count"} <= methods


def test_help_says_what_a_call_takes_and_gives():
    for name in ("load", "load_tokens", "load_head_tokens", "store", "register_cache", "lookup", "load_async", "put", "get", "begin_load"):
        method = getattr(cachalot.Client, name)
        signature, _, words = method.__doc__.partition("\n")
        assert signature.startswith(f"{name}(self") and " -> " in signature, signature
        assert len(words.strip()) > 20, name
    text = pydoc.plain(pydoc.render_doc(cachalot.Client.load))
    assert "timeout: float | None = None, stream: cachalot.types.Stream = None) -> int" in text and "longest prefix" in text


def test_the_package_brings_the_program():
    if not (Path(cachalot.__file__).parent / "bin/cachalot").exists():
        pytest.skip("the package is not installed, but used in place")
    for start in ([sys.executable, "-m", "cachalot.command"], [Path(sys.executable).parent / "cachalot"]):
        ran = subprocess.run([*start, "--version"], capture_output=True, text=True, timeout=120, check=False)
        assert (ran.returncode, ran.stdout) == (0, f"cachalot {cachalot.__version__}\n"), ran.stderr


def test_a_package_without_the_program_says_so(tmp_path):
    copy = tmp_path / "command.py"
    copy.write_text((ROOT / "python/cachalot/command.py").read_text())
    ran = subprocess.run([sys.executable, copy, "--version"], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 3 and str(tmp_path / "bin/cachalot") in ran.stderr, ran.stderr


def test_the_version_is_the_librarys():
    try:
        installed = version("cachalot-kv")
    except PackageNotFoundError:
        pytest.skip("the package is not installed, but used in place")
    written = re.search(r"project\(cachalot VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    assert cachalot.__version__ == installed == written
