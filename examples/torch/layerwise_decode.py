"""Decodes prompts with a small decoder whose KV is layer-wise: of its layers `x` stay in device memory, the others go to host
memory while the next layer is computed and come back one layer ahead. Compares the tokens with those of ordinary KV.

    python examples/torch/layerwise_decode.py                              # a table over x
    python examples/torch/layerwise_decode.py --resident 0,4 --prompts 1500,700 --json layerwise.json

The weights are random. "Device memory" is memory of this machine that is mapped and unmapped; a second thread copies, so a second
core should be idle. Needs PyTorch 2.4 or later, NumPy and libcachalot.so (in the package or by CACHALOT_LIBRARY). Exit code 1:
tokens differ, or KV took more than (x + 2) / layers of all; 3: a requirement is missing.

columns: device KV   the most that was mapped, and its share of all layers
         first       time from the prompt to its first token, mean of the prompts
         token       time of a decode step, which makes a token of each prompt
         copies      busy time of the copying thread (copies, map, unmap) in a prefill and in a decode step
         hidden      share of it for which the computation did not wait
"""

import argparse
import contextlib
import ctypes
import json
import os
import statistics
import sys
import time


def refuse(message):
    print(f"layerwise_decode: {message}", file=sys.stderr)
    sys.exit(3)


try:
    import numpy
    import torch
    from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu
except ImportError as error:
    refuse(f"{error}; expected PyTorch 2.4 or later and NumPy")
try:
    from cachalot import errors, layerwise
except ImportError as error:
    refuse(f"{error}; expected the package cachalot, or its folder on PYTHONPATH")


class Decoder:
    """A decoder as Llama's: RMS norm, rotary positions, grouped-query attention, gated feed-forward."""

    def __init__(self, options):
        self.options = options
        width, head, inner = options.width, options.head_dim, options.inner
        generator = torch.Generator().manual_seed(options.seed)

        def weights(out, given):
            return torch.randn(out, given, generator=generator) * given**-0.5

        self.embedding = torch.randn(options.vocabulary, width, generator=generator) * 0.1
        self.head = weights(options.vocabulary, width)
        self.layers = [{"q": weights(options.heads * head, width), "k": weights(options.kv_heads * head, width), "v": weights(options.kv_heads * head, width),
                        "o": weights(width, options.heads * head), "gate": weights(inner, width), "up": weights(inner, width), "down": weights(width, inner)}
                       for _ in range(options.layers)]
        self.frequencies = 10000.0 ** (-torch.arange(0, head, 2) / head)

    def rotate(self, rows, positions):
        angles = positions[:, None, None] * self.frequencies
        even, odd = rows[..., 0::2], rows[..., 1::2]
        return torch.stack((even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()), -1).flatten(-2)

    def step(self, kv, tokens):
        """tokens: {request: its next tokens}. Returns {request: logits of its last token}."""
        o = self.options
        counts = {request: len(new) for request, new in tokens.items()}
        with kv.step(counts):
            before = {request: kv.tokens(request) - count for request, count in counts.items()}
            x = self.embedding[torch.cat(list(tokens.values()))]
            positions = torch.cat([torch.arange(before[request], before[request] + count) for request, count in counts.items()])
            for number, layer in enumerate(self.layers):
                normed = rms_norm(x, (o.width,))
                query = self.rotate((normed @ layer["q"].T).view(-1, o.heads, o.head_dim), positions)
                key = self.rotate((normed @ layer["k"].T).view(-1, o.kv_heads, o.head_dim), positions)
                value = (normed @ layer["v"].T).view(-1, o.kv_heads, o.head_dim)
                mixed, at = torch.empty_like(query), 0
                with kv.layer(number):
                    for request, count in counts.items():
                        keys, values = kv.rows(request, number)
                        now = before[request] + count
                        keys[before[request]:now], values[before[request]:now] = key[at:at + count], value[at:at + count]
                        mixed[at:at + count] = self.attend(query[at:at + count], keys[:now], values[:now])
                        at += count
                x = x + mixed.flatten(1) @ layer["o"].T
                normed = rms_norm(x, (o.width,))
                x = x + (silu(normed @ layer["gate"].T) * (normed @ layer["up"].T)) @ layer["down"].T
        ends = torch.tensor(list(counts.values())).cumsum(0) - 1
        logits = rms_norm(x[ends], (o.width,)) @ self.head.T
        return dict(zip(tokens, logits))

    def attend(self, query, keys, values):
        """query: (new tokens, heads, head); keys, values: (tokens, kv heads, head), where they lie."""
        new, all_tokens = len(query), len(keys)
        keys, values = keys.transpose(0, 1)[None], values.transpose(0, 1)[None]
        groups = query.view(new, self.options.kv_heads, -1, self.options.head_dim).permute(2, 1, 0, 3)  # (group, kv heads, new, head)
        mask = None if new in (1, all_tokens) else torch.ones(new, all_tokens, dtype=torch.bool).tril(all_tokens - new)
        out = [scaled_dot_product_attention(group[None], keys, values, attn_mask=mask, is_causal=new == all_tokens and new > 1)[0] for group in groups]
        return torch.stack(out).permute(2, 1, 0, 3).reshape(new, self.options.heads, self.options.head_dim)


class OrdinaryKv:
    """All KV in tensors of PyTorch."""

    def __init__(self, options):
        self.options, self.requests, self.counts = options, [], {}

    def add(self):
        o = self.options
        self.requests.append(torch.zeros(o.layers, 2, o.max_tokens, o.kv_heads, o.head_dim))
        self.counts[len(self.requests) - 1] = 0
        return len(self.requests) - 1

    @contextlib.contextmanager
    def step(self, counts):
        for request, count in counts.items():
            self.counts[request] += count
        yield

    def layer(self, _):
        return contextlib.nullcontext()

    def tokens(self, request):
        return self.counts[request]

    def rows(self, request, layer):
        return self.requests[request][layer]

    def close(self):
        self.requests.clear()


def slow_copy(gigabytes_per_second):
    """Copies as over a bus of this bandwidth, if memory is faster."""

    def copy(to, source, count):
        end = time.perf_counter() + count / gigabytes_per_second / 1e9
        ctypes.memmove(to, source, count)
        time.sleep(max(0.0, end - time.perf_counter()))

    return copy


class LayerwiseKv:
    """KV of which `resident` layers stay, in the ranges of cachalot.layerwise."""

    def __init__(self, options, resident):
        row = options.kv_heads * options.head_dim * 4
        self.options, self.counts, self.views = options, {}, {}
        self.memory = layerwise.open(layers=options.layers, part_bytes=(row, row), max_tokens=options.max_tokens, resident=resident,
                                     chunk_bytes=options.chunk_bytes, copy=slow_copy(options.bandwidth) if options.bandwidth else None)
        self.layer = self.memory.layer

    def add(self):
        request, shape = self.memory.add(), (self.options.kv_heads, self.options.head_dim)
        self.counts[request] = 0
        self.views[request] = [[torch.from_numpy(numpy.asarray(request.rows(layer, part, shape, "<f4"))) for part in (0, 1)]
                               for layer in range(self.options.layers)]
        return request

    @contextlib.contextmanager
    def step(self, counts):
        with self.memory.step(counts):
            for request, count in counts.items():
                self.counts[request] += count
            yield

    def tokens(self, request):
        return self.counts[request]

    def rows(self, request, layer):
        return self.views[request][layer]

    def close(self):
        self.views.clear()
        self.memory.close()


class Phase:
    """What the copying thread and the waits took in some steps."""

    def __init__(self, before, after, steps):
        spent = {word: getattr(after, word) - getattr(before, word) for word in after._fields}
        self.steps, self.spent = steps, spent
        self.copy_ms = (spent["load_ns"] + spent["offload_ns"] + spent["map_ns"]) / steps / 1e6
        self.wait_ms = spent["wait_ns"] / steps / 1e6
        self.hidden = max(0.0, 1 - self.wait_ms / self.copy_ms) if self.copy_ms else None
        moved = spent["loaded_bytes"] + spent["offloaded_bytes"]
        self.bytes_per_second = moved / (self.copy_ms * steps) * 1e3 if moved else None


def decode(model, prompts, kv, options):
    """Greedy: each prompt alone in steps of at most `prefill_tokens`, then all prompts together. Returns tokens, logits and figures."""
    measure = kv.memory.statistics if isinstance(kv, LayerwiseKv) else lambda: None
    first, last, out, steps, seen = [], {}, {}, 0, []
    start = measure()
    for prompt in prompts:
        begin = time.perf_counter()
        request = kv.add()
        for part in prompt.split(options.prefill_tokens or len(prompt)):
            seen.append(model.step(kv, {request: part})[request])
            last[request] = seen[-1].argmax()[None]
            steps += 1
        first.append(time.perf_counter() - begin)
        out[request] = [int(last[request])]
    middle = measure()
    each = []
    for _ in range(options.tokens - 1):
        begin = time.perf_counter()
        logits = model.step(kv, last)
        last = {request: row.argmax()[None] for request, row in logits.items()}
        for request, token in last.items():
            out[request].append(int(token))
        seen.extend(logits.values())
        each.append(time.perf_counter() - begin)
    figures = {"first_ms": statistics.mean(first) * 1e3, "token_ms": statistics.median(each) * 1e3}
    if middle is not None:
        end = measure()
        prefill, decoding = Phase(start, middle, steps), Phase(middle, end, max(1, len(each)))
        figures.update(device_bytes=end.peak_device_bytes, all_bytes=end.all_bytes, host_bytes=end.host_bytes, step_ns=end.step_ns,
                       decode_layer_bytes=end.all_bytes // options.layers)
        for name, phase in (("prefill", prefill), ("decode", decoding)):
            figures.update({f"{name}_copy_ms": phase.copy_ms, f"{name}_wait_ms": phase.wait_ms, f"{name}_hidden": phase.hidden,
                            f"{name}_bytes_per_second": phase.bytes_per_second})
    return list(out.values()), torch.stack(seen), figures


def middle_of(runs):
    """The median of each figure."""
    out = {}
    for word in runs[0]:
        values = [run[word] for run in runs if run[word] is not None]
        out[word] = statistics.median(values) if values else None
    return out


def choose(options, prompts, got):
    """x by LayerKV's equation 4, from a run with x = 0: so few layers stay that the copies of the others take no longer than the computation."""
    row = 2 * options.kv_heads * options.head_dim * 4
    tokens = statistics.mean(map(len, prompts))
    held = sum(len(prompt) + options.tokens for prompt in prompts)

    def fewest(layer_bytes, step_ms, rate):
        return layerwise.fewest_resident(options.layers, int(layer_bytes), int(step_ms * 1e6), rate or 0)

    return {"prefill": fewest(tokens * row, got["first_ms"] - got["prefill_wait_ms"], got["prefill_bytes_per_second"]),
            "decode": fewest(held * row, got["token_ms"] - got["decode_wait_ms"], got["decode_bytes_per_second"])}


def percent(share):
    return "-" if share is None else f"{100 * share:.0f} %"


def print_table(options, results):
    print(f"\n{'x':>8} {'device KV MiB':>14} {'of all':>7} {'bound':>6} {'first ms':>9} {'token ms':>9} {'copies ms':>14} {'hidden':>14}  tokens")
    for name, got in results.items():
        if name == "ordinary":
            print(f"{name:>8} {got['kv_bytes'] / 2**20:14.1f} {'-':>7} {'-':>6} {got['first_ms']:9.0f} {got['token_ms']:9.2f} {'-':>14} {'-':>14}")
            continue
        copies = f"{got['prefill_copy_ms']:.1f} + {got['decode_copy_ms']:.2f}"
        hidden = f"{percent(got['prefill_hidden'])} + {percent(got['decode_hidden'])}" if int(name) < options.layers - 2 else "-"
        print(f"{name:>8} {got['device_bytes'] / 2**20:14.1f} {percent(got['share']):>7} {percent(got['bound']):>6} {got['first_ms']:9.0f} "
              f"{got['token_ms']:9.2f} {copies:>14} {hidden:>14}  {'equal' if got['equal'] else 'DIFFERENT'}{', logits too' if got['same_bits'] else ''}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0], epilog=__doc__.partition("columns: ")[2],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"layers": 12, "width": 512, "heads": 8, "kv-heads": 4, "head-dim": 64, "inner": 1536, "vocabulary": 1000, "tokens": 33, "runs": 3,
                        "seed": 1, "chunk-bytes": 0, "prefill-tokens": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{value}")
    parser.add_argument("--prompts", default="2000,1700", help="tokens of each prompt (2000,1700)")
    parser.add_argument("--resident", help="values of x; default: 0 to all")
    parser.add_argument("--bandwidth", type=float, default=0, metavar="GB/s", help="copies as over a bus of so many 1e9 bytes/s; 0: memory's own")
    parser.add_argument("--json", metavar="FILE", help="figures for programs")
    options = parser.parse_args()
    options.lengths = [int(each) for each in options.prompts.split(",")]
    options.max_tokens = max(options.lengths) + options.tokens
    if options.resident is None:
        options.xs = sorted({0, 1, 2, 4, 6, 8, options.layers} & set(range(options.layers + 1)))
    else:
        options.xs = [int(each) for each in options.resident.split(",")]
    if min(options.layers, options.kv_heads, options.runs, *options.lengths) < 1 or options.tokens < 2 or min(options.xs) < 0 or not options.bandwidth >= 0:
        parser.error("counts are at least 1, tokens at least 2, x and the bandwidth at least 0")
    if options.heads % options.kv_heads:
        parser.error(f"--heads {options.heads}, expected a multiple of the {options.kv_heads} kv heads")
    return options


@torch.inference_mode()
def main():
    options = parse()
    torch.set_num_threads(1)  # the copying thread has the other core
    model = Decoder(options)
    generator = torch.Generator().manual_seed(options.seed + 1)
    prompts = [torch.randint(options.vocabulary, (length,), generator=generator) for length in options.lengths]
    print(f"torch {torch.__version__}, one thread; {options.layers} layers, {options.heads} heads, {options.kv_heads} kv heads of {options.head_dim}; "
          f"prompts of {options.prompts} tokens, {options.tokens} new ones; median of {options.runs} runs, load {os.getloadavg()[0]:.1f}")
    decode(model, [prompts[0][:64]], OrdinaryKv(options), options)  # the first use of each kernel is slow
    runs, expected, exact, failed = {}, None, None, False
    for _ in range(options.runs):  # in turns, so that a change of the machine's load meets all
        for name in ["ordinary", *map(str, options.xs)]:
            kv = OrdinaryKv(options) if name == "ordinary" else LayerwiseKv(options, int(name))
            try:
                tokens, logits, figures = decode(model, prompts, kv, options)
            finally:
                kv.close()
            if expected is None:
                expected, exact = tokens, logits
            figures.update(equal=tokens == expected, same_bits=torch.equal(logits, exact))
            runs.setdefault(name, []).append(figures)
    results = {}
    for name, all_runs in runs.items():
        got = results[name] = middle_of(all_runs)
        for word in ("equal", "same_bits"):
            got[word] = all(run[word] for run in all_runs)
        if name == "ordinary":
            got["kv_bytes"] = len(prompts) * options.layers * 2 * options.max_tokens * options.kv_heads * options.head_dim * 4
        else:
            got["share"] = max(run["device_bytes"] / run["all_bytes"] for run in all_runs)
            got["bound"] = min(1.0, (int(name) + 2) / options.layers)
            failed = failed or got["share"] > got["bound"]
        failed = failed or not got["equal"]
    print_table(options, results)
    chosen = choose(options, prompts, results["0"]) if "0" in results and not options.prefill_tokens else None
    if chosen:
        print(f"by equation 4 from the run with x = 0: x = {chosen['prefill']} hides the offloads of a prefill, x = {chosen['decode']} the loads of a decode step")
    print(f"load at the end {os.getloadavg()[0]:.1f}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"torch": torch.__version__, "layers": options.layers, "results": results, "chosen": chosen, "tokens": expected}, file, indent=1)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    try:
        main()
    except errors.UnsupportedError as error:
        refuse(str(error))
