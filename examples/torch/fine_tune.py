"""LoRA fine-tuning with recomputation and varying sentence lengths on PyTorch's allocator, its expandable segments, and
Cachalot's allocator: memory held and used, time per step, and whether the losses are equal.

    python examples/torch/fine_tune.py                        # all three, each in its own process
    python examples/torch/fine_tune.py --model llama --json llama.json    # Hugging Face's Llama and peft's LoRA
    python examples/torch/fine_tune.py --allocator cachalot --layers 32 --width 4096 --heads 32

Weights are random and the loss has no meaning: only the load on the allocator counts. Needs PyTorch with CUDA, a GPU, and for
cachalot the package or CACHALOT_TORCH_LIBRARY; for llama transformers and peft, but no network. Exit code 1: an allocator
failed, or losses differ; 3: a requirement is missing.
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
# Of a loss. With the same numbers in the same kernels there is none; where a kernel adds up in another order from run to run, it
# stays far below.
ALLOWED_DIFFERENCE = 2**-8


def refuse(message):
    print(f"fine_tune: {message}", file=sys.stderr)
    sys.exit(3)


def require_gpu(options):
    try:
        import torch
    except ImportError:
        refuse("torch is not installed, expected PyTorch with CUDA")
    if options.device == "cuda" and not torch.cuda.is_available():
        refuse("torch finds no GPU, expected one")


def make_decoder(options):
    import torch
    from torch import nn
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint

    class Lora(nn.Module):
        """A frozen matrix and two small trained ones."""

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

    return Decoder()


def make_llama(options):
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        from peft import LoraConfig, get_peft_model
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        refuse(f"--model llama: {error}; expected transformers and peft")
    from torch import nn

    config = LlamaConfig(
        vocab_size=options.vocabulary, hidden_size=options.width, intermediate_size=options.width * 7 // 2, num_hidden_layers=options.layers,
        num_attention_heads=options.heads, num_key_value_heads=max(options.heads // 4, 1), max_position_embeddings=options.tokens,
        use_cache=False, attn_implementation="sdpa")
    model = LlamaForCausalLM(config)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    model = get_peft_model(model, LoraConfig(r=options.rank, lora_dropout=0.0, task_type="CAUSAL_LM", target_modules=[
        f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")]))
    model.train()

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, tokens):
            return self.model(input_ids=tokens, labels=tokens).loss

    return Loss()


def make_model(options):
    """Creates the model on the device in bfloat16, to avoid copying billions of weights."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(options.device):
            return (make_llama if options.model == "llama" else make_decoder)(options)
    finally:
        torch.set_default_dtype(before)


def make_repeatable(options):
    """Makes runs reproducible as far as PyTorch can."""
    import torch

    torch.manual_seed(options.seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # it would write over what an allocator left there
    torch.backends.cudnn.deterministic = True


def peaks(options):
    """Bytes taken from the device, used by tensors (rounded by the allocator), and requested by tensors."""
    import torch

    if options.device == "cpu":
        return {"held": 0, "active": 0, "used": 0}
    if options.allocator == "cachalot":
        from cachalot import torch_allocator

        now = torch_allocator.stats()
        return {"held": now["peak_reserved_bytes"], "active": now["peak_live_bytes"], "used": now["peak_live_bytes"]}
    now = torch.cuda.memory_stats()
    return {"held": now["reserved_bytes.all.peak"], "active": now["active_bytes.all.peak"], "used": now["requested_bytes.all.peak"]}


def train(options):
    """One process with one allocator; its last line has the figures."""
    import torch

    if options.allocator == "cachalot":
        try:
            from cachalot import torch_allocator

            torch_allocator.use()
        except (ImportError, RuntimeError) as error:
            refuse(str(error))
    synchronize = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    make_repeatable(options)
    lengths = random.Random(options.seed)
    model = make_model(options)
    learner = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    milliseconds, losses = [], []
    for _ in range(options.steps):
        tokens = lengths.randrange(options.tokens // 4, options.tokens + 1)
        batch = torch.randint(options.vocabulary, (options.batch, tokens), device=options.device)
        synchronize()
        begin = time.perf_counter()
        loss = model(batch)
        loss.backward()
        learner.step()
        learner.zero_grad(set_to_none=True)
        synchronize()
        milliseconds.append((time.perf_counter() - begin) * 1e3)
        losses.append(loss.item())
        del loss
    late = sorted(milliseconds[len(milliseconds) // 2 :])
    print(json.dumps({
        **peaks(options), "first_ms": milliseconds[0], "median_ms": statistics.median(late), "p10_ms": late[len(late) // 10],
        "p90_ms": late[len(late) * 9 // 10], "losses": losses, "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu"}))


def differences(results):
    """Of each allocator's losses from the first one's, relative: the largest, and the first step that has one."""
    out = {}
    first = next(iter(results.values()))["losses"]
    for allocator, got in list(results.items())[1:]:
        by_step = [float("inf") if a != a or b != b else abs(a - b) / max(abs(a), 1e-30) for a, b in zip(first, got["losses"])]
        out[allocator] = {"largest": max(by_step), "first_step": next((i for i, each in enumerate(by_step) if each > 0), None)}
    return out


def run(allocator):
    """Runs a separate process, because PyTorch accepts one allocator at its start. Returns its last line or exit code."""
    environment = dict(os.environ)
    environment["PYTORCH_CUDA_ALLOC_CONF"] = f"expandable_segments:{allocator == 'expandable'}"
    environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for the same losses
    command = [sys.executable, __file__, *sys.argv[1:], "--allocator", allocator]
    ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    return json.loads(ran.stdout.splitlines()[-1]) if ran.returncode == 0 else ran.returncode


def compare(options):
    allocators = ALLOCATORS if options.device == "cuda" else ALLOCATORS[:1]
    print(f"{'allocator':<12} {'held GiB':>9} {'used GiB':>9} {'used/held':>9} {'first ms':>9} {'step ms':>9} {'p10':>8} {'p90':>8}  last loss", flush=True)
    results, codes = {}, []
    for allocator in allocators:
        got = run(allocator)
        if isinstance(got, int):
            print(f"{allocator:<12} ended with {got}, see above", flush=True)
            codes.append(got)
            continue
        results[allocator] = got
        held, used = got["held"] / 2**30, got["used"] / 2**30
        print(f"{allocator:<12} {held:9.2f} {used:9.2f} {used / held if held else 0:9.1%} {got['first_ms']:9.1f} {got['median_ms']:9.1f} {got['p10_ms']:8.1f} "
              f"{got['p90_ms']:8.1f}  {got['losses'][-1]:.5f}", flush=True)
    failed = bool(codes)
    differ = differences(results) if results else {}
    for allocator, got in differ.items():
        if got["first_step"] is None:
            print(f"losses of {allocator} and {next(iter(results))} are equal to the bit in all {options.steps} steps")
        else:
            print(f"losses of {allocator} and {next(iter(results))} differ by {got['largest']:.2e} at most, first in step {got['first_step']}; "
                  f"allowed {ALLOWED_DIFFERENCE:.2e}")
            failed = failed or not got["largest"] <= ALLOWED_DIFFERENCE
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"options": {key: value for key, value in vars(options).items() if key != "json"}, "allocators": results,
                       "loss_differences": differ}, file, indent=1)
    return 3 if codes and not results and set(codes) == {3} else int(failed)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--allocator", choices=ALLOCATORS, help="only this one, in this process")
    parser.add_argument("--model", choices=("decoder", "llama"), default="decoder", help="of this file, or Hugging Face's Llama with peft's LoRA")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help=argparse.SUPPRESS)  # cpu: whether the training itself works
    parser.add_argument("--quick", action="store_true", help="a small model, and few steps")
    parser.add_argument("--json", metavar="FILE", help="all figures, for programs; of all allocators")
    defaults = {"layers": (16, 4), "width": (2048, 1024), "heads": (16, 8), "rank": (16, 8), "vocabulary": (32000, 32000), "batch": (8, 4),
                "tokens": (2048, 1024), "steps": (40, 12), "seed": (1, 1)}
    for name, (value, quick) in defaults.items():
        parser.add_argument(f"--{name}", type=int, help=f"{value}, or {quick} of --quick")
    options = parser.parse_args()
    for name, values in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, values[options.quick])
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}, expected 1 or more")
    if options.tokens < 8 or options.width % options.heads:
        parser.error(f"--tokens {options.tokens} --width {options.width} --heads {options.heads}: expected 8 tokens or more, and heads that divide the width")
    require_gpu(options)
    if options.allocator is None:
        sys.exit(compare(options))
    train(options)


if __name__ == "__main__":
    main()
