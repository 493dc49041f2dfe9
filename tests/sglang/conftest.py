"""Fixtures: SGLang engines, pools and models, which end with the test."""

import os
import random
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "engines"))
from engine_process import EngineProcess, Pool  # noqa: E402
from tiny_models import make  # noqa: E402


class Engine(EngineProcess):
    """An SGLang engine. `answer` sends prompts and returns what engine.py says."""

    def __init__(self, model, linker=None, environment=None, **arguments):
        """linker: options of CachalotLinker; None: there is none."""
        given = {"model_path": str(model), **arguments}
        if linker is not None:
            given.update(enable_unified_cache_external_linker=True, unified_cache_external_linker_backend="dynamic",
                         unified_cache_external_linker_config={
                             "linker": "CachalotLinker", "linker_module_path": "cachalot.connectors.sglang",
                             "linker_extra_config": linker})
        super().__init__(HERE / "engine.py", given, {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})})


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    folder = Path(os.environ.get("CACHALOT_SGLANG_MODELS") or tmp_path_factory.mktemp("models"))
    return lambda name="llama": make(folder, name)


@pytest.fixture
def engines():
    made = []

    def start(*positional, **named):
        made.append(Engine(*positional, **named))
        return made[-1]

    yield start
    for engine in made:
        engine.close()


@pytest.fixture
def pools():
    made = []

    def start(block_bytes=1 << 20, blocks=256, *flags, path=None):
        made.append(Pool(path or f"/dev/shm/cachalot_sglang_{os.getpid()}_{len(made)}", block_bytes, blocks, *flags))
        return made[-1]

    yield start
    for pool in made:
        pool.close()


@pytest.fixture
def prompt():
    def draw(seed, tokens=1500):
        source = random.Random(seed)
        return [source.randrange(3, 250) for _ in range(tokens)]

    return draw
