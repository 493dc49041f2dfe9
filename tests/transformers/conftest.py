"""Fixtures: transformers engines, pools and models, which end with the test."""

import os
import random
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "engines"))
from engine_process import EngineProcess, Pool  # noqa: E402
from tiny_models import make  # noqa: E402

BLOCK_BYTES = 4 * 2 * 2 * 64 * 4 * 16  # of the model "llama": 16 tokens, f32


class Engine(EngineProcess):
    """`take_blocks` sends prompts, and returns how many blocks the engine asked of the pool, and used."""

    def __init__(self, model, pool=None, **options):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        super().__init__(HERE / "engine.py", {"model": str(model), "pool": pool, **options}, environment)
        self.counts = {}

    def answer(self, prompts, **options):
        """Adds "asked" and "used": what the client's counts have grown by."""
        said = super().answer(prompts, **options)
        before, self.counts = self.counts, said["counts"]
        for name, count in (("asked", "prompt_blocks"), ("used", "used_pool_blocks"), ("prompts", "prompts")):
            said[name] = self.counts.get(count, 0) - before.get(count, 0)
        return said


def whole_blocks(tokens, block_tokens=16):
    """Blocks that a prompt can take: its last token is computed."""
    return (tokens - 1) // block_tokens


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    folder = Path(os.environ.get("CACHALOT_TRANSFORMERS_MODELS") or tmp_path_factory.mktemp("models"))
    return lambda name="llama": make(folder, name)


@pytest.fixture(scope="module")
def alone(models):
    engine = Engine(models())
    yield engine
    engine.close()


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

    def start(block_bytes=BLOCK_BYTES, blocks=512, path=None):
        made.append(Pool(path or f"/dev/shm/cachalot_transformers_{os.getpid()}_{len(made)}", block_bytes, blocks))
        return made[-1]

    yield start
    for pool in made:
        pool.close()


@pytest.fixture(scope="session")
def prompt():
    def draw(seed, tokens):
        source = random.Random(seed)
        return [source.randrange(3, 250) for _ in range(tokens)]

    return draw
