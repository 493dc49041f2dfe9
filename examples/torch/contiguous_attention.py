"""Compares decode attention over contiguous KV ranges and over paged KV, with PyTorch's scaled_dot_product_attention and a
Triton kernel: time per token, memory waits, and whether all results agree.

    python examples/torch/contiguous_attention.py                       # cuda:0 if there is a GPU, else this machine's memory
    python examples/torch/contiguous_attention.py --requests 16 --prompt 16384 --json attention.json

KV and queries are random: only the access pattern counts. Needs PyTorch 2.5 or later and libcachalot.so (in the package or by
CACHALOT_LIBRARY). Triton kernels run on a GPU, or with TRITON_INTERPRET=1. Exit code 1: results differ; 3: a requirement is missing.

ways: range_each    SDPA over a request's range in place, one call per request and layer
      range_batch   one call per layer: ranges at evenly spaced addresses form one tensor
      paged_each, paged_batch   index_select gathers pages from random places, then the same SDPA; timed together
      gather        only the gathers of paged_batch
      triton_range, triton_paged   one flash-decoding kernel; it finds a token by a product, or by a page table
"""

import argparse
import importlib.util
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path

# The error of a result is its distance from the reference in float64, by heads: |out - exact| / |exact|. Rounding to bfloat16 (2^-9
# of each probability and each result) makes some 2^-9 of it; another token's row in the place of one of n makes more than sqrt(2/n).
TOLERANCE = 2**-7


def refuse(message):
    print(f"contiguous_attention: {message}", file=sys.stderr)
    sys.exit(3)


try:
    import torch
    from torch.nn.functional import scaled_dot_product_attention
except ImportError:
    refuse("torch is not installed, expected PyTorch 2.5 or later")
try:
    from cachalot import errors, vmm
except ImportError as error:
    refuse(f"{error}; expected the package cachalot, or its folder on PYTHONPATH")


class Contiguous:
    """The requests' KV in ranges of a Vmm, and tensors over them."""

    def __init__(self, options, layout):
        row = options.kv_heads * options.head_dim * 2
        self.options = options
        self.memory = vmm.open(layers=options.layers, part_bytes=(row, row), max_tokens=options.most, device=options.memory, layout=layout,
                               chunk_bytes=options.chunk_bytes, ready_bytes=options.ready_bytes, copy=self.copy if options.is_cuda else None)
        self.ranges = [self.memory.reserve(tokens) for tokens in options.lengths]
        self.tensors = [self.tensor(each) for each in self.ranges]

    def tensor(self, held):
        """(layers, 2, tokens, kv_heads, head_dim) over the range's addresses, mapped or not."""
        rows = held.all_rows((self.options.kv_heads, self.options.head_dim), "<i2")
        return self.as_tensor(rows).view(torch.bfloat16)

    def as_tensor(self, rows):
        if self.options.is_cuda:
            return torch.as_tensor(rows, device=self.options.device)
        import numpy

        return torch.from_numpy(numpy.asarray(rows))

    def copy(self, to, source, count):
        """Copies the tail of a shared prefix."""
        whole = [vmm.Rows(self.memory, {"data": (at, False), "shape": (count,), "strides": (1,), "typestr": "|u1", "version": 3}, True)
                 for at in (to, source)]
        self.as_tensor(whole[0]).copy_(self.as_tensor(whole[1]))
        torch.cuda.synchronize()

    def batch(self):
        """One tensor (requests, layers, 2, tokens, ...) over all ranges, and their order; None if no stride fits."""
        order = sorted(range(len(self.ranges)), key=lambda i: self.ranges[i].base)
        bases = [self.ranges[i].base for i in order]
        steps = {b - a for a, b in zip(bases, bases[1:])}
        if len(steps) > 1 or len(set(self.options.lengths)) > 1:
            return None, order
        first = self.tensors[order[0]]
        step = steps.pop() // 2 if steps else 0
        rows = self.ranges[order[0]].all_rows((self.options.kv_heads, self.options.head_dim), "<i2")
        shown = dict(getattr(rows, "__cuda_array_interface__", None) or rows.__array_interface__)
        shown["shape"], shown["strides"] = (len(order), *shown["shape"]), (step * 2 or 2, *shown["strides"])
        whole = self.as_tensor(vmm.Rows(self, shown, self.options.is_cuda)).view(torch.bfloat16)
        assert whole[0].data_ptr() == first.data_ptr()
        return whole, order


class Paged:
    """The same KV in pages at random places, as in a paged engine, and the page tables."""

    def __init__(self, options):
        self.options, page = options, options.page_tokens
        most = -(-options.most // page)
        places = torch.randperm(most * len(options.lengths), generator=torch.Generator().manual_seed(options.seed))
        self.table = places.view(len(options.lengths), most).to(device=options.device, dtype=torch.int32)
        heads = (options.kv_heads, options.head_dim)
        self.cache = torch.zeros(options.layers, 2, places.numel(), page, *heads, dtype=torch.bfloat16, device=options.device)
        self.buffer = torch.empty(2, len(options.lengths) * most, page, *heads, dtype=torch.bfloat16, device=options.device)

    def write(self, request, first, rows, table=None):
        """rows: (layers, 2, tokens, kv_heads, head_dim)."""
        at = torch.arange(first, first + rows.shape[2], device=self.options.device)
        table = self.table if table is None else table
        self.cache[:, :, table[request, at // self.options.page_tokens].long(), at % self.options.page_tokens] = rows

    def places(self, requests, tokens, table=None):
        """The pages of `tokens` tokens of these requests, one after the other; computed once per step, as an engine does."""
        table = self.table if table is None else table
        return table[requests, :-(-tokens // self.options.page_tokens)].reshape(-1)

    def gather(self, layer, places, tokens):
        """Keys and values, each (requests, kv_heads, tokens, head_dim), of the gathered pages."""
        out = self.buffer[:, :places.numel()]
        for part in range(2):
            torch.index_select(self.cache[layer, part], 0, places, out=out[part])
        pages = -(-tokens // self.options.page_tokens)
        return out.view(2, -1, pages * self.options.page_tokens, *out.shape[3:])[:, :, :tokens].transpose(2, 3).unbind(0)


def attend(query, keys, values):
    """query (requests, heads, dim), keys and values (requests, kv_heads, tokens, dim), any strides: (requests, heads, dim)."""
    return scaled_dot_product_attention(query.unsqueeze(2), keys, values, enable_gqa=True).squeeze(2)


def by_layers(kv, tokens):
    """(requests, layers, 2, tokens, kv_heads, dim) as a pair (keys, values) for attend() of each layer; nothing is copied."""
    return [layer.unbind(0) for layer in kv[:, :, :, :tokens].permute(1, 2, 0, 4, 3, 5).unbind(0)]


def exact(query, keys, values):
    """The same in float64, without SDPA."""
    query, keys, values = query.double(), keys.double(), values.double()
    requests, heads, dim = query.shape
    grouped = query.view(requests, keys.shape[2], -1, dim)
    scores = torch.einsum("bkgd,btkd->bkgt", grouped, keys) * dim**-0.5
    return torch.einsum("bkgt,btkd->bkgd", scores.softmax(-1), values).reshape(requests, heads, dim)


def distance(out, reference):
    """The largest error of all heads; NaN counts as the largest."""
    error = (out.double() - reference).norm(dim=-1) / reference.norm(dim=-1)
    return float("inf") if error.isnan().any() else error.max().item()


def load_kernels(options):
    """The kernels of decode_kernels.py, or the reason why they cannot run."""
    if options.triton == "off":
        return None, "off"
    if not options.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        return None, "no GPU, and TRITON_INTERPRET is not 1"
    try:
        spec = importlib.util.spec_from_file_location("decode_kernels", Path(__file__).with_name("decode_kernels.py"))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.probe(options.device)
        return module, None
    except Exception as error:  # of Triton's own kinds; the other ways do without it
        return None, f"{type(error).__name__}: {error}".partition("\n")[0]


class Run:
    """Decode steps of one layout, in which every way answers the same queries."""

    def __init__(self, options, layout, kernels):
        self.options, self.layout = options, layout
        self.contiguous, self.paged = Contiguous(options, layout), Paged(options)
        self.lengths = list(options.lengths)
        self.fill()
        self.whole, order = self.contiguous.batch()
        self.order = torch.tensor(order, device=options.device)
        self.ways = {"range_each": self.range_each, "paged_each": self.paged_each}
        if self.whole is not None:
            self.ways.update(range_batch=self.range_batch, paged_batch=self.paged_batch, gather=self.gather)
        if kernels:
            self.decode = kernels.Decode(options, self.contiguous, self.paged)
            self.ways.update(triton_range=lambda q: self.decode(q, self.lengths, False), triton_paged=lambda q: self.decode(q, self.lengths, True))
        self.milliseconds = {way: [] for way in self.ways}
        self.errors, self.growth, self.wrong = {way: 0.0 for way in self.ways if way != "gather"}, [], []
        self.same = {}

    def random(self, *shape):
        return torch.randn(shape, device=self.options.device, dtype=torch.bfloat16)

    def fill(self):
        for i, tokens in enumerate(self.lengths):
            for first in range(0, tokens, 4096):
                o, count = self.options, min(4096, tokens - first)
                rows = self.random(o.layers, 2, count, o.kv_heads, o.head_dim)
                self.contiguous.tensors[i][:, :, first:first + count] = rows
                self.paged.write(i, first, rows)

    # --- the ways: queries (layers, requests, heads, dim) to results of that shape

    def range_each(self, queries):
        views = [by_layers(kv.unsqueeze(0), n) for kv, n in zip(self.contiguous.tensors, self.lengths)]
        return [[attend(q[i:i + 1], *view[layer]) for i, view in enumerate(views)] for layer, q in enumerate(queries)]

    def paged_each(self, queries, table=None):
        places = [self.paged.places(slice(i, i + 1), n, table) for i, n in enumerate(self.lengths)]
        return [[attend(q[i:i + 1], *self.paged.gather(layer, at, n)) for i, (at, n) in enumerate(zip(places, self.lengths))]
                for layer, q in enumerate(queries)]

    def range_batch(self, queries):
        views = by_layers(self.whole, self.lengths[0])
        return [[attend(q, *view)] for q, view in zip(queries[:, self.order], views)]

    def paged_batch(self, queries):
        places = self.paged.places(self.order, self.lengths[0])
        return [[attend(q, *self.paged.gather(layer, places, self.lengths[0]))] for layer, q in enumerate(queries[:, self.order])]

    def gather(self, queries):
        places = self.paged.places(self.order, self.lengths[0])
        for layer in range(len(queries)):
            self.paged.gather(layer, places, self.lengths[0])

    # --- a step

    def whole_result(self, way, out):
        """One tensor (layers, requests, heads, dim), in the order of the requests."""
        out = torch.stack([torch.cat(list(layer)) for layer in out])
        if way.endswith("_batch"):
            out = out[:, self.order.argsort()]
        return out

    def grow(self):
        """Adds a token to every request (its memory was mapped during the previous step), then prepares the next step's memory."""
        begin = time.perf_counter()
        for held, n in zip(self.contiguous.ranges, self.lengths):
            held.commit(n + 1)
        spent = time.perf_counter() - begin
        o = self.options
        for i, n in enumerate(self.lengths):
            row = self.random(o.layers, 2, 1, o.kv_heads, o.head_dim)
            self.contiguous.tensors[i][:, :, n:n + 1] = row
            self.paged.write(i, n, row)
            self.lengths[i] = n + 1
        begin = time.perf_counter()
        for held, n in zip(self.contiguous.ranges, self.lengths):
            held.prepare(min(n + 1, o.most))
        self.growth.append((spent + time.perf_counter() - begin) * 1e6 / len(self.lengths))

    def step(self, number, is_timed=True, is_checked=False):
        self.grow()
        o = self.options
        queries = self.random(o.layers, len(self.lengths), o.heads, o.head_dim)
        names = list(self.ways)
        names = names[number % len(names):] + names[:number % len(names)]
        results = {}
        for way in names:
            o.synchronize()
            begin = time.perf_counter()
            out = self.ways[way](queries)
            o.synchronize()
            if is_timed:
                self.milliseconds[way].append((time.perf_counter() - begin) * 1e3)
            if is_checked and way != "gather":
                results[way] = self.whole_result(way, out)
        if is_checked:
            self.check(queries, results)

    def check(self, queries, results):
        """Compares every way with float64, and the same call on the same numbers bit by bit."""
        o = self.options
        for layer in sorted({0, o.layers // 2, o.layers - 1}):
            for i, n in enumerate(self.lengths):
                # Reads the pages one by one, independently of all ways.
                pages = self.paged.table[i, :-(-n // o.page_tokens)].long()
                keys, values = self.paged.cache[layer][:, pages].flatten(1, 2)[:, None, :n]
                reference = exact(queries[layer, i:i + 1], keys, values)
                for way, out in results.items():
                    self.errors[way] = max(self.errors[way], distance(out[layer, i:i + 1], reference))
        for one, other in (("range_each", "paged_each"), ("range_batch", "paged_batch"), ("triton_range", "triton_paged")):
            if one in results:
                self.same[one] = self.same.get(one, True) and torch.equal(results[one], results[other])
        for way, error in self.errors.items():
            if not error <= TOLERANCE:
                self.wrong.append(f"{way}: error {error:.5f} of the exact result, expected at most {TOLERANCE:.5f}")

    def notice_a_wrong_page(self):
        """Whether the check detects a wrong page and a changed row."""
        o, n = self.options, self.lengths[0]
        queries = self.random(o.layers, len(self.lengths), o.heads, o.head_dim)
        keys, values = self.paged.gather(0, self.paged.places(slice(0, 1), n), n)
        reference = exact(queries[0, :1], keys.transpose(1, 2), values.transpose(1, 2))
        table = self.paged.table.clone()
        table[0, 0], table[0, -(-n // o.page_tokens) - 1] = self.paged.table[-1, -1], table[0, 0].item()
        page = distance(self.paged_each(queries, table)[0][0], reference)
        kept = self.contiguous.tensors[0][0, :, n // 2].clone()
        self.contiguous.tensors[0][0, :, n // 2] = self.random(*kept.shape)
        row = distance(self.range_each(queries)[0][0], reference)
        self.contiguous.tensors[0][0, :, n // 2] = kept
        for what, error in (("page", page), ("row", row)):
            if error <= TOLERANCE:
                self.wrong.append(f"a wrong {what} of {n} tokens makes an error of {error:.5f} only: the check would not see it")
        return page, row

    def share(self):
        """A second request shares the first one's prompt chunks; a third one has a copy."""
        o, source = self.options, self.contiguous.ranges[0]
        tokens = self.lengths[0] - 1
        queries = self.random(o.layers, 1, o.heads, o.head_dim)

        def answer(kv, n):
            return torch.stack([attend(q, *view) for q, view in zip(queries, by_layers(kv.unsqueeze(0), n))])

        before = answer(self.contiguous.tensors[0], self.lengths[0])
        begin = time.perf_counter()
        shared = self.contiguous.memory.reserve()
        count = shared.alias(source, tokens)
        spent = (time.perf_counter() - begin) * 1e3
        copied = self.contiguous.memory.reserve(count + 8)
        shared.commit(count + 8)
        saved = self.contiguous.memory.statistics().shared_bytes
        tensors = [self.contiguous.tensor(each) for each in (shared, copied)]
        tensors[1][:, :, :count] = self.contiguous.tensors[0][:, :, :count]
        rows = self.random(o.layers, 2, 8, o.kv_heads, o.head_dim)
        for tensor in tensors:
            tensor[:, :, count:count + 8] = rows
        if not torch.equal(answer(tensors[0], count + 8), answer(tensors[1], count + 8)):
            self.wrong.append("a shared prefix and a copy of it give different results")
        if not torch.equal(before, answer(self.contiguous.tensors[0], self.lengths[0])):
            self.wrong.append("the request whose prefix was shared gives another result than before")
        if count == 0:
            self.wrong.append(f"nothing of {tokens} tokens was shared")
        o.synchronize()
        for each in (shared, copied):
            each.release()
        return {"asked_tokens": tokens, "shared_tokens": count, "shared_bytes": saved, "alias_ms": spent}

    def go(self):
        o = self.options
        self.step(0, is_timed=False, is_checked=True)  # kernels are compiled in it
        for number in range(3):
            self.step(number, is_timed=False)
        before = self.contiguous.memory.statistics()
        self.growth.clear()
        for number in range(o.steps):
            self.step(number, is_checked=number == o.steps - 1)
        after = self.contiguous.memory.statistics()
        page, row = self.notice_a_wrong_page()
        sharing = self.share()
        result = {"ways": self.figures(), "same_bits": self.same, "wrong_page_error": page, "wrong_row_error": row, "sharing": sharing,
                  "growth_us": {"median": statistics.median(self.growth), "p99": percentile(self.growth, 0.99)},
                  "waits": after.waits - before.waits, "wait_ns": after.wait_ns - before.wait_ns, "maps": after.maps - before.maps,
                  "used_bytes": after.used_bytes, "wrong": sorted(set(self.wrong)),
                  "row_stride_bytes": self.contiguous.memory.view(0, 0)[1], "is_batched": self.whole is not None}
        o.synchronize()
        self.contiguous.memory.close()
        return result

    def figures(self):
        o = self.options
        kv_bytes = sum(self.lengths) * o.layers * 2 * o.kv_heads * o.head_dim * 2
        out = {}
        for way, all_ms in self.milliseconds.items():
            middle = statistics.median(all_ms)
            out[way] = {"step_ms": middle, "p99_ms": percentile(all_ms, 0.99), "token_us": middle * 1e3 / len(self.lengths),
                        "kv_gb_per_s": kv_bytes / middle / 1e6, "error": self.errors.get(way)}
        return out


def percentile(values, share):
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def print_layout(layout, got, options):
    same = {"range_each": "paged_each", "range_batch": "paged_batch", "triton_range": "triton_paged"}
    print(f"\n{layout}: rows {got['row_stride_bytes']:,} bytes apart")
    print(f"{'way':<14} {'step ms':>9} {'p99 ms':>9} {'us/token':>9} {'KV GB/s':>9} {'error':>9}  the same bits as")
    for way, figures in got["ways"].items():
        error = "" if figures["error"] is None else f"{figures['error']:9.5f}"
        note = f"{same[way]}: {'yes' if got['same_bits'][way] else 'no'}" if way in got["same_bits"] else ""
        print(f"{way:<14} {figures['step_ms']:9.3f} {figures['p99_ms']:9.3f} {figures['token_us']:9.1f} {figures['kv_gb_per_s']:9.1f} {error:>9}  {note}")
    if not got["is_batched"]:
        print("no batch: lengths differ, or no stride leads from range to range")
    growth, sharing = got["growth_us"], got["sharing"]
    print(f"growth: commit and prepare {growth['median']:.1f} us a token (p99 {growth['p99']:.1f}), {got['waits']} waits of {options.steps} steps x "
          f"{len(options.lengths)} requests ({got['wait_ns'] / 1e6:.2f} ms), {got['maps']} maps")
    print(f"a wrong page makes an error of {got['wrong_page_error']:.4f}, a wrong row {got['wrong_row_error']:.4f}; allowed {TOLERANCE:.4f}")
    print(f"prefix: {sharing['shared_tokens']} of {sharing['asked_tokens']} tokens shared in {sharing['alias_ms']:.2f} ms, "
          f"{sharing['shared_bytes'] >> 20} MiB saved; results as of a copy")
    for line in got["wrong"]:
        print(f"WRONG: {line}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0], epilog=__doc__.partition("ways: ")[2],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help='"cuda:N" or "cpu"; where there is a GPU cuda:0')
    parser.add_argument("--layouts", default="per_layer,folded", help="per_layer,folded")
    # Llama-3-8B on a GPU; a small size on a CPU.
    for name, (gpu, cpu, words) in {
            "layers": (32, 2, ""), "heads": (32, 16, ""), "kv_heads": (8, 8, ""), "head_dim": (128, 128, ""), "requests": (16, 2, "fewer on a small GPU"),
            "prompt": (8192, 1015, "tokens before the first step"), "spread": (0, 0, "a prompt has up to so many tokens less"),
            "steps": (64, 16, "decode steps that are timed"), "page_tokens": (16, 16, ""), "chunk_bytes": (0, 0, "0: 2 MiB"),
            "ready_bytes": (256 << 20, 4 << 20, ""), "seed": (1, 1, "")}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"{words} ({gpu}; on a processor {cpu})".strip())
        parser.set_defaults(**{f"_{name}": (gpu, cpu)})
    parser.add_argument("--triton", choices=("auto", "off"), default="auto")
    parser.add_argument("--quick", action="store_true", help="a quarter of the steps and of the prompt")
    parser.add_argument("--json", metavar="FILE", help="figures for programs")
    options = parser.parse_args()
    device = options.device or ("cuda:0" if torch.cuda.is_available() else "cpu")
    options.is_cuda = device.startswith("cuda")
    if options.is_cuda and not torch.cuda.is_available():
        refuse("torch finds no GPU, expected one")
    index, is_given = int(device.partition(":")[2] or 0), options.requests is not None
    for name in [key[1:] for key in vars(options) if key.startswith("_")]:
        default = getattr(options, f"_{name}")[0 if options.is_cuda else 1]
        if getattr(options, name) is None:
            setattr(options, name, default)
    if options.is_cuda and not is_given:  # ranges and pages have 1 GiB each a request, and a prefix is copied
        options.requests = max(1, min(options.requests, torch.cuda.get_device_properties(index).total_memory // (5 << 30)))
    if options.quick:
        options.steps, options.prompt = max(options.steps // 4, 2), max(options.prompt // 4, 2)
    options.device = f"cuda:{index}" if options.is_cuda else "cpu"
    options.memory = f"cuda:{index}" if options.is_cuda else "memfd"
    if min(options.layers, options.heads, options.kv_heads, options.requests, options.steps, options.page_tokens) < 1 or options.prompt < 2:
        parser.error("counts are at least 1, a prompt has 2 tokens")
    if options.heads % options.kv_heads:
        parser.error(f"--heads {options.heads}, expected a multiple of the {options.kv_heads} kv heads")
    if not 0 <= options.spread < options.prompt - 1:
        parser.error(f"--spread {options.spread}, expected less than the prompt's {options.prompt} tokens")
    lengths = random.Random(options.seed)
    options.lengths = [options.prompt - lengths.randint(0, options.spread) for _ in range(options.requests)]
    options.most = options.prompt + options.steps + 16
    return options


def choose_backend(options):
    """Flash attention on a GPU, so that all ways use one kernel without planning per length; otherwise PyTorch's choice."""
    import contextlib

    options.backend, options.backend_name = contextlib.nullcontext, "PyTorch's choice"
    if not options.is_cuda:
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def flash():
        return sdpa_kernel(SDPBackend.FLASH_ATTENTION)

    row = torch.randn(1, options.kv_heads, 8, options.head_dim, device=options.device, dtype=torch.bfloat16)
    query = torch.randn(1, options.heads, 1, options.head_dim, device=options.device, dtype=torch.bfloat16)
    try:
        with flash():
            scaled_dot_product_attention(query, row, row, enable_gqa=True)
        options.backend, options.backend_name = flash, "flash"
    except RuntimeError:
        pass


def main():
    options = parse()
    torch.manual_seed(options.seed)
    options.synchronize = torch.cuda.synchronize if options.is_cuda else lambda: None
    choose_backend(options)
    kernels, why = load_kernels(options)
    name = torch.cuda.get_device_name(options.device) if options.is_cuda else "this machine's memory"
    print(f"{name}, torch {torch.__version__}, SDPA by {options.backend_name}: {options.layers} layers, {options.heads} heads, {options.kv_heads} kv heads of "
          f"{options.head_dim}, {options.requests} requests of {min(options.lengths)} to {max(options.lengths)} tokens, pages of {options.page_tokens}")
    if kernels is None:
        print(f"without kernels in Triton: {why}")
    result = {"device": name, "torch": torch.__version__, "sdpa": options.backend_name, "triton": why or "yes", "tolerance": TOLERANCE, "layouts": {},
              **{key: getattr(options, key) for key in ("layers", "heads", "kv_heads", "head_dim", "lengths", "steps", "page_tokens", "seed")}}
    failed = False
    for layout in options.layouts.split(","):
        try:
            with options.backend():
                got = Run(options, layout, kernels).go()
        except errors.UnsupportedError as error:
            refuse(str(error))
        result["layouts"][layout] = got
        print_layout(layout, got, options)
        failed = failed or bool(got["wrong"])
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
