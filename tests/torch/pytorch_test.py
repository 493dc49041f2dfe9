"""libcachalot_torch.so under the real PyTorch, without a GPU: that cachalot.torch_allocator finds in it what it calls, and that
numbers, pointers, a pool's name and PyTorch's filter arrive in our functions as they were given to PyTorch. On emulated
GPUs. What asks CUDA first (tensors, MemPool, graphs) needs a real one: tests/gpu/torch_gpu_test.py.

usage: pytorch_test.py CXX FAKE_LIBCUDA LIBCACHALOT_TORCH SOURCE_FOLDER    exit code 77: there is no PyTorch with CUDA here
"""

import ctypes
import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CXX, FAKE, LIBRARY, SOURCE = sys.argv[1:5]
os.environ["CACHALOT_TORCH_LIBRARY"] = LIBRARY

try:
    import torch
except ImportError:
    print("skipped: torch is not installed")
    sys.exit(77)
if torch.version.cuda is None:
    print(f"skipped: torch {torch.__version__} is built without CUDA")
    sys.exit(77)

MIB = 1 << 20
STREAM, OTHER = 0x5000, 0x6000
POOL = (0x1122334455667788, 0x99AABBCCDDEEFF01)
ROOT = Path(torch.__file__).parent
torch.cuda.is_available = lambda: True  # the module wants a GPU; nothing here asks CUDA for one


class Seen(ctypes.Structure):
    _fields_ = [("function", ctypes.c_char * 24), ("number", ctypes.c_int64), ("device", ctypes.c_int32), ("first", ctypes.c_uint64),
                ("second", ctypes.c_uint64), ("fraction", ctypes.c_double), ("filter_works", ctypes.c_int32)]


def cuda_headers():
    """Where cuda_runtime_api.h is: among PyTorch's wheels, or with nvcc."""
    places = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"]
    places += sorted((ROOT.parent / "nvidia").glob("*/include"))
    major = torch.version.cuda.partition(".")[0]
    having = [place for place in places if (place / "cuda_runtime_api.h").exists()]
    return [place for place in having if f"CUDART_VERSION  {major}" in (place / "cuda_runtime_api.h").read_text()] or having


def compile_calls(folder):
    """pytorch_calls.cpp against this PyTorch; ends with 77 where that is impossible."""
    headers = cuda_headers()
    if not headers:
        print(f"skipped: torch {torch.__version__} is here, cuda_runtime_api.h is not")
        sys.exit(77)
    out = Path(folder) / "pytorch_calls.so"
    command = [CXX, "-shared", "-fPIC", "-std=c++20", "-O0", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
               f"-I{SOURCE}/include", f"-isystem{ROOT}/include", f"-isystem{ROOT}/include/torch/csrc/api/include", f"-isystem{headers[0]}",
               f"{SOURCE}/tests/torch/pytorch_calls.cpp", "-o", str(out), f"-L{ROOT}/lib", "-ltorch_cuda", "-lc10_cuda", "-lc10"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        sys.exit(f"pytorch_calls.cpp against torch {torch.__version__}:\n{ran.stderr}")
    return out


def load_calls(path):
    calls = ctypes.CDLL(str(path))
    u64, pointer = ctypes.c_uint64, ctypes.c_void_p
    calls.calls_malloc.restype = pointer
    calls.calls_malloc.argtypes = [u64, ctypes.c_int, pointer]
    calls.calls_free.argtypes = [pointer]
    calls.calls_record_stream.argtypes = [pointer, pointer, ctypes.c_int]
    calls.calls_set_fraction.argtypes = [ctypes.c_double, ctypes.c_int]
    for name in ("begin", "end", "release"):
        getattr(calls, f"calls_{name}_pool").argtypes = [ctypes.c_int, u64, u64]
    calls.seen_last.restype = ctypes.POINTER(Seen)
    return calls


def load_module():
    spec = importlib.util.spec_from_file_location("torch_allocator", f"{SOURCE}/python/cachalot/torch_allocator.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Arrives(unittest.TestCase):
    """The functions that write down what came, in the place of ours; a process of its own, for PyTorch takes one allocator."""

    @classmethod
    def setUpClass(cls):
        cls.calls = load_calls(PATH)
        allocator = torch.cuda.memory.CUDAPluggableAllocator(str(PATH), "seen_malloc", "seen_free")
        callbacks = load_module()._CALLBACKS
        cls.missing = [setter for setter in callbacks if not hasattr(allocator.allocator(), setter)]
        for setter, function in callbacks.items():
            address = getattr(cls.calls, function.replace("cachalot_torch", "seen"))
            getattr(allocator.allocator(), setter)(ctypes.cast(address, ctypes.c_void_p).value)
        torch.cuda.memory.change_current_allocator(allocator)

    def seen(self, function, **expected):
        got = self.calls.seen_last().contents
        self.assertEqual(got.function.decode(), function)
        for field, value in expected.items():
            self.assertEqual(getattr(got, field), value, f"{function}: {field}")

    def test_memory(self):
        self.assertEqual(self.missing, [])
        pointer = self.calls.calls_malloc(5 * MIB, 3, STREAM)
        self.assertEqual(pointer, 0x123456000)
        self.seen("malloc", number=5 * MIB, device=3, second=STREAM)
        if self.calls.calls_record_stream(pointer, OTHER, 3) == 0:  # some releases ask CUDA for the stream's device first
            self.seen("record_stream", first=pointer, second=OTHER)
        else:
            print(f"not seen: torch {torch.__version__} asks CUDA before it calls record_stream", file=sys.stderr)
        self.assertEqual(self.calls.calls_free(pointer), 0)
        self.seen("free", first=pointer, number=5 * MIB, device=3, second=STREAM)
        self.calls.calls_malloc(2**62, 0, None)
        self.seen("malloc", number=2**62, device=0, second=0)

    def test_a_pools_name_and_the_filter(self):
        self.assertEqual(self.calls.calls_begin_pool(2, *POOL), 0)
        self.seen("begin_pool", device=2, first=POOL[0], second=POOL[1], filter_works=1)
        self.assertEqual(self.calls.calls_end_pool(3, *POOL), 0)
        self.seen("end_pool", device=3, first=POOL[0], second=POOL[1])
        self.assertEqual(self.calls.calls_release_pool(4, 0, 7), 0)
        self.seen("release_pool", device=4, first=0, second=7)

    def test_the_rest(self):
        self.assertEqual(self.calls.calls_empty_cache(), 0)
        self.seen("empty_cache")
        self.assertEqual(self.calls.calls_set_fraction(0.625, 5), 0)
        self.seen("set_memory_fraction", fraction=0.625, device=5)


class Use(unittest.TestCase):
    """use() itself: PyTorch's allocator over ours, over emulated GPUs."""

    @classmethod
    def setUpClass(cls):
        cls.fake = ctypes.CDLL(FAKE)  # from now on, every dlopen of libcuda.so.1 gets it
        cls.fake.fake_used_bytes.restype = cls.fake.fake_refused.restype = ctypes.c_ulonglong
        cls.module = load_module()
        cls.module.use()
        cls.module.use()
        cls.calls = load_calls(PATH)

    def test_memory_of_all_kinds(self):
        stats = self.module.stats
        pointer = self.calls.calls_malloc(10 * MIB, 0, STREAM)
        self.assertEqual(stats(0)["live_bytes"], 10 * MIB)
        self.calls.calls_record_stream(pointer, OTHER, 0)
        self.calls.calls_free(pointer)
        self.assertEqual(stats(0)["live_bytes"], 0)
        self.assertEqual(self.calls.calls_malloc(10 * MIB, 0, STREAM), pointer)  # no work is left on either stream
        self.calls.calls_free(pointer)
        self.calls.calls_empty_cache()
        self.assertEqual(stats(0)["reserved_bytes"], 0)

    def test_a_graphs_memory_is_kept_until_its_pool_is_released(self):
        self.calls.calls_begin_pool(1, *POOL)
        kept = self.calls.calls_malloc(40 * MIB, 1, STREAM)
        self.calls.calls_end_pool(1, *POOL)
        self.calls.calls_free(kept)
        other = self.calls.calls_malloc(40 * MIB, 1, STREAM)
        self.assertNotEqual(other, kept)
        self.calls.calls_release_pool(1, POOL[0], POOL[1] ^ 1)  # another one's name
        self.assertNotEqual(self.calls.calls_malloc(40 * MIB, 1, STREAM), kept)
        self.calls.calls_release_pool(1, *POOL)
        self.assertEqual(self.calls.calls_malloc(40 * MIB, 1, STREAM), kept)

    def test_the_memory_fraction(self):
        self.calls.calls_set_fraction(0.25, 2)
        stats = self.module.stats(2)
        self.assertEqual(stats["limit_bytes"], stats["device_bytes"] // 4)

    def test_out_of_memory_is_a_null(self):
        self.assertIsNone(self.calls.calls_malloc(1 << 60, 0, STREAM))

    def tearDown(self):
        self.assertEqual(self.fake.fake_refused(), 0)


def refuse_old():
    """Before 2.3 PyTorch tells of graphs in other words: use() has to say so, and change nothing."""
    ctypes.CDLL(FAKE)
    try:
        load_module().use()
    except RuntimeError as error:
        print(f"torch {torch.__version__} is refused: {error}")
        return 0 if "expected PyTorch 2.3 or later" in str(error) else 1
    print(f"torch {torch.__version__} lacks a callback, and use() did not mind")
    return 1


if __name__ == "__main__":
    if not hasattr(torch._C._CUDAPluggableAllocator, "set_begin_allocate_to_pool"):
        sys.exit(refuse_old())
    if len(sys.argv) > 5:  # a case in a process of its own
        PATH = Path(sys.argv[6])
        unittest.main(argv=[sys.argv[0], sys.argv[5]])
    with tempfile.TemporaryDirectory() as made:
        library = compile_calls(made)
        print(f"torch {torch.__version__}")
        results = [subprocess.run([sys.executable, *sys.argv, case, str(library)], check=False).returncode for case in ("Arrives", "Use")]
    sys.exit(1 if any(results) else 0)
