"""LoRA fine-tuning with recomputation and sentences of varying length, on PyTorch's allocator, on its expandable
segments, and on Cachalot's: memory held, memory used, time a step.

    python examples/torch/fine_tune.py                        # all three, each in a process of its own
    python examples/torch/fine_tune.py --allocator cachalot --layers 32 --width 4096 --batch 8

The model is a decoder of random weights, and the loss means nothing: what is asked of the allocator is what
counts. Needs PyTorch with CUDA, a GPU, and for cachalot the package or CACHALOT_TORCH_LIBRARY. Exit code 3: not here.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time

ALLOCATORS = ("default", "expandable", "cachalot")


def refuse(message):
    print(f"fine_tune: {message}", file=sys.stderr)
    sys.exit(3)


def require_gpu():
    try:
        import torch
    except ImportError:
        refuse("torch is not installed, expected PyTorch with CUDA")
    if not torch.cuda.is_available():
        refuse("torch finds no GPU, expected one")


def make_model(options):
    import torch
    from torch import nn
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint

    class Lora(nn.Module):
        """A frozen matrix, and two thin ones that learn."""

        def __init__(self, inputs, outputs):
            super().__init__()
            self.base = nn.Linear(inputs, outputs, bias=False).requires_grad_(False)
            self.down = nn.Linear(inputs, options.rank, bias=False)
            self.up = nn.Linear(options.rank, outputs, bias=False)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            width = options.width
            self.attention_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = Lora(width, 3 * width), Lora(width, width)
            self.grow, self.shrink = Lora(width, 4 * width), Lora(4 * width, width)

        def forward(self, x):
            batch, tokens, width = x.shape
            parts = self.qkv(self.attention_norm(x)).view(batch, tokens, 3, options.heads, -1).permute(2, 0, 3, 1, 4)
            heads = functional.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + self.out(heads.transpose(1, 2).reshape(batch, tokens, width))
            return x + self.shrink(functional.gelu(self.grow(self.norm(x))))

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(options.vocabulary, options.width).requires_grad_(False)
            self.layers = nn.ModuleList(Layer() for _ in range(options.layers))

        def forward(self, tokens):
            x = self.embedding(tokens).requires_grad_()
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False)
            logits = functional.linear(x, self.embedding.weight)
            return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())

    return Decoder().to(device="cuda", dtype=torch.bfloat16)


def held_and_used(allocator):
    """Peaks, in bytes: of the device, and asked for by tensors."""
    import torch

    if allocator == "cachalot":
        from cachalot import torch_allocator

        now = torch_allocator.stats()
        return now["peak_reserved_bytes"], now["peak_live_bytes"]
    now = torch.cuda.memory_stats()
    return now["reserved_bytes.all.peak"], now["requested_bytes.all.peak"]


def train(options):
    """One process on one allocator."""
    import torch

    if options.allocator == "cachalot":
        try:
            from cachalot import torch_allocator

            torch_allocator.use()
        except (ImportError, RuntimeError) as error:
            refuse(str(error))
    torch.manual_seed(options.seed)
    lengths = random.Random(options.seed)
    model = make_model(options)
    learner = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    milliseconds = []
    for _ in range(options.steps):
        tokens = lengths.randrange(options.tokens // 4, options.tokens + 1)
        batch = torch.randint(options.vocabulary, (options.batch, tokens), device="cuda")
        torch.cuda.synchronize()
        begin = time.perf_counter()
        model(batch).backward()
        learner.step()
        learner.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        milliseconds.append((time.perf_counter() - begin) * 1e3)
    held, used = held_and_used(options.allocator)
    late = milliseconds[len(milliseconds) // 2 :]
    print(json.dumps({"held": held, "used": used, "first_ms": milliseconds[0], "late_ms": statistics.median(late)}))


def compare(options):
    """Each allocator in a process of its own: PyTorch takes one, before it does anything else."""
    print(f"{'allocator':<12} {'held GiB':>9} {'used GiB':>9} {'used/held':>9} {'first ms':>9} {'step ms':>9}")
    failed = 0
    for allocator in ALLOCATORS:
        environment = dict(os.environ)
        environment["PYTORCH_CUDA_ALLOC_CONF"] = f"expandable_segments:{allocator == 'expandable'}"
        command = [sys.executable, __file__, *sys.argv[1:], "--allocator", allocator]
        ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        if ran.returncode != 0:
            print(f"{allocator:<12} ended with {ran.returncode}, see above")
            failed = 1
            continue
        got = json.loads(ran.stdout.splitlines()[-1])
        held, used = got["held"] / 2**30, got["used"] / 2**30
        print(f"{allocator:<12} {held:9.2f} {used:9.2f} {used / held:9.1%} {got['first_ms']:9.1f} {got['late_ms']:9.1f}")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--allocator", choices=ALLOCATORS, help="only this one, in this process")
    for name, value in {"layers": 16, "width": 2048, "heads": 16, "rank": 16, "vocabulary": 32000, "batch": 8, "tokens": 2048,
                        "steps": 40, "seed": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=str(value))
    options = parser.parse_args()
    require_gpu()
    if options.allocator is None:
        sys.exit(compare(options))
    train(options)


if __name__ == "__main__":
    main()
