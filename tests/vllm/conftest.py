"""Fixtures: engines, pools and models, which end with the test."""

import os
import random
from pathlib import Path

import pytest
from processes import Engine, Pool
from tiny_models import make


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    folder = Path(os.environ.get("CACHALOT_VLLM_MODELS") or tmp_path_factory.mktemp("models"))
    return lambda name="llama": make(folder, name)


def start_engines():
    made = []

    def start(*positional, **named):
        made.append(Engine(*positional, **named))
        return made[-1]

    yield start
    for engine in made:
        engine.close()


engines = pytest.fixture(start_engines)
#: For all tests of a module, for example engines without a connector.
lasting_engines = pytest.fixture(start_engines, scope="module")


@pytest.fixture(scope="module")
def stage(request, models, tmp_path_factory):
    """The `Stage` of the test's module: servers that all its tests use. Made with a folder for logs and a model."""
    made = request.module.Stage(tmp_path_factory.mktemp("servers"), models())
    yield made
    made.close()


@pytest.fixture
def pools():
    made = []

    def start(block_bytes=1 << 20, blocks=256, *flags, path=None):
        made.append(Pool(path or f"/dev/shm/cachalot_vllm_{os.getpid()}_{len(made)}", block_bytes, blocks, *flags))
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
