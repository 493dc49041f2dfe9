"""Two vLLM engines on one GPU share prompts through a pool, beside vLLM's own CPU offloading, or hand them over without one.

usage: vllm_on_gpu.py [--seconds N] [--size 8b|3b|tiny] [--lengths 2048,8192,16384] [--sharing connector|tier|transfer]
                      [--listen tcp|auto] [--graphs] [--backend TRITON_ATTN|FLASH_ATTN] [--check] [RESULTS]

If vllm.tar.xz (tools/pack-vllm) lies beside this file, it is unpacked into a temporary folder and used; otherwise vLLM and
cachalot are taken from this Python. RESULTS (default: vllm-results) gets table.txt, vllm.json and logs.tar.gz. The script
ends after N seconds (default: 240). --check needs no GPU: it imports everything and configures the engines.

Weights are random, in the shape of a real model: answers mean nothing, but must be equal where the KV cache is. What an
engine answers after a hit in the pool is compared with what the first engine answers after a hit in its own prefix cache:
the same kernels at the same shapes, so the same bits. With --sharing transfer, a prefill engine hands over what a decode
engine answers from. --graphs: decode steps are CUDA graphs, without torch.compile, which takes minutes.

Exit 0: all prompts came from the other engine, and all answers were equal; 1: not so, or not in time; 2: an argument is wrong, or
something is missing.
"""

import argparse
import contextlib
import json
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve()
SIZES = {"8b": (32, 4096, 32, 14336), "3b": (28, 3072, 24, 8192), "tiny": (4, 512, 4, 1024)}  # layers, width, heads, inner width
KV_HEADS, HEAD, VOCABULARY = 8, 128, 32000
GIB = 1 << 30
MOST_TOKENS = 20000  # of a prompt and its answer
SHARINGS = ("connector", "tier", "transfer")
ANSWER = 16  # tokens
GRAPHS = "FULL_DECODE_ONLY"
LISTEN = {"tcp": "tcp:127.0.0.1:0", "auto": "auto"}
NOT_STARTED = 180


class Late(Exception):
    pass


# --- the model: random weights, drawn on the GPU because drawing 16 GB takes minutes elsewhere


def make_model(folder, size):
    import torch
    from safetensors.torch import save_file

    layers, width, heads, inner = SIZES[size]
    kv_heads = min(KV_HEADS, heads)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": HEAD, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 32768, "rope_theta": 500000.0, "torch_dtype": "bfloat16", "tie_word_embeddings": False, "hidden_act": "silu",
        "bos_token_id": 1, "eos_token_id": 2}))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    where = {}

    def drawn(rows, columns):
        return torch.randn(rows, columns, dtype=torch.bfloat16, device=device).mul_(columns**-0.5).cpu()

    def ones():
        return torch.ones(width, dtype=torch.bfloat16)

    def save(name, tensors):
        save_file(tensors, folder / name, metadata={"format": "pt"})
        where.update(dict.fromkeys(tensors, name))

    for i in range(layers):
        at = f"model.layers.{i}."
        save(f"model-{i:02}.safetensors", {
            at + "self_attn.q_proj.weight": drawn(heads * HEAD, width), at + "self_attn.k_proj.weight": drawn(kv_heads * HEAD, width),
            at + "self_attn.v_proj.weight": drawn(kv_heads * HEAD, width), at + "self_attn.o_proj.weight": drawn(width, heads * HEAD),
            at + "mlp.gate_proj.weight": drawn(inner, width), at + "mlp.up_proj.weight": drawn(inner, width),
            at + "mlp.down_proj.weight": drawn(width, inner), at + "input_layernorm.weight": ones(), at + "post_attention_layernorm.weight": ones()})
    save("model-ends.safetensors", {"model.embed_tokens.weight": drawn(VOCABULARY, width), "lm_head.weight": drawn(VOCABULARY, width),
                                    "model.norm.weight": ones()})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


# --- an engine: a child that answers lines of JSON


def engine_arguments(model, connector, backend, graphs=False):
    given = {"model": str(model), "skip_tokenizer_init": True, "enforce_eager": not graphs, "dtype": "bfloat16", "max_model_len": MOST_TOKENS,
             "kv_cache_memory_bytes": 6 * GIB, "gpu_memory_utilization": 0.3, "disable_log_stats": True,
             # What needs packages that are not there: nothing is to be tried.
             "kernel_config": {"enable_flashinfer_autotune": False, "enable_cutedsl_warmup": False, "enable_jit_warmup": False}}
    if connector:
        given["kv_transfer_config"] = connector
    if backend:
        given["attention_backend"] = backend
    if graphs:
        given["compilation_config"] = {"mode": 0, "cudagraph_mode": GRAPHS, "cudagraph_capture_sizes": [1, 2, 4]}
    return given


def connectors(sharing, pool, listen):
    """Of each engine, by its name."""
    if sharing == "transfer":
        # Two of the longest prompts of an 8B shape, 2 GiB each: the last offer may not have ended at the next one.
        transfer = {"listen": [LISTEN[listen]], "deadline": 60, "bounce": "5GiB"}
        return {name: {"kv_connector": "CachalotConnector", "kv_role": role, "kv_connector_module_path": "cachalot.connectors.vllm",
                       "kv_connector_extra_config": {"transfer": transfer}} for name, role in (("first", "kv_producer"), ("second", "kv_consumer"))}
    if sharing == "connector":
        ours = {"kv_connector": "CachalotConnector", "kv_role": "kv_both", "kv_connector_module_path": "cachalot.connectors.vllm",
                "kv_connector_extra_config": {"pool": pool, "create": {"size": "16GiB"}}}
    else:
        ours = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
            "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 8 * GIB, "secondary_tiers": [
                {"type": "CachalotTier", "module_path": "cachalot.connectors.vllm.tier", "pool": pool, "create": {"size": "16GiB"}}]}}
    theirs = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"cpu_bytes_to_use": 16 * GIB}}
    return {"first": ours, "second": ours, "offload": theirs}


def prepare_torch():
    """vLLM was built for a later PyTorch: of what it calls, this one has no such name."""
    import torch

    if not hasattr(torch.accelerator, "empty_host_cache"):
        torch.accelerator.empty_host_cache = lambda: None


def with_connector(arguments):
    from vllm.config import KVTransferConfig

    if arguments.get("kv_transfer_config"):
        arguments = {**arguments, "kv_transfer_config": KVTransferConfig(**arguments["kv_transfer_config"])}
    return arguments


def be_engine(arguments):
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    began = time.monotonic()
    prepare_torch()
    from vllm import LLM, SamplingParams

    llm = LLM(**with_connector(arguments))

    def say(**words):
        out.write(json.dumps(words) + "\n")
        out.flush()

    say(ready=time.monotonic() - began, graphs=llm.llm_engine.vllm_config.compilation_config.cudagraph_mode.name)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked.get("reset"):
            say(reset=llm.reset_prefix_cache())
            continue
        more = {"extra_args": {"kv_transfer_params": asked["params"]}} if asked.get("params") else {}
        sampling = SamplingParams(temperature=0.0, max_tokens=asked["max_tokens"], ignore_eos=True, detokenize=False, **more)
        began = time.perf_counter()
        done = llm.generate([{"prompt_token_ids": prompt} for prompt in asked["prompts"]], sampling, use_tqdm=False)
        took = time.perf_counter() - began
        if more:  # a server goes on with its steps; here the one that tells the worker of the request's end has to be asked for
            llm.llm_engine.step()
        say(seconds=took, tokens=[list(one.outputs[0].token_ids) for one in done], cached=[one.num_cached_tokens for one in done],
            params=done[0].kv_transfer_params)


class Engine:
    def __init__(self, name, arguments, logs, environment, deadline):
        self.name, self.deadline = name, deadline
        self.log = logs / f"{name}.log"
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen([sys.executable, str(HERE), "--engine", json.dumps(arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=log, text=True, start_new_session=True, env={**environment, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
        self.lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def take(self, limit_s=120):
        try:
            line = self.lines.get(timeout=max(0.0, min(limit_s, self.deadline - time.monotonic())))
        except queue.Empty:
            raise Late(f"engine {self.name} did not answer in time (--seconds)") from None
        if line is None:
            raise RuntimeError(f"engine {self.name} has ended: {self.log.read_text(errors='replace')[-1500:]}")
        return json.loads(line)

    def ask(self, **words):
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        return self.take()

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


# --- the run


class Run:
    def __init__(self, options, environment, place):
        self.options, self.environment, self.place = options, environment, place
        self.deadline = time.monotonic() + options.seconds - 5  # the results take a moment
        self.logs = place / "logs"
        self.logs.mkdir()
        self.engines, self.rows, self.wrong, self.lines = {}, [], [], []
        self.draw = random.Random(1)

    def say(self, line):
        print(line, flush=True)
        self.lines.append(line)

    def prompt(self, tokens):
        return [self.draw.randrange(3, VOCABULARY) for _ in range(tokens)]

    def child(self, name, *arguments):
        """This script once more, in the packed site. Returns whether it ended well."""
        limit = self.deadline - time.monotonic()
        with open(self.logs / f"{name}.log", "w", encoding="utf-8") as log:
            try:
                done = subprocess.run([sys.executable, str(HERE), *arguments], env=self.environment, stdout=log, stderr=subprocess.STDOUT, check=False, timeout=max(0.1, limit))
            except subprocess.TimeoutExpired:
                raise Late(f"{name} was not done in time (--seconds)") from None
        if done.returncode != 0:
            self.wrong.append(f"{name}: {(self.logs / f'{name}.log').read_text(errors='replace')[-1500:]}")
        return done.returncode == 0

    def start_engines(self, model, pool):
        options = self.options
        for name, connector in connectors(options.sharing, pool, options.listen).items():
            self.engines[name] = Engine(name, engine_arguments(model, connector, options.backend, options.graphs), self.logs, self.environment, self.deadline)
        for name in list(self.engines):
            try:
                began = self.engines[name].take(NOT_STARTED)
                self.say(f"{name}: ready after {began['ready']:.0f} s, CUDA graphs: {began['graphs']}")
                if options.graphs and began["graphs"] != GRAPHS:
                    self.wrong.append(f"{name}: CUDA graphs: {began['graphs']}, expected {GRAPHS}")
            except (RuntimeError, Late) as error:
                self.wrong.append(f"{name} did not start: {error}")
                self.engines.pop(name).close()
        return {"first", "second"} <= self.engines.keys()

    def hand_over(self, prompt, tokens):
        """What the prefill engine answers when it offers the prompt, and then the decode engine with so many tokens."""
        offer = self.engines["first"].ask(prompts=[prompt], max_tokens=1, params={"do_remote_decode": True})
        if not offer["params"]:
            raise RuntimeError(f"{len(prompt)} tokens: the first engine offered nothing")
        return offer, self.engines["second"].ask(prompts=[prompt], max_tokens=tokens, params=offer["params"])

    def measure_transfer(self, tokens):
        row, first = {"tokens": tokens}, self.engines["first"]
        self.rows.append(row)
        equal = []
        for length in (1, ANSWER):  # another prompt each: only its first answer comes out of the transfer
            prompt = self.prompt(tokens)
            offered, got = self.hand_over(prompt, length)
            own = first.ask(prompts=[prompt], max_tokens=length)
            equal.append(got["tokens"] == own["tokens"])
            if length == 1:
                row.update(computed_ms=offered["seconds"] * 1e3, own_ms=own["seconds"] * 1e3, transfer_ms=got["seconds"] * 1e3)
            row["transfer_hit"] = min(got["cached"][0], row.get("transfer_hit", tokens))
        row["equal"] = all(equal)
        self.judge(row, "transfer")

    def measure_pool(self, tokens):
        prompt, first, second = self.prompt(tokens), self.engines["first"], self.engines["second"]
        row = {"tokens": tokens, "computed_ms": first.ask(prompts=[prompt], max_tokens=1)["seconds"] * 1e3}
        self.rows.append(row)
        # The store goes on after the answer; in the tier it comes out of the host's memory, into pages of the pool that
        # are touched for the first time.
        time.sleep(1.0 if self.options.sharing == "connector" else 1.0 + tokens / 2048)
        row["own_ms"] = first.ask(prompts=[prompt], max_tokens=1)["seconds"] * 1e3
        got = second.ask(prompts=[prompt], max_tokens=1)
        row["pool_ms"], row["pool_hit"] = got["seconds"] * 1e3, got["cached"][0]
        reference, answer = (engine.ask(prompts=[prompt], max_tokens=ANSWER)["tokens"][0] for engine in (first, second))
        row["equal"] = reference == answer
        if "offload" in self.engines:
            offload = self.engines["offload"]
            offload.ask(prompts=[prompt], max_tokens=1)
            time.sleep(1.0)
            offload.ask(reset=True)
            got = offload.ask(prompts=[prompt], max_tokens=1)
            row["offload_ms"], row["offload_hit"] = got["seconds"] * 1e3, got["cached"][0]
        self.judge(row, "pool")

    def judge(self, row, source):
        self.say("  ".join(f"{key} {value:.1f}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()))
        tokens, hit = row["tokens"], row[f"{source}_hit"]
        if hit < tokens - 32:
            self.wrong.append(f"{tokens} tokens: {hit} came from the {source}")
        if not row["equal"]:
            self.wrong.append(f"{tokens} tokens: other answers")

    def share(self):
        # In memory: 16 GB of weights are read three times.
        memory = Path(tempfile.mkdtemp(prefix="cachalot-vllm-", dir="/dev/shm"))
        try:
            began = time.monotonic()
            if not self.child("model", "--make-model", str(memory / "model"), "--size", self.options.size):
                return
            self.say(f"model {self.options.size}: {time.monotonic() - began:.0f} s")
            if not self.start_engines(memory / "model", str(memory / "pool")):
                return
            for engine in self.engines.values():  # kernels are compiled at their first call
                for tokens in self.options.lengths:
                    engine.ask(prompts=[self.prompt(tokens)], max_tokens=2)
            by_transfer = self.options.sharing == "transfer"
            if by_transfer:  # the first one connects
                self.hand_over(self.prompt(self.options.lengths[0]), 1)
            for tokens in self.options.lengths:
                # An engine hears in a step that its stores are done, and until then their pages count as held. A server has steps.
                for engine in self.engines.values():
                    engine.ask(prompts=[self.prompt(20)], max_tokens=4)
                (self.measure_transfer if by_transfer else self.measure_pool)(tokens)
        finally:
            for engine in self.engines.values():
                engine.close()
            shutil.rmtree(memory, ignore_errors=True)

    def finish(self):
        for log in sorted(self.logs.glob("*.log")):
            for line in log.read_text(errors="replace").splitlines():
                ours = re.search(r"(INFO|WARNING|ERROR) [^]]*\] (cachalot: .*)", line)  # not a path with the name in vLLM's own lines
                if ours:
                    self.say(f"{log.stem}: {ours[1]} {ours[2][:220]}")
        for line in self.wrong:
            self.say(f"WRONG: {line}")
        if not self.wrong:
            self.say("all right")
        results = self.options.results
        results.mkdir(parents=True, exist_ok=True)
        (results / "table.txt").write_text("\n".join(self.lines) + "\n")
        (results / "vllm.json").write_text(json.dumps({"size": self.options.size, "sharing": self.options.sharing, "graphs": self.options.graphs, "rows": self.rows, "wrong": self.wrong}, indent=1))
        with tarfile.open(results / "logs.tar.gz", "w:gz") as archive:
            archive.add(self.logs, "logs")
        return 1 if self.wrong else 0


# --- without a GPU: what can be found out before


def check(arguments_of_engines):
    """Everything is imported, the operators are there, and the engines can be configured."""
    prepare_torch()
    pretend_hopper()  # before vLLM's modules ask for their platform
    import torch
    import vllm
    from vllm import LLM, SamplingParams  # noqa: F401

    import vllm._C_stable_libtorch
    import vllm._moe_C_stable_libtorch
    import vllm.vllm_flash_attn._vllm_fa3_C
    import cachalot
    from cachalot.connectors.vllm import CachalotConnector  # noqa: F401
    from cachalot.connectors.vllm import tier  # noqa: F401

    for library, operator in (("_C", "rms_norm"), ("_moe_C", "topk_softmax"), ("_vllm_fa3_C", "fwd")):
        if not hasattr(getattr(torch.ops, library), operator):
            raise SystemExit(f"vLLM's library has no operator {library}::{operator}")
    from vllm.engine.arg_utils import EngineArgs

    for arguments in arguments_of_engines:
        config = EngineArgs(**with_connector(arguments)).create_engine_config()
        graphs = config.compilation_config.cudagraph_mode.name
        if (graphs == GRAPHS) != ("compilation_config" in arguments):
            raise SystemExit(f"{arguments}: CUDA graphs are {graphs}")
        print(f"{config.kv_transfer_config.kv_connector}: {config.model_config.dtype}, {config.cache_config.block_size} tokens a block, graphs {graphs}")
    print(f"vLLM {vllm.__version__}, torch {torch.__version__}, cachalot {cachalot.__version__}: imported and configured")


def pretend_hopper():
    """Where vLLM finds no GPU it takes no platform: then it is told of one."""
    import torch

    if torch.cuda.is_available():
        return
    from vllm import platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    platforms._current_platform = NonNvmlCudaPlatform()
    for name, value in (("get_device_capability", DeviceCapability(9, 0)), ("get_device_name", "pretended"), ("get_device_total_memory", 80 * GIB), ("device_count", 1)):
        setattr(NonNvmlCudaPlatform, name, classmethod(lambda *_, value=value, **__: value))


# --- the command line


def refuse(words):
    print(f"vllm_on_gpu: {words}", file=sys.stderr)
    raise SystemExit(2)


def lengths(text):
    if not re.fullmatch(r"[1-9][0-9]{1,4}(,[1-9][0-9]{1,4})*", text) or max(map(int, text.split(","))) > MOST_TOKENS - 100:
        raise argparse.ArgumentTypeError(f"'{text}'; expected numbers of tokens from 10 to {MOST_TOKENS - 100}, with commas between them")
    return [int(each) for each in text.split(",")]


def seconds(text):
    if not re.fullmatch(r"[1-9][0-9]{1,5}", text):
        raise argparse.ArgumentTypeError(f"'{text}'; expected 10 to 999999")
    return int(text)


def options_of_command_line():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("results", nargs="?", type=Path, default=Path("vllm-results"))
    parser.add_argument("--seconds", type=seconds, default=240)
    parser.add_argument("--size", choices=SIZES, default="8b")
    parser.add_argument("--lengths", type=lengths, default=[2048, 8192, 16384])
    parser.add_argument("--backend", choices=("TRITON_ATTN", "FLASH_ATTN"), help="vLLM's choice if not given")
    parser.add_argument("--sharing", choices=SHARINGS, default="connector",
                        help="tier: below vLLM's own offloading; transfer: without a pool, from a prefill to a decode engine")
    parser.add_argument("--listen", choices=LISTEN, default="tcp", help="of --sharing transfer; auto: as engines of one machine do")
    parser.add_argument("--graphs", action="store_true", help="decode steps are CUDA graphs")
    parser.add_argument("--check", action="store_true", help="needs no GPU: import everything, and configure the engines")
    for hidden in ("--engine", "--make-model", "--check-here"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    return parser.parse_args()


def packed_environment(place):
    """With the site of the archive beside this file, if there is one."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0",
                   "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_USE_DEEP_GEMM": "0", "VLLM_DEEP_GEMM_WARMUP": "skip", "CUDA_MODULE_LOADING": "LAZY",
                   "TMPDIR": str(place)}  # PyTorch leaves a folder there
    archive = HERE.parent / "vllm.tar.xz"
    if not archive.exists():
        return environment
    if sys.version_info[:2] != (3, 12):
        refuse(f"this is Python {sys.version_info[0]}.{sys.version_info[1]}; {archive.name} is for 3.12")
    site = place / "site"
    try:
        with tarfile.open(archive) as packed:
            packed.extractall(site, filter="fully_trusted")
    except (OSError, EOFError, tarfile.TarError) as error:
        refuse(f"{archive}: {error}")
    environment["PYTHONPATH"] = f"{site}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")
    # The libraries that ours is linked with, if the machine lacks them: not otherwise, for other packages find them, too.
    if subprocess.run([sys.executable, "-c", "import cachalot"], env=environment, capture_output=True, check=False).returncode != 0:
        environment["LD_LIBRARY_PATH"] = f"{site}/lib:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")
    return environment


def ended(*_):
    raise Late("the script was ended")


def main():
    options = options_of_command_line()
    if options.engine:
        return be_engine(json.loads(options.engine))
    if options.make_model:
        return make_model(Path(options.make_model), options.size)
    if options.check_here:
        return check(json.loads(options.check_here))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        began = time.monotonic()
        run = Run(options, packed_environment(place), place)
        run.say(f"unpacked: {time.monotonic() - began:.0f} s")
        run.deadline -= time.monotonic() - began
        signal.signal(signal.SIGTERM, ended)  # the results so far are written
        try:
            if options.check:
                model = place / "model"
                if run.child("model", "--make-model", str(model), "--size", "tiny"):
                    engines = [engine_arguments(model, each, options.backend, graphs) for graphs in (False, True) for sharing in SHARINGS
                               for each in connectors(sharing, str(place / "pool"), options.listen).values()]
                    if run.child("check", "--check-here", json.dumps(engines)):
                        run.say((run.logs / "check.log").read_text(errors="replace").rstrip("\n").rpartition("\n")[2])
            else:
                run.share()
        except Late as error:
            run.wrong.append(str(error))
        except (RuntimeError, BrokenPipeError) as error:
            run.wrong.append(str(error))
        return run.finish()


if __name__ == "__main__":
    sys.exit(main())
