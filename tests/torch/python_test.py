"""libcachalot_torch.so from Python, on emulated GPUs: by ctypes, and by cachalot.torch_allocator with a torch that does
what PyTorch does with an allocator, and nothing else. PyTorch's own CUDAPluggableAllocator needs a build with
CUDA, and a GPU: it is not in this test.

usage: python_test.py FAKE_LIBCUDA LIBCACHALOT_TORCH TORCH_ALLOCATOR_PY EXAMPLE_PY
"""

import contextlib
import ctypes
import gc
import importlib.util
import io
import os
import runpy
import subprocess
import sys
import types
import unittest
import weakref

FAKE, LIBRARY, MODULE, EXAMPLE = sys.argv[1:5]
MIB = 1 << 20
STREAM = 0x5000

fake = ctypes.CDLL(FAKE)  # from now on, every dlopen of libcuda.so.1 gets it
fake.fake_used_bytes.restype = fake.fake_refused.restype = ctypes.c_ulonglong
fake.fake_set_memory_bytes.argtypes = [ctypes.c_ulonglong]
MALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
RECORD = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
RESET = ctypes.CFUNCTYPE(None)
FRACTION = ctypes.CFUNCTYPE(None, ctypes.c_double, ctypes.c_int)


class Inner:
    """What PyTorch makes of two addresses: torch._C._cuda_CUDAAllocator."""

    def __init__(self, malloc, free):
        self.malloc, self.free = MALLOC(malloc), FREE(free)
        self.callbacks = {}


for name in ("set_record_stream_fn", "set_reset_fn", "set_memory_fraction_fn", "set_begin_allocate_to_pool",
             "set_end_allocate_to_pool_fn", "set_release_pool"):
    setattr(Inner, name, lambda self, address, name=name: self.callbacks.__setitem__(name, address))


class CUDAPluggableAllocator:
    def __init__(self, path, malloc, free):
        library = ctypes.CDLL(path)
        self._allocator = Inner(*(ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in (malloc, free)))

    def allocator(self):
        return self._allocator


class MemPool:
    def __init__(self, allocator, use_on_oom=False):
        self.allocator, self.use_on_oom = allocator, use_on_oom


def fake_torch(cuda="12.8", has_gpu=True, is_initialized=False):
    torch = types.ModuleType("torch")
    torch.__version__ = "2.9.0"
    torch.version = types.SimpleNamespace(cuda=cuda)
    torch.changed = []
    memory = types.SimpleNamespace(CUDAPluggableAllocator=CUDAPluggableAllocator, change_current_allocator=torch.changed.append)
    torch.cuda = types.SimpleNamespace(is_available=lambda: has_gpu, is_initialized=lambda: is_initialized, memory=memory,
                                       current_device=lambda: 0, MemPool=MemPool)
    return torch


def load(torch):
    """The module, with this torch; None: there is none."""
    sys.modules["torch"] = torch
    spec = importlib.util.spec_from_file_location("torch_allocator", MODULE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Plugin(unittest.TestCase):
    def test_allocates_and_frees_by_ctypes(self):
        library = ctypes.CDLL(LIBRARY)
        malloc, free = MALLOC(("cachalot_torch_malloc", library)), FREE(("cachalot_torch_free", library))
        pointers = [malloc(size, 1, STREAM) for size in (0, 1, 5 * MIB, 64 * MIB)]
        self.assertEqual(len(set(pointers)), 4)
        self.assertTrue(all(pointer and pointer % 512 == 0 for pointer in pointers))
        for pointer in pointers:
            free(pointer, 0, 1, STREAM)
        self.assertEqual(malloc(64 * MIB, 1, STREAM), pointers[3])
        self.assertEqual(fake.fake_refused(), 0)

    def test_out_of_memory_is_null_and_a_line_on_stderr(self):
        code = f"""
import ctypes
fake, library = ctypes.CDLL({FAKE!r}), ctypes.CDLL({LIBRARY!r})
fake.fake_set_memory_bytes.argtypes = [ctypes.c_ulonglong]
fake.fake_set_memory_bytes({64 * MIB})
library.cachalot_torch_malloc.restype = ctypes.c_void_p
library.cachalot_torch_malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
assert library.cachalot_torch_malloc({60 * MIB}, 0, None)
assert library.cachalot_torch_malloc({10 * MIB}, 0, None) is None
assert library.cachalot_torch_malloc({4 * MIB}, 0, None)
"""
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertRegex(ran.stderr, r"^cachalot-torch: out of memory, device 0: 10485760 bytes asked for, 62914560 live, "
                                     r"62914560 held, 67108864 allowed, 67108864 on the device: .*\n$")

    def test_without_a_driver_there_is_one_line(self):
        code = f"""
import ctypes
library = ctypes.CDLL({LIBRARY!r})
library.cachalot_torch_malloc.restype = ctypes.c_void_p
library.cachalot_torch_last_message.restype = ctypes.c_char_p
if library.cachalot_torch_check() == 0:
    print("there is a driver")
else:
    assert b"expected an NVIDIA driver" in library.cachalot_torch_last_message()
    assert library.cachalot_torch_malloc(5, 0, None) is None
    assert library.cachalot_torch_malloc(5, 1, None) is None
"""
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        if "there is a driver" not in ran.stdout:
            self.assertRegex(ran.stderr, r"^cachalot-torch: no memory can be had: cuda: .*expected an NVIDIA driver\n$")


class Module(unittest.TestCase):
    def test_use_hands_pytorch_all_functions(self):
        torch = fake_torch()
        module = load(torch)
        module.use()
        module.use()
        self.assertEqual(len(torch.changed), 1)
        inner = torch.changed[0].allocator()
        self.assertEqual(len(inner.callbacks), 6)
        before = module.stats(2)["live_bytes"]
        pointer = inner.malloc(10 * MIB, 2, STREAM)
        self.assertEqual(module.stats(2)["live_bytes"], before + 10 * MIB)
        RECORD(inner.callbacks["set_record_stream_fn"])(pointer, 0x6000)
        inner.free(pointer, 10 * MIB, 2, STREAM)
        self.assertEqual(module.stats(2)["live_bytes"], before)
        RESET(inner.callbacks["set_reset_fn"])()
        self.assertEqual(module.stats(2)["reserved_bytes"], 0)
        FRACTION(inner.callbacks["set_memory_fraction_fn"])(0.25, 2)
        stats = module.stats(2)
        self.assertEqual(stats["limit_bytes"], stats["device_bytes"] // 4)
        self.assertEqual(fake.fake_refused(), 0)

    def test_a_mempool_gives_segments_back(self):
        module = load(fake_torch())
        pool = module.mempool(use_on_oom=True)
        self.assertTrue(pool.use_on_oom)
        before = fake.fake_used_bytes()
        segment = pool.allocator.malloc(20 * MIB, 0, STREAM)
        self.assertEqual(fake.fake_used_bytes(), before + 20 * MIB)
        pool.allocator.free(segment, 20 * MIB, 0, STREAM)
        self.assertLessEqual(fake.fake_used_bytes(), before)
        self.assertIs(module.mempool().allocator, pool.allocator)

    def test_pytorchs_object_outlives_the_module(self):
        module = load(fake_torch())
        pool = module.mempool()
        seen = weakref.ref(pool.allocator)
        vars(module).clear()
        del module, pool
        gc.collect()
        self.assertIsNotNone(seen())

    def test_a_mempool_warns_of_expandable_segments(self):
        module = load(fake_torch())
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:64, expandable_segments: True"
        try:
            with self.assertWarnsRegex(UserWarning, "147851"):
                module.mempool()
        finally:
            del os.environ["PYTORCH_CUDA_ALLOC_CONF"]

    def test_use_comes_before_cuda(self):
        torch = fake_torch(is_initialized=True)
        module = load(torch)
        with self.assertRaisesRegex(RuntimeError, "initialised already"):
            module.use()
        self.assertEqual(torch.changed, [])

    def test_a_pytorch_that_lacks_a_callback_is_refused(self):
        begin = Inner.set_begin_allocate_to_pool
        del Inner.set_begin_allocate_to_pool  # as before 2.3: graphs would lose their memory without a word
        try:
            torch = fake_torch()
            with self.assertRaisesRegex(RuntimeError, "has no set_begin_allocate_to_pool, expected PyTorch 2.3 or later"):
                load(torch).use()
            self.assertEqual(torch.changed, [])
        finally:
            Inner.set_begin_allocate_to_pool = begin

    def test_a_failed_use_can_be_tried_again(self):
        torch = fake_torch()
        module = load(torch)

        def refuse(_):
            raise RuntimeError("not now")

        torch.cuda.memory.change_current_allocator, works = refuse, torch.cuda.memory.change_current_allocator
        with self.assertRaisesRegex(RuntimeError, "not now"):
            module.use()
        torch.cuda.memory.change_current_allocator = works
        module.use()
        self.assertEqual(len(torch.changed), 1)

    def test_a_library_that_is_not_there_is_named(self):
        module = load(fake_torch())
        os.environ["CACHALOT_TORCH_LIBRARY"] = "/nowhere/libcachalot_torch.so"
        try:
            with self.assertRaisesRegex(RuntimeError, "/nowhere/libcachalot_torch.so.*CACHALOT_TORCH_LIBRARY"):
                module.use()
        finally:
            os.environ["CACHALOT_TORCH_LIBRARY"] = LIBRARY
        with self.assertRaisesRegex(RuntimeError, "device 64, expected 0 to 63"):
            module.stats(64)

    def test_without_torch_cuda_or_a_gpu_the_import_is_one_error(self):
        for torch, says in ((None, "torch is not installed"), (fake_torch(cuda=None), "built without CUDA"),
                            (fake_torch(has_gpu=False), "finds no GPU")):
            with self.assertRaisesRegex(ImportError, says):
                load(torch)

    def test_the_example_says_in_one_line_that_there_is_no_gpu(self):
        for torch in (None, fake_torch(has_gpu=False)):
            sys.modules["torch"] = torch
            said = io.StringIO()
            arguments, sys.argv = sys.argv, [EXAMPLE]
            try:
                with contextlib.redirect_stderr(said), self.assertRaises(SystemExit) as ended:
                    runpy.run_path(EXAMPLE, run_name="__main__")
            finally:
                sys.argv = arguments
            self.assertEqual(ended.exception.code, 3)
            self.assertEqual(said.getvalue().count("\n"), 1, said.getvalue())


if __name__ == "__main__":
    os.environ["CACHALOT_TORCH_LIBRARY"] = LIBRARY
    unittest.main(argv=sys.argv[:1])
