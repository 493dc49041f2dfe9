"""Where the programs of a build are, and the models that they are tried with."""
import os
import subprocess

CHECKOUT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../.."))
BLOCK_TOKENS = 64


class Programs:
    def __init__(self, options):
        self.work = options.work
        self.cachalot = os.path.join(options.build, "apps/cachalot/cachalot")
        self.engine = os.path.join(options.build, "engines/llama/server/cachalot-llama")
        self.random = os.path.join(options.build, "engines/llama/random_model/cachalot-llama-random-model")
        for path in (self.cachalot, self.engine, self.random):
            if not os.path.exists(path):
                raise RuntimeError(f"{path} is missing: `make demo-llama` builds it")
        os.makedirs(self.work, exist_ok=True)

    def block_bytes(self, model):
        """What a block of the model takes in a pool."""
        return int(subprocess.run([self.engine, "--model", model, "--print-block-bytes"], check=True,
                                  stdout=subprocess.PIPE, text=True).stdout)

    def folder_storage(self):
        """The example of a storage plug-in, compiled: it can read at a limited rate."""
        path = os.path.join(self.work, "libfolder_storage.so")
        subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O2", "-I", os.path.join(CHECKOUT, "include"),
                        "-o", path, os.path.join(CHECKOUT, "examples/storage_plugin/folder_storage.c")], check=True)
        return path

    def trained_model(self):
        return os.path.join(CHECKOUT, "tests/assets/models/stories260K.gguf")

    def random_model(self):
        """124.7 million random weights in f16, made where they are not there yet."""
        path = os.path.join(self.work, "random-125m-f16.gguf")
        if not os.path.exists(path):
            subprocess.run([self.random, path, "--size", "125m"], check=True)
        return path


def add_flags(parser):
    parser.add_argument("--build", default=os.path.join(CHECKOUT, "build/release"), metavar="DIR",
                        help="where CMake has built (build/release of the checkout)")
    parser.add_argument("--work", default=os.path.join(CHECKOUT, "build/llama"), metavar="DIR",
                        help="where the random model is made and kept (build/llama of the checkout)")


def pool_path(name):
    """In shared memory, and nobody else's."""
    return f"/dev/shm/cachalot_llama_{name}_{os.getpid()}"
