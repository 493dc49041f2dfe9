"""libcachalot_torch.so under PyTorch on a GPU: what docs/guide/pytorch.md says that only a GPU can tell, as far as one GPU can.

    python tests/gpu/torch_gpu_test.py [CHECK...]        needs CACHALOT_TORCH_LIBRARY or the package; --list names the checks

Each check is a process of its own and prints a line; none stops another. Exit code 1: one failed; 3: no PyTorch or no GPU here.
"""

import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

try:
    import torch
except ImportError:
    print("skipped: torch is not installed")
    sys.exit(3)

from torch_check import MIB, Plain, driver, expect, failures, fragmented, handles_of, library, note, report, start

FINE_TUNE = Path(__file__).parents[2] / "examples/torch/fine_tune.py"
LIMIT_S = 80
SIDE, TIMES = 4096, 30  # of matrices; that something is timed


# --- the checks, by their number in the guide's list


def losses():
    """1: a training gives the same losses as on PyTorch's allocator"""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "losses.json"
        ran = subprocess.run([sys.executable, str(FINE_TUNE), "--quick", "--steps", "6", "--json", str(out)], capture_output=True, text=True,
                             check=False, timeout=LIMIT_S)
        expect(ran.returncode == 0, f"fine_tune.py ended with {ran.returncode}: {ran.stdout[-300:]} {ran.stderr[-300:]}")
        if not out.exists():
            return
        got = json.loads(out.read_text())["loss_differences"]
    for allocator, difference in got.items():
        note(f"{allocator}: largest difference {difference['largest']:.1e}")
    expect("cachalot" in got and got["cachalot"]["first_step"] is None, f"losses are not equal to the bit: {got.get('cachalot')}")


def several_handles():
    """2: kernels, cuBLAS, cuDNN, cuFFT and copies on tensors that lie in several handles; how fast"""
    allocator = start()
    held, before = fragmented(allocator)
    side = SIDE
    stitched = [torch.empty(side, side, dtype=torch.bfloat16, device="cuda") for _ in range(3)]  # 32 MiB each
    stats = allocator.stats()
    expect(stats["stitches"] > before["stitches"], f"nothing was stitched: {before['stitches']} before, {stats['stitches']} after")
    pieces = handles_of(stitched[0])
    expect(pieces > 1, f"the tensor lies in {pieces} handle(s)")
    plain = [torch.as_tensor(Plain(side, side), device="cuda").view(torch.bfloat16) for _ in range(3)]
    for one, other in zip(stitched, plain):
        one.normal_()
        other.copy_(one)
    expect(all(torch.equal(a, b) for a, b in zip(stitched, plain)), "a copy on the device is not equal")
    host = stitched[0].cpu()
    expect(torch.equal(host, plain[0].cpu()), "copies to the host are not equal")
    pinned = torch.empty(side, side, dtype=torch.bfloat16, pin_memory=True)
    pinned.copy_(stitched[0], non_blocking=True)
    torch.cuda.synchronize()
    expect(torch.equal(pinned, host), "a copy to page-locked memory is not equal")
    stitched[0].zero_()
    stitched[0].copy_(pinned, non_blocking=True)
    expect(torch.equal(stitched[0], plain[0]), "a copy from page-locked memory is not equal")
    torch.backends.cudnn.deterministic = True
    images = [each.view(-1, 64, 64, 64) for each in (stitched[1], plain[1])]
    weights = [each.view(-1)[:64 * 64 * 9].view(64, 64, 3, 3) for each in (stitched[2], plain[2])]
    for name, run in {
            "cuBLAS": lambda i: (stitched, plain)[i][0] @ (stitched, plain)[i][1],
            "cuBLAS in float32": lambda i: (stitched, plain)[i][0].float() @ (stitched, plain)[i][1].float(),
            "cuDNN": lambda i: torch.nn.functional.conv2d(images[i], weights[i], padding=1),
            "cuFFT": lambda i: torch.view_as_real(torch.fft.fft((stitched, plain)[i][0].float())),
            "SDPA": lambda i: torch.nn.functional.scaled_dot_product_attention(*[each.view(-1, 8, 1024, 128) for each in (stitched, plain)[i]]),
            "sort": lambda i: (stitched, plain)[i][2].sort().values,
            "sum": lambda i: (stitched, plain)[i][2].float().sum(0)}.items():
        expect(torch.equal(run(0), run(1)), f"{name} gives another result on a stitched tensor")
    speeds = []
    for tensors in (stitched, plain):
        for run in (lambda t=tensors: t[0] @ t[1], lambda t=tensors: t[2].copy_(t[0])):
            speeds.append(device_ms(run))
    note(f"{pieces} handles; matmul {speeds[0] / speeds[2]:.2f}, copy {speeds[1] / speeds[3]:.2f} of the time on memory of cuMemAlloc")
    del held
    expect(not torch.isnan(stitched[0]).any().item(), "NaN")


def device_ms(run):
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    spent = []
    for _ in range(TIMES):
        begin = time.perf_counter()
        run()
        torch.cuda.synchronize()
        spent.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(spent)


def callbacks():
    """3: record_stream, empty_cache and the memory fraction arrive as PyTorch's calls"""
    allocator = start()
    other = torch.cuda.Stream()
    x = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")
    address = x.data_ptr()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        torch.cuda._sleep(1000)
        x.sum(dtype=torch.int64)  # a kernel is loaded when it is launched first, which takes longer than the sleep below
    torch.full((1,), 3, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    with torch.cuda.stream(other):
        torch.cuda._sleep(1_000_000_000)  # half a second
        total = x.sum(dtype=torch.int64)
        done.record()
    x.record_stream(other)
    del x
    y = torch.full((64 * MIB,), 3, dtype=torch.uint8, device="cuda")
    handed_out, is_over = y.data_ptr() == address, done.query()
    expect(not is_over, "the other stream was done too soon: nothing was looked at")
    expect(not handed_out, "memory that another stream still uses was handed out again")
    torch.cuda.synchronize()
    expect(total.item() == 64 * MIB, f"the other stream read {total.item()}, expected {64 * MIB}")
    del y, total
    gc.collect()
    before = allocator.stats()["reserved_bytes"]
    torch.cuda.empty_cache()
    after = allocator.stats()["reserved_bytes"]
    expect(after < before, f"empty_cache(): {before} bytes held before, {after} after")
    torch.cuda.set_per_process_memory_fraction(0.5)
    stats = allocator.stats()
    expect(stats["limit_bytes"] == stats["device_bytes"] // 2, f"memory fraction 0.5: limit {stats['limit_bytes']} of {stats['device_bytes']}")


def contexts():
    """4: a thread without a context, or with another one, is left as it was"""
    start()
    torch.ones(1, device="cuda")
    plugin, cuda = library(), driver()
    cuda.cuCtxGetCurrent.argtypes = [ctypes.c_void_p]
    seen = {}

    def current():
        context = ctypes.c_void_p()
        cuda.cuCtxGetCurrent(ctypes.byref(context))
        return context.value

    def allocate(name):
        before = current()
        pointer = plugin.cachalot_torch_malloc(5 * MIB, 0, None)
        plugin.cachalot_torch_free(pointer, 5 * MIB, 0, None)
        seen[name] = (before, current(), pointer)

    def with_another():
        other = ctypes.c_void_p()
        code = cuda.cuCtxCreate_v2(ctypes.byref(other), 0, 0)
        if not expect(code == 0, f"cuCtxCreate: {code}"):
            return
        allocate("another context")
        cuda.cuCtxDestroy_v2(other)

    for target in (lambda: allocate("no context"), with_another):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
    allocate("PyTorch's thread")
    for name, (before, after, pointer) in seen.items():
        expect(pointer, f"{name}: no memory")
        expect(before == after, f"{name}: context {before} before, {after} after")
    expect(seen.get("no context", (0,))[0] is None, "a new thread has a context already")
    expect(torch.ones(1000, device="cuda").sum().item() == 1000, "PyTorch goes on")


def capture():
    """5: during a capture memory is created and events are asked for; the legacy stream answers with 906 while a blocking one is captured"""
    allocator = start()
    cuda = driver()
    cuda.cuStreamIsCapturing.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    warm_up(lambda: torch.ones(1000, device="cuda").sum())
    graph, other = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    shared = torch.ones(30 * MIB, dtype=torch.uint8, device="cuda")
    shared.record_stream(other)
    status = ctypes.c_int(-1)
    before = allocator.stats()
    with torch.cuda.graph(graph):
        big = torch.ones(200 * MIB, dtype=torch.uint8, device="cuda")
        total = big.sum(dtype=torch.int64)
        del big, shared  # of another stream: its event is asked for
        more = torch.full((30 * MIB,), 2, dtype=torch.uint8, device="cuda").sum(dtype=torch.int64)
    after = allocator.stats()
    expect(after["driver_allocations"] > before["driver_allocations"], "no memory was created during the capture")
    graph.replay()
    torch.cuda.synchronize()
    expect(total.item() == 200 * MIB and more.item() == 60 * MIB, f"the graph computed {total.item()} and {more.item()}")
    # PyTorch's streams do not wait for the legacy one. One that does keeps it from being used, and from being asked about.
    blocking, made = ctypes.c_void_p(), ctypes.c_void_p()
    expect(cuda.cuStreamCreate(ctypes.byref(blocking), 0) == 0, "cuStreamCreate")
    expect(cuda.cuStreamBeginCapture_v2(blocking, 0) == 0, "cuStreamBeginCapture")
    code = cuda.cuStreamIsCapturing(None, ctypes.byref(status))
    late = torch.empty(25 * MIB, dtype=torch.uint8, device="cuda")  # on the legacy stream, which cannot be asked about
    del late
    expect(cuda.cuStreamEndCapture(blocking, ctypes.byref(made)) == 0, "cuStreamEndCapture: the capture was disturbed")
    expect(code == 906, f"cuStreamIsCapturing of the legacy stream: {code}, expected 906")
    cuda.cuGraphDestroy(made)
    cuda.cuStreamDestroy_v2(blocking)


def warm_up(run):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()


def graphs():
    """6: a graph whose tensors were freed before its replays computes the same, and gives its memory back"""
    allocator = start()
    torch.manual_seed(1)
    weights = [torch.randn(1024, 1024, device="cuda") for _ in range(4)]
    x = torch.randn(512, 1024, device="cuda")

    def model():
        out = x
        for weight in weights:
            out = torch.nn.functional.layer_norm(torch.relu(out @ weight), (1024,))
        return out

    warm_up(model)
    eager = model().clone()
    graph = torch.cuda.CUDAGraph()
    live_before = allocator.stats()["live_bytes"]
    with torch.cuda.graph(graph):
        out = model()
    kept = allocator.stats()["live_bytes"] - live_before
    expect(kept > 2 * out.numel() * 4, f"what the capture freed is not kept: {kept} bytes more are live")
    for round_ in range(3):
        torch.manual_seed(10 + round_)
        x.normal_()
        eager = model().clone()
        junk = [torch.full((512, 1024), float("nan"), device="cuda") for _ in range(64)]  # whatever was freed is written over
        graph.replay()
        torch.cuda.synchronize()
        expect(torch.equal(out, eager), f"replay {round_} differs from eager by {(out - eager).abs().max().item()}")
        expect(all(torch.isnan(each).all().item() for each in junk), f"replay {round_} wrote into a tensor of others")
        del junk
    del out, eager
    graph.reset()
    del graph
    gc.collect()
    getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()  # one was made in the capture, and is PyTorch's
    left = allocator.stats()["live_bytes"] - live_before
    expect(left < kept / 2, f"the graph has gone, and {left} of {kept} bytes are still kept")
    graphed = torch.cuda.make_graphed_callables(torch.nn.Linear(256, 256, device="cuda"), (torch.randn(8, 256, device="cuda"),))
    loss = graphed(torch.randn(8, 256, device="cuda")).sum()
    loss.backward()
    expect(torch.isfinite(loss).item(), "make_graphed_callables")


def quiet_end():
    """7: tensors, streams and a graph are there when the process ends, and nothing is said"""
    start()
    globals()["left_over"] = [torch.ones(20 * MIB, dtype=torch.uint8, device="cuda"), torch.cuda.Stream(), torch.cuda.CUDAGraph()]
    with torch.cuda.graph(globals()["left_over"][2]):
        globals()["left_over"].append(torch.ones(1000, device="cuda"))
    plugin = library()
    pointer = plugin.cachalot_torch_malloc(5 * MIB, 0, None)
    import atexit

    atexit.register(plugin.cachalot_torch_free, pointer, 5 * MIB, 0, None)


def destroyed_stream():
    """8: memory that was used on a stream which is destroyed by then"""
    allocator = start()
    x = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    cuda = driver()
    stream = ctypes.c_void_p()
    expect(cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0, "cuStreamCreate")
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.value or 1)):
        total = x.sum(dtype=torch.int64)
        y = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
    x.record_stream(torch.cuda.ExternalStream(stream.value or 1))
    torch.cuda.synchronize()
    expect(total.item() == 64 * MIB, "the stream's sum")
    del total
    cuda.cuStreamDestroy_v2(stream)
    del x, y
    gc.collect()
    torch.cuda.empty_cache()
    held = [torch.ones(20 * MIB, dtype=torch.uint8, device="cuda") for _ in range(8)]
    torch.cuda.synchronize()
    expect(sum(each.sum(dtype=torch.int64).item() for each in held) == 160 * MIB, "sums afterwards")
    note(f"{allocator.stats()['reserved_bytes'] >> 20} MiB held for {allocator.stats()['live_bytes'] >> 20} live")


def out_of_memory():
    """9: with use() a null address, after a line on stderr, and PyTorch's error at the first kernel"""
    start()
    small = torch.ones(10 * MIB, dtype=torch.uint8, device="cuda")
    big = torch.empty(2048 * MIB, dtype=torch.uint8, device="cuda")
    expect(big.data_ptr() == 0, f"a tensor of 2 GiB at {big.data_ptr():#x} with a limit of 1 GiB")
    expect(torch.ones(100 * MIB, dtype=torch.uint8, device="cuda").sum(dtype=torch.int64).item() == 100 * MIB, "smaller requests go on")
    expect(small.sum(dtype=torch.int64).item() == 10 * MIB, "what was there is lost")
    sys.stderr.write("the kernel comes now\n")
    try:
        big.fill_(1)
        torch.cuda.synchronize()
        expect(False, "a kernel wrote to a null address")
    except RuntimeError as error:
        note(str(error).splitlines()[0])
    report()
    os._exit(0)  # the context is gone; a quiet end is another check


def out_of_memory_in_a_pool():
    """9: with mempool() torch.OutOfMemoryError, after a line on stderr, and the process goes on"""
    from cachalot import torch_allocator

    pool = torch_allocator.mempool()
    with torch.cuda.use_mem_pool(pool):
        small = torch.ones(100 * MIB, dtype=torch.uint8, device="cuda")
        try:
            torch.empty(2048 * MIB, dtype=torch.uint8, device="cuda")
            expect(False, "2 GiB were given with a limit of 1 GiB")
        except torch.OutOfMemoryError:
            note("torch.OutOfMemoryError")
        again = torch.ones(200 * MIB, dtype=torch.uint8, device="cuda")
    expect(small.sum(dtype=torch.int64).item() + again.sum(dtype=torch.int64).item() == 300 * MIB, "sums")


def mempool():
    """10: a free in a MemPool with work of another stream in the segment, and memory going back"""
    from cachalot import torch_allocator

    pool = torch_allocator.mempool()
    other = torch.cuda.Stream()
    with torch.cuda.use_mem_pool(pool):
        x = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")
        rest = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")
    held = torch_allocator.stats()["reserved_bytes"]
    expect(held >= 128 * MIB, f"PyTorch did not ask Cachalot for the pool's segments: {held} bytes held")
    total = torch.zeros(1, dtype=torch.int64, device="cuda")
    with torch.cuda.stream(other):
        torch.cuda._sleep(1000)
        total += x.sum(dtype=torch.int64) * 0  # kernels are loaded when they are launched first
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    with torch.cuda.stream(other):
        torch.cuda._sleep(1_000_000_000)
        total += x.sum(dtype=torch.int64)
        done.record()
    x.record_stream(other)
    expect(not done.query(), "the other stream was done too soon: nothing was looked at")
    del x
    expect(rest.sum(dtype=torch.int64).item() == 64 * MIB, "the other tensor of the pool")
    del rest
    del pool
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    expect(total.item() == 64 * MIB, f"the other stream read {total.item()}, expected {64 * MIB}")
    torch.cuda.empty_cache()
    left = torch_allocator.stats()["reserved_bytes"]
    expect(left == 0, f"{left} of {held} bytes did not go back to the device")


def streams():
    """Many tensors on four streams with work that lags: none is handed out early"""
    start()
    torch.manual_seed(1)
    lanes = [torch.cuda.Stream() for _ in range(4)]
    sums = []
    for number in range(200):
        one, other = lanes[number % 4], lanes[(number * 7 + 1) % 4]
        value = number % 100 + 1
        size = (number * 37 % 40 + 1) * MIB // 2
        with torch.cuda.stream(one):
            x = torch.full((size,), value, dtype=torch.uint8, device="cuda")
        other.wait_stream(one)
        with torch.cuda.stream(other):
            if number % 5 == 0:
                torch.cuda._sleep(10_000_000)
            sums.append((x.sum(dtype=torch.int64), value * size))
        x.record_stream(other)
        del x
    torch.cuda.synchronize()
    wrong = sum(total.item() != expected for total, expected in sums)
    expect(wrong == 0, f"{wrong} of {len(sums)} tensors were written over before they were read")


def times():
    """11: the time of an allocation that repeats, and of the first one (figures; nothing is asked of them)"""
    plugin_ns = None
    if os.environ.get("TIMES_OF") == "default":
        torch.ones(1, device="cuda")
    else:
        start()
        torch.ones(1, device="cuda")
        plugin = library()
        stream = torch.cuda.current_stream().cuda_stream
        empty = per_call_ns(lambda: plugin.cachalot_torch_record_stream(None, None))

        def both():
            plugin.cachalot_torch_free(plugin.cachalot_torch_malloc(5 * MIB, 0, stream), 5 * MIB, 0, stream)

        plugin_ns = per_call_ns(both) - 2 * empty
    begin = time.perf_counter()
    first = torch.empty(1024 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    first_ms = (time.perf_counter() - begin) * 1e3
    del first
    by_size = {}
    for size in (1000, MIB, 64 * MIB):
        by_size[size] = per_call_ns(lambda n=size: torch.empty(n, dtype=torch.uint8, device="cuda")) / 1e3
    sizes = ", ".join(f"{size:,} B {us:.1f} us" for size, us in by_size.items())
    note(f"torch.empty and free: {sizes}; first GiB {first_ms:.1f} ms" + (f"; malloc and free alone {plugin_ns:.0f} ns" if plugin_ns else ""))


def per_call_ns(run, times=3000):
    for _ in range(100):
        run()
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter_ns()
        for _ in range(times // 5):
            run()
        best = min(best, (time.perf_counter_ns() - begin) / (times // 5))
    return best


LIMITED = {"CACHALOT_TORCH_LIMIT": "1GiB"}
OUT_OF_MEMORY = r"cachalot-torch: out of memory, device 0: "
# name: (check, environment, what stderr has to have, or None: nothing of Cachalot's)
CHECKS = {
    "losses": (losses, {}, None),
    "several_handles": (several_handles, {}, None),
    "callbacks": (callbacks, {}, None),
    "contexts": (contexts, {}, None),
    "capture": (capture, {}, None),
    "graphs": (graphs, {}, None),
    "quiet_end": (quiet_end, {}, None),
    "destroyed_stream": (destroyed_stream, {}, None),
    "out_of_memory": (out_of_memory, LIMITED, OUT_OF_MEMORY),
    "out_of_memory_in_a_pool": (out_of_memory_in_a_pool, LIMITED, OUT_OF_MEMORY),
    "mempool": (mempool, {}, None),
    "streams": (streams, {}, None),
    "times_default": (times, {"TIMES_OF": "default"}, None),
    "times": (times, {}, None),
}


def run_here(name):
    """In the check's own process: the last line of stdout is its report."""
    try:
        CHECKS[name][0]()
        torch.cuda.synchronize()
    except Exception as error:
        failures.append(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
        import traceback

        traceback.print_exc()
    report()


def run_apart(name):
    """(name, failures, notes, seconds, stderr)"""
    _, more, pattern = CHECKS[name]
    environment = {**os.environ, **more, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    begin = time.perf_counter()
    command = [sys.executable, *os.environ.get("TORCH_GPU_TEST_PRELUDE", "").split(), __file__, "--in-this-process", name]
    try:
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    except subprocess.TimeoutExpired as error:
        return name, [f"not done after {LIMIT_S} s"], [], float(LIMIT_S), str(error.stderr or "")
    wrong, said = [], []
    lines = ran.stdout.strip().splitlines()
    try:
        got = json.loads(lines[-1])
        wrong, said = got["failures"], got["notes"]
    except (IndexError, ValueError):
        wrong.append("it ended without a report")
    if ran.returncode != 0:
        wrong.append(f"exit code {ran.returncode}")
    if pattern is not None and pattern not in ran.stderr.split("the kernel comes now")[0]:
        wrong.append(f'stderr has no "{pattern.strip()}" before PyTorch\'s error')
    if pattern is None and "cachalot-torch:" in ran.stderr:
        wrong.append("said: " + next(line for line in ran.stderr.splitlines() if "cachalot-torch:" in line))
    # What others warn of is theirs.
    loud = [line for line in ran.stderr.splitlines() if any(word in line.lower() for word in ("cachalot", "terminate", "cuda error"))]
    if name == "quiet_end" and loud:
        wrong.append(f"stderr: {loud[-1]}")
    return name, wrong, said, time.perf_counter() - begin, ran.stderr


def main(arguments):
    if arguments[:1] == ["--in-this-process"]:
        run_here(arguments[1])
        return 0
    if arguments == ["--list"]:
        print("\n".join(f"{name:<24} {check.__doc__.strip()}" for name, (check, _, _) in CHECKS.items()))
        return 0
    unknown = [name for name in arguments if name not in CHECKS]
    if unknown:
        print(f"torch_gpu_test: unknown check {unknown[0]} (see --list)", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print(f"skipped: torch {torch.__version__} finds no GPU")
        return 3
    try:
        from cachalot import torch_allocator  # noqa: F401
    except ImportError as error:
        print(f"skipped: {error}; expected the package cachalot, or its folder on PYTHONPATH")
        return 3
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name(0)}", flush=True)
    names = arguments or list(CHECKS)
    failed = 0
    # Side by side, since most of a check is PyTorch's start; those that time something come last, alone.
    pool = ThreadPoolExecutor(4)
    results = chain(pool.map(run_apart, [name for name in names if not name.startswith("times")]),
                    (run_apart(name) for name in names if name.startswith("times")))
    for name, wrong, said, seconds, stderr in results:  # each when it is there: the rest may come too late
        print(f"{'FAILED' if wrong else 'passed'}  {name:<24} {seconds:5.1f} s  {CHECKS[name][0].__doc__.strip()}", flush=True)
        for line in said:
            print(f"        {line}")
        for line in wrong:
            print(f"        WRONG: {line}")
        if wrong and stderr:
            print("        " + "\n        ".join(stderr.strip().splitlines()[-8:]))
        failed += bool(wrong)
    print(f"{len(names) - failed} of {len(names)} passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
