"""What the fixtures of all engines' tests are made of: each function returns one for pytest.fixture()."""

import os
import random
from pathlib import Path

from engine_process import Pool
from tiny_models import make


def closed_at_the_end(make_one):
    """Makes objects, and closes them when the test, or the module, has ended. make_one: their class, or a function."""

    def start():
        made = []

        def one(*positional, **named):
            made.append(make_one(*positional, **named))
            return made[-1]

        yield one
        for each in made:
            each.close()

    return start


def pools_of(engine, block_bytes=1 << 20, blocks=256):
    """Pools with a keeper, named after the engine; the sizes are defaults."""

    def start():
        made = []

        def one(block_bytes=block_bytes, blocks=blocks, *flags, path=None):
            made.append(Pool(path or f"/dev/shm/cachalot_{engine}_{os.getpid()}_{len(made)}", block_bytes, blocks, *flags))
            return made[-1]

        yield one
        for pool in made:
            pool.close()

    return start


def models_in(variable):
    """Tiny models by name, in the folder that an environment variable names, or in one of the test's."""

    def models(tmp_path_factory):
        folder = Path(os.environ.get(variable) or tmp_path_factory.mktemp("models"))
        return lambda name="llama": make(folder, name)

    return models


def prompt():
    """Tokens, by a seed."""

    def draw(seed, tokens=1500):
        source = random.Random(seed)
        return [source.randrange(3, 250) for _ in range(tokens)]

    return draw
