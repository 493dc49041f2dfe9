"""The Python package on a GPU, with PyTorch's tensors: tiers, hand-overs and layouts. Every byte is compared.

usage: python_on_gpu.py [--seconds N] [--blocks N] [--only tiers,pool,hand-over,layouts] [--check | --emulated LIBCUDA] [RESULTS]

If vllm.tar.xz (tools/pack-vllm) lies beside this file, its packages are used, otherwise those of this Python. The shape is
that of Llama 3 8B: 2 MiB a block; N blocks (default: 300) are a prompt. RESULTS (default: python-results) gets table.txt and
the logs. Each part runs in a process of its own, and the script ends after N seconds (default: 150).

--check needs no GPU: it imports everything. --emulated rehearses the parts with a small shape, on the emulated driver of
tests/torch and with NumPy instead of PyTorch; its figures mean nothing.

Exit 0: all was right; 1: not so, or not in time; 2: an argument is wrong, or something is missing.
"""

import argparse
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from pathlib import Path

sys.dont_write_bytecode = True  # the folder is a pack
from vllm_on_gpu import Late, ended, packed_environment, seconds  # noqa: E402

HERE = Path(__file__).resolve()
DEVICE, MODEL, TIMEOUT_S = 0, "check@1", 60
LAYERS, BLOCK_TOKENS, HEADS, HEAD = 32, 16, 8, 128


class Torch:
    """Memory of the GPU by PyTorch. All its work is on one stream."""

    def __init__(self):
        import torch

        if not torch.cuda.is_available():
            raise SystemExit("PyTorch finds no GPU")
        self.torch, self.stream = torch, torch.cuda.Stream(DEVICE)
        torch.cuda.set_stream(self.stream)

    def new(self, shape):
        return self.torch.zeros(shape, dtype=self.torch.int16, device=f"cuda:{DEVICE}")

    def new_here(self, shape):
        return self.torch.zeros(shape, dtype=self.torch.int16)

    def given(self, array):
        """What the package gets: numbers of two bytes, as a model has them."""
        return array.view(self.torch.bfloat16)

    def numbers(self, values):
        return self.torch.tensor(values, dtype=self.torch.int64, device=f"cuda:{DEVICE}")

    def small(self, array):
        return array.to(self.torch.int16)

    def copy_away(self, away, pages, index):
        self.torch.index_select(pages, 1, index, out=away)

    def equal(self, one, two):
        return self.torch.equal(one.to(f"cuda:{DEVICE}"), two)

    def copy(self, to, array):
        to.copy_(array)

    def delay(self):
        """What is on the stream from now on runs 20 to 40 ms later: what does not wait for it comes too early."""
        self.torch.cuda._sleep(60_000_000)

    def wait(self):
        self.torch.cuda.synchronize(DEVICE)

    def plain_seconds(self, size):
        """Of one copy from page-locked memory."""
        torch = self.torch
        source = torch.ones(size, dtype=torch.uint8, pin_memory=True)
        target, took = torch.empty(size, dtype=torch.uint8, device=f"cuda:{DEVICE}"), []
        for _ in range(4):
            self.wait()
            began = time.perf_counter()
            target.copy_(source, non_blocking=True)
            self.wait()
            took.append(time.perf_counter() - began)
        return min(took)


class Emulated:
    """NumPy in the memory of an emulated driver's GPU, which the host may look at."""

    def __init__(self, path):
        import numpy

        self.numpy, self.fake = numpy, ctypes.CDLL(path)  # before cachalot: from now on, every dlopen of libcuda.so.1 gets it
        self.fake.fake_add_copy_kernels()
        context, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), DEVICE)
        self._call("cuCtxSetCurrent", context)
        self._call("cuStreamCreate", ctypes.byref(self.stream), 1)
        self.stream = self.stream.value

    def _call(self, function, *arguments):
        result = getattr(self.fake, function)(*arguments)
        if result != 0:
            raise SystemExit(f"{function}: {result}")

    def new(self, shape):
        at, array = ctypes.c_ulonglong(), self.numpy.zeros(shape, self.numpy.int16)
        self._call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(array.nbytes))
        there = self.numpy.frombuffer((ctypes.c_char * array.nbytes).from_address(at.value), self.numpy.int16).reshape(shape)
        there[:] = 0
        return there

    def new_here(self, shape):
        return self.numpy.zeros(shape, self.numpy.int16)

    def given(self, array):
        class Array:
            __cuda_array_interface__ = {**array.__array_interface__, "strides": None, "version": 3}

        return Array()

    def numbers(self, values):
        return self.numpy.array(values, self.numpy.int64)

    def small(self, array):
        return array.astype(self.numpy.int16)

    def copy_away(self, away, pages, index):
        away[:] = pages[:, index]

    def equal(self, one, two):
        return self.numpy.array_equal(one, two)

    def copy(self, to, array):
        to[:] = array

    def delay(self):
        pass

    def wait(self):
        pass

    def plain_seconds(self, _):
        return 1.0


class Part:
    """What the parts have in common: the GPU, the shape, and the KV that must come back."""

    def __init__(self, emulated, blocks):
        self.gpu = Emulated(emulated) if emulated else Torch()
        import cachalot
        import cachalot.tier

        self.cachalot = cachalot
        layers, tokens, heads, dim = (3, 4, 2, 32) if emulated else (LAYERS, BLOCK_TOKENS, HEADS, HEAD)
        self.layers, self.tokens, self.block = layers, tokens, (2, tokens, heads, dim)
        self.geometry = cachalot.KvGeometry(layers=layers, kv_heads=heads, head_dim=dim, dtype="bf16", block_tokens=tokens)
        self.blocks, self.bytes = blocks, blocks * self.geometry.block_bytes
        self.places = self.gpu.numbers(range(2 * tokens * heads * dim))[None]
        self.is_right, self.is_emulated = True, bool(emulated)

    def say(self, line):
        print(line, flush=True)

    def expect(self, holds, words):
        if not holds:
            self.is_right = False
            self.say(f"WRONG: {words}")

    def attempt(self, name, function, *arguments):
        """One check: what it raises does not keep the others from running."""
        try:
            function(*arguments)
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            if self.is_emulated and isinstance(error, self.cachalot.UnsupportedError):
                self.say(f"{name}: skipped, a package without kernels: {error}")
            else:
                self.expect(False, f"{name}: {type(error).__name__}: {error}")

    def prompt(self, number):
        """Its blocks, and one token that has to be computed in any case."""
        return list(range(number * 1_000_000, number * 1_000_000 + self.blocks * self.tokens + 1))

    def kv(self, number, layer, blocks):
        """Of these blocks of a prompt: other numbers at each place of each block, in the layout KBNHC."""
        keys = [zlib.crc32(f"{number} {layer} {block}".encode()) for block in blocks]
        odd, more = (self.gpu.numbers(each)[:, None] for each in ([key % 32768 * 2 + 1 for key in keys], [key >> 15 for key in keys]))
        numbers = (self.places * odd + more) % 65536 - 32768
        return self.gpu.small(numbers).reshape(len(keys), *self.block).swapaxes(0, 1)

    def kv_of(self, number):
        return [self.kv(number, layer, range(self.blocks)) for layer in range(self.layers)]

    def pages(self, count, new=None):
        """A tensor for each layer."""
        return [(new or self.gpu.new)((2, count, *self.block[1:])) for _ in range(self.layers)]

    def rate(self, took):
        return f"{self.bytes / took / 1e9:.1f} GB/s"

    # --- tiers: what the GPU's pages lose comes back out of the host's memory

    def open_tiers(self, tensors, count, **given):
        return self.cachalot.tier.open("vllm_kbnhc", [self.gpu.given(each) for each in tensors], pages=count, model=MODEL, geometry=self.geometry,
                                       device=DEVICE, stream=self.gpu.stream, **given)

    def compute(self, cache, tensors, number, kv):
        """The pages are written late: what is copied at commit() has to wait."""
        prompt = self.prompt(number)
        with cache.request(prompt) as request:
            start = request.start()
            self.expect(start.cached_tokens == 0, f"prompt {number} is new, and {start.cached_tokens} tokens were found")
            index = self.gpu.numbers(start.pages[:self.blocks])
            self.gpu.delay()
            for tensor, layer in zip(tensors, kv):
                tensor[:, index] = layer
            request.commit(prompt)
        cache.flush(TIMEOUT_S)

    def fetch(self, cache, tensors, number, away, *, late=False):
        """Loads a prompt; after each layer its pages are copied away. Returns what start() said, and seconds until this
        thread had the first layer's turn, and until the GPU had copied all."""
        with cache.request(self.prompt(number)) as request:
            request.wait_ready(TIMEOUT_S)
            began = time.perf_counter()
            start = request.start()
            for layer, (tensor, kept) in enumerate(zip(tensors, away)):
                request.wait_layer(layer)
                if layer == 0:
                    first = time.perf_counter() - began
                    index = self.gpu.numbers(start.pages[:self.blocks])  # a copy, which may wait for others
                    if late:
                        self.gpu.delay()
                self.gpu.copy_away(kept, tensor, index)
            if not late:
                self.gpu.wait()
            return start, first, time.perf_counter() - began

    def compare(self, away, kv, words):
        bad = [layer for layer, (one, two) in enumerate(zip(away, kv)) if not self.gpu.equal(one, two)]
        self.expect(not bad, f"{words}: other bytes in layers {bad}")

    def tiers(self):
        """L1 has room for one prompt, so that each one that is loaded takes the pages of the one before."""
        prompts, count = range(4), self.blocks + 8
        tensors, wanted = self.pages(count), self.blocks * self.tokens
        with self.open_tiers(tensors, count, host_ratio=4.5) as cache:
            kv = [self.kv_of(number) for number in prompts]
            away = [self.pages(self.blocks) for _ in prompts]
            for number in prompts:
                self.compute(cache, tensors, number, kv[number])
            seen = []
            for number in (*prompts, *prompts):
                self.gpu.wait()
                start, *took = self.fetch(cache, tensors, number, away[number])
                seen.append(took)
                self.expect((start.cached_tokens, start.host_tokens) == (wanted, wanted), f"tiers: prompt {number}, {wanted} tokens: {start[:4]}")
                self.compare(away[number], kv[number], f"tiers: prompt {number}")
                for kept in away[number]:
                    kept[:] = 0
            # Now the next prompt is started while the pages of the one before are still to be copied away.
            for number in prompts:
                self.fetch(cache, tensors, number, away[number], late=True)
            for number in prompts:
                self.compare(away[number], kv[number], f"tiers: prompt {number}, and the next one began early")
        first, whole = (min(each) for each in zip(*seen))
        del away, kv
        plain = self.gpu.plain_seconds(self.bytes)
        self.say(f"tiers: {self.bytes / 1e6:.0f} MB from L2 to L1 and away in {whole * 1e3:.2f} ms: {self.rate(whole)}; the thread went on after "
                 f"{first * 1e3:.2f} ms; one plain copy {plain * 1e3:.2f} ms: {self.rate(plain)}")

    def pool(self):
        """What one engine has computed comes to another one out of the pool."""
        prompts, count, wanted = range(2), self.blocks + 8, self.blocks * self.tokens
        path = f"/dev/shm/cachalot-python-on-gpu-{os.getpid()}"
        # Half of L2 is the most that fetches may take.
        options = {"pool": path, "host_ratio": 3, "write_queue": "4GiB", "prefetch_policy": "wait_complete", "prefetch_threshold": self.tokens}
        with self.cachalot.EmbeddedKeeper(pool=path, block_bytes=self.geometry.block_bytes, capacity_blocks=2 * self.blocks + 64):
            kv, one, two = [self.kv_of(number) for number in prompts], self.pages(count), self.pages(count)
            with self.open_tiers(one, count, **options) as cache:
                for number in prompts:
                    self.compute(cache, one, number, kv[number])
            away = self.pages(self.blocks)
            with self.open_tiers(two, count, **options) as cache:
                for number in prompts:
                    began = time.perf_counter()
                    start, *_ = self.fetch(cache, two, number, away)
                    took = time.perf_counter() - began
                    self.expect((start.cached_tokens, start.shared_tokens) == (wanted, wanted), f"pool: prompt {number}, {wanted} tokens: {start[:4]}")
                    self.compare(away, kv[number], f"pool: prompt {number}")
                    self.say(f"pool: {self.bytes / 1e6:.0f} MB from the pool by L2 to L1 in {took * 1e3:.1f} ms: {self.rate(took)}")

    # --- hand-overs between ranks

    def hand_over(self):
        for listen in ("tcp:127.0.0.1:0", "auto"):
            for giver, taker in (("gpu", "cpu"), ("cpu", "gpu"), ("gpu", "gpu")):
                name = f"hand-over by {listen.partition(':')[0]}, {giver} to {taker}"
                self.attempt(name, self.hand_over_by, name, listen, giver, taker)

    def rank(self, instance, where, tensors, listen):
        on_gpu = {"device": DEVICE, "stream": self.gpu.stream} if where == "gpu" else {}
        given = [self.gpu.given(each) for each in tensors] if on_gpu else tensors
        return contextlib.closing(self.cachalot.TransferRank(instance=instance, model=MODEL, geometry=self.geometry, layout="vllm_kbnhc", tensors=given,
                                                             pages=self.blocks, listen=[listen], **on_gpu))

    def hand_over_by(self, name, listen, giver, taker):
        there, here = (self.pages(self.blocks, self.gpu.new if where == "gpu" else self.gpu.new_here) for where in (giver, taker))
        backwards, took = list(range(self.blocks))[::-1], []
        with self.rank("giver", giver, there, listen) as gives, self.rank("taker", taker, here, listen) as takes:
            for number in range(3):
                kv = self.kv_of(number)
                for each in here:
                    each[:] = 0
                self.gpu.wait()
                is_late = number == 2  # the offer is made before the GPU has computed it
                if is_late:
                    self.gpu.delay()
                for tensor, layer in zip(there, kv):
                    self.gpu.copy(tensor, layer)
                if not is_late:
                    self.gpu.wait()
                offer = self.cachalot.random_offer_id()
                began = time.perf_counter()
                gives.offer(offer, list(range(self.blocks)), tokens=self.blocks * self.tokens, deadline_s=TIMEOUT_S)
                ask = takes.ask({"instance": "giver", "id": offer, "tokens": self.blocks * self.tokens, "tp_size": 1, "pp_size": 1,
                                 "addresses": [gives.addresses]}, backwards, deadline_s=TIMEOUT_S)
                status = takes.wait(ask, timeout_s=TIMEOUT_S)
                if not is_late:
                    took.append(time.perf_counter() - began)
                takes.release(ask)
                if status["state"] != "done":
                    return self.expect(False, f"{name}: {status['state']}: {status['error']}")
                until = time.monotonic() + TIMEOUT_S
                while offer not in (ended_id for ended_id, _ in gives.ended_offers()):  # its pages are not to be written before
                    if time.monotonic() > until:
                        return self.expect(False, f"{name}: the offer of prompt {number} does not end")
                    time.sleep(0.001)
                self.gpu.wait()
                self.compare(here, (self.kv(number, layer, backwards) for layer in range(self.layers)), f"{name}: prompt {number}")
        self.say(f"{name}: {self.bytes / 1e6:.0f} MB in {min(took) * 1e3:.1f} ms: {self.rate(min(took))}")

    # --- layouts: stored from one, loaded into another

    def layouts(self):
        """Blocks of each kind of cache, loaded into each kind."""
        count = self.blocks = 16
        path = f"/dev/shm/cachalot-python-on-gpu-{os.getpid()}"
        with self.cachalot.EmbeddedKeeper(pool=path, block_bytes=self.geometry.block_bytes, capacity_blocks=16 * count), \
             self.cachalot.Client(pool=path, model=MODEL, geometry=self.geometry) as client:
            caches = {}
            for name, make in (("KBNHC", self.kbnhc), ("KBNHC in memory", self.kbnhc_here), ("LBNHC", self.lbnhc), ("strides", self.strided)):
                self.attempt(f"layouts: {name}", lambda name=name, make=make: caches.update({name: make(client, count)}))
            pairs = [(one, two) for one in caches for two in caches if one != two]
            for number, (one, two) in enumerate(pairs):
                self.attempt(f"layouts: {one} to {two}", self.store_and_load, client, number, (one, *caches[one]), (two, *caches[two]))
        self.say(f"layouts: {len(pairs)} ways from one of {', '.join(caches)} to another")

    def register(self, client, layout, arrays, count, **more):
        return client.register_cache(layout, [self.gpu.given(each) for each in arrays], pages=count, device=DEVICE, stream=self.gpu.stream, **more)

    # Each returns the cache, and for each layer its keys and values as (block, token, head, number).

    def kbnhc(self, client, count):
        tensors = self.pages(count)
        return self.register(client, "vllm_kbnhc", tensors, count), tensors

    def kbnhc_here(self, client, count):
        tensors = self.pages(count, self.gpu.new_here)
        return client.register_cache("vllm_kbnhc", tensors, pages=count), tensors

    def halves(self, whole):
        dim = self.block[-1]
        return [(layer[..., :dim], layer[..., dim:2 * dim]) for layer in whole]

    def lbnhc(self, client, count):
        _, tokens, heads, dim = self.block
        whole = self.gpu.new((self.layers, count, tokens, heads, 2 * dim))
        return self.register(client, "vllm_lbnhc", [whole], count), self.halves(whole)

    def strided(self, client, count):
        """As LBNHC, with a gap after each head."""
        _, tokens, heads, dim = self.block
        row = 3 * dim
        whole = self.gpu.new((self.layers, count, tokens, heads, row))
        head = 2 * row
        steps = {"head": head, "token": heads * head, "page": tokens * heads * head, "layer": count * tokens * heads * head}
        parts = tuple(self.cachalot.PartStrides(offset=offset, **steps) for offset in (0, 2 * dim))
        return self.register(client, None, [whole], count, strides=parts), [*self.halves(whole), whole[..., 2 * dim:]]

    def store_and_load(self, client, number, source, target):
        (one, stored, kept), (two, loaded, taken) = source, target
        count, words = self.blocks, f"layouts: {one} to {two}"
        for layer in range(self.layers):
            for part, values in zip(kept[layer], self.kv(number, layer, range(count))):
                self.gpu.copy(part, values)
            for part in taken[layer]:
                part[:] = 0
        hashes = client.hash_tokens(self.prompt(number)[:-1])
        self.gpu.wait()  # of memory on the host, too
        written = client.store(stored, hashes, list(range(count))).written
        self.expect(written == count, f"{words}: {written} of {count} blocks were stored")
        backwards = list(range(count))[::-1]
        found = client.load(loaded, hashes, backwards)
        self.expect(found == count, f"{words}: {found} of {count} blocks were loaded")
        for part, what in enumerate(("keys", "values")):
            self.compare((layer[part] for layer in taken[:self.layers]), (self.kv(number, layer, backwards)[part] for layer in range(self.layers)), f"{words}: {what}")
        for gap in (*kept[self.layers:], *taken[self.layers:]):
            self.expect(not bool(gap.any()), f"{words}: the gaps were written")


PARTS = {"tiers": Part.tiers, "pool": Part.pool, "hand-over": Part.hand_over, "layouts": Part.layouts}


def be_part(name, options):
    part = Part(options.emulated, options.blocks)
    part.attempt(name, PARTS[name], part)
    return 0 if part.is_right else 1


def check():
    import torch

    import cachalot
    import cachalot.tier

    cachalot.tier.options()
    gpu = torch.cuda.get_device_name(DEVICE) if torch.cuda.is_available() else "no GPU"
    print(f"torch {torch.__version__}, cachalot {cachalot.__version__}: imported; {gpu}")


# --- the run


class Run:
    def __init__(self, options, environment, place):
        self.options, self.environment, self.place = options, environment, place
        self.deadline = time.monotonic() + options.seconds - 3
        options.results.mkdir(parents=True, exist_ok=True)
        self.table = open(options.results / "table.txt", "w", encoding="utf-8")
        self.is_right = True

    def say(self, line):
        print(line, flush=True)
        self.table.write(line + "\n")
        self.table.flush()
        self.is_right = self.is_right and not line.startswith("WRONG: ")

    def child(self, name, *arguments):
        """This script once more, in the packed site: its lines are the table's."""
        began, log = time.monotonic(), self.options.results / f"{name}.log"
        out = self.place / f"{name}.out"
        is_late = False
        with open(log, "w", encoding="utf-8") as errors, open(out, "w", encoding="utf-8") as lines:
            process = subprocess.Popen([sys.executable, str(HERE), *arguments], env=self.environment, stdout=lines, stderr=errors, start_new_session=True)
            try:
                process.wait(max(0.1, self.deadline - began))
            except subprocess.TimeoutExpired:
                is_late = True
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                for shared in Path("/dev/shm").glob(f"cachalot-python-on-gpu-{process.pid}*"):
                    shared.unlink()
        lines = out.read_text(errors="replace").splitlines()
        for line in lines:
            self.say(line)
        if is_late:
            self.say(f"WRONG: {name}: not done in time (--seconds)")
        elif process.returncode != 0 and not any(line.startswith("WRONG: ") for line in lines):
            self.say(f"WRONG: {name}: ended with {process.returncode}: {log.read_text(errors='replace')[-1500:].strip()}")
        self.say(f"{name}: {time.monotonic() - began:.1f} s")

    def finish(self):
        if self.is_right:
            self.say("all right")
        self.table.close()
        return 0 if self.is_right else 1


def parts(text):
    chosen = text.split(",")
    unknown = [each for each in chosen if each not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"'{unknown[0]}'; expected some of {', '.join(PARTS)}")
    return chosen


def blocks(text):
    if not text.isascii() or not text.isdigit() or not 2 <= int(text) <= 480:  # the bounce memory of a hand-over is 1 GiB
        raise argparse.ArgumentTypeError(f"'{text}'; expected 2 to 480")
    return int(text)


def options_of_command_line():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("results", nargs="?", type=Path, default=Path("python-results"))
    parser.add_argument("--seconds", type=seconds, default=150)
    parser.add_argument("--blocks", type=blocks, default=300, help="of a prompt")
    parser.add_argument("--only", type=parts, default=list(PARTS))
    parser.add_argument("--check", action="store_true", help="needs no GPU: import everything")
    parser.add_argument("--emulated", metavar="LIBCUDA", help="an emulated driver; NumPy instead of PyTorch, and a small shape")
    parser.add_argument("--part", choices=(*PARTS, "check"), help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    options = options_of_command_line()
    if options.part == "check":
        return check()
    if options.part:
        return be_part(options.part, options)
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        run = Run(options, packed_environment(Path(folder)), Path(folder))
        run.deadline -= time.monotonic() - began
        signal.signal(signal.SIGTERM, ended)  # the results so far are written
        more = ["--blocks", str(options.blocks), *(["--emulated", options.emulated] if options.emulated else [])]
        try:
            for name in [*([] if options.emulated else ["check"]), *([] if options.check else options.only)]:
                run.child(name, "--part", name, *more)
        except Late as error:
            run.say(f"WRONG: {error}")
        return run.finish()


if __name__ == "__main__":
    sys.exit(main())
