"""Engines of Hugging Face transformers (continuous batching) share the beginnings of prompts through a pool.

transformers keeps whole blocks and gives them to later prompts that begin alike. SharedPrefixes adds the pool: before a prompt
is computed, it loads the blocks that only the pool has; after each step, it stores the blocks that the step completed.

    python examples/transformers/shared_prefix.py MODEL_FOLDER
"""

import hashlib
import json
import logging
import multiprocessing
import os
import random
import sys
import time

import torch
import transformers

import cachalot
from cachalot.connectors.access.weights import digest_of_folder

if not transformers.__version__.startswith("5.19."):  # methods and fields of its cache have other names in other versions
    raise ImportError(f"transformers {transformers.__version__}: expected 5.19.x")
from transformers.generation.continuous_batching import RequestStatus, utils
from transformers.generation.continuous_batching.cache import group_layers_by_attn_type
from transformers.generation.continuous_batching.cache_allocators.cache_allocator import compute_block_hash

DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
CALL_S, RETRY_S = 1.0, 5.0  # longest load or store; pause after a failure
log = logging.getLogger("cachalot")


def geometry_of(config, dtype, block_tokens):
    """Raises ValueError: KV that is not shared."""
    config = config.get_text_config()
    layers = ", ".join(sorted(group_layers_by_attn_type(config)))
    if layers != "full_attention" or hasattr(config, "kv_lora_rank") or dtype not in DTYPES:
        raise ValueError(f"{config.model_type}: layers {layers} in {dtype}: expected keys and values of full_attention in "
                         f"{', '.join(map(str, DTYPES))}")
    rope = str(getattr(config, "rope_parameters", None))
    if "dynamic" in rope or "longrope" in rope:  # the keys of a block depend on the length of the prompt
        raise ValueError(f"{config.model_type}: rope_parameters {rope}: expected neither dynamic nor longrope")
    return cachalot.KvGeometry(layers=config.num_hidden_layers, kv_heads=utils.find_num_key_value_heads(config),
                               head_dim=utils.find_head_dim(config), dtype=DTYPES[dtype], block_tokens=block_tokens)


class SharedPrefixes:
    """Connects a manager of continuous batching, before its start(), with a pool.

    The model has the weights in `folder`, and keeps them. If a call to the pool fails, the prompt is computed.
    """

    def __init__(self, manager, folder, pool):
        model, self._tokens = manager.model, manager.continuous_batching_config.page_size
        self._geometry = geometry_of(model.config, model.dtype, self._tokens)
        if manager.distributed_helper.tp_size > 1 or getattr(model, "_hf_peft_config_loaded", False):
            raise ValueError("the model: has tensor parallelism or adapters; expected neither")
        manager.warmup()  # makes the cache
        self._cache, self._stream = manager.batch_processor.cache, manager.batch_processor.inputs_and_outputs.compute_stream
        if not self._cache.use_prefix_sharing:
            raise ValueError("allow_block_sharing: False; expected True")
        self._full = self._cache.cache_allocators["full_attention"]
        settings = {name: value for name, value in model.config.to_dict().items() if name != "_name_or_path"}
        self._names = {"model": digest_of_folder(folder)[:32], "geometry": self._geometry, "pool": pool,
                       "salt": hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()}
        self.client, self._retry_at, self._asked = None, None, set()
        try:
            self._attach()
        except (cachalot.InvalidArgumentError, cachalot.UnsupportedError):
            raise
        except cachalot.Error as error:  # the pool may come later
            self._failed(error)
        self._engine_search, self._cache.search_prefix_match = self._cache.search_prefix_match, self._search
        self._engine_mark, self._cache.mark_complete_blocks = self._cache.mark_complete_blocks, self._mark

    def _attach(self):
        client = cachalot.Client(**self._names, keeper_timeout_s=CALL_S, recovery_s=0)
        g, memory = self._geometry, self._full.cache_tensor
        blocks = memory.view(-1, g.layers, 2, g.block_tokens, g.kv_heads, g.head_dim)
        page, layer, part, token, head, _ = (stride * memory.element_size() for stride in blocks.stride())
        strides = [cachalot.PartStrides(offset=offset, page=page, layer=layer, token=token, head=head) for offset in (0, part)]
        self._pages = client.register_cache(None, blocks, pages=len(blocks), strides=strides, device=memory.device.index,
                                            stream=self._stream)
        self.client, self._retry_at = client, None

    def _failed(self, error):
        log.warning("cachalot: %s", error)
        self._retry_at = time.monotonic() + RETRY_S

    def _attach_again(self):
        """After a failure: another pool may be at the path. Until it is, the client reads the former one."""
        if self._retry_at is not None and time.monotonic() >= self._retry_at:
            try:
                self._attach()
            except cachalot.Error as error:
                self._failed(error)

    def _search(self, request, prompt):
        """Before a prompt is computed. The last token is always computed. Returns how many tokens are in the cache."""
        own = self._full.match_prefix_blocks(prompt)
        last = (len(prompt) - 1) // self._tokens
        if len(own) < last and request not in self._asked:
            self._asked.add(request)
            self._attach_again()
            if self.client is not None:
                self._load(prompt, own, last)
        return self._engine_search(request, prompt)

    def _load(self, prompt, own, last):
        """Loads blocks len(own) to last - 1 into free blocks, and tells the engine that it has them."""
        pool, group, ledger = self._cache.pool, self._full.index, self._full.ledger
        hashes, free, hit = self.client.hash_tokens(prompt)[len(own):last], [], 0
        try:
            found = self.client.lookup(hashes)
            while pool.count_free_blocks(group) < found and pool.num_free_sectors > 0:
                pool.allocate_sector(group)
            free = pool.get_free_blocks(group, min(found, pool.count_free_blocks(group)))
            hit = self.client.load(self._pages, hashes[:len(free)], free, timeout=CALL_S)
        except cachalot.Error as error:
            hit = error.detail if isinstance(error, cachalot.TimeoutError) else 0
            self._failed(error)
        name = ledger.block_to_hash[own[-1]] if own else None
        for i, block in enumerate(free[:hit]):
            first = (len(own) + i) * self._tokens
            name = compute_block_hash(name, prompt[first:first + self._tokens])
            if ledger.register_new_hash(block, name) is not None:  # the engine has this one
                hit = i
                break
            ledger.cached_blocks[block] = None
        pool.free_blocks(group, free[hit:])

    def _mark(self, request, complete):
        """After a step, with the number of blocks that it completed."""
        self._engine_mark(request, complete)
        self._asked.discard(request.request_id)
        blocks = self._full.block_table.get(request.request_id, [])
        if self.client is None or not complete or self._retry_at is not None and time.monotonic() < self._retry_at:
            return
        count = sum(block in self._full.ledger.block_to_hash for block in blocks)
        if request.status == RequestStatus.FINISHED:
            count += complete["full_attention"]  # the engine does not mark these
        try:
            hashes = self.client.hash_tokens((request.initial_tokens + request.generated_tokens)[:count * self._tokens])
            self.client.store(self._pages, hashes, blocks[:count], timeout=CALL_S)
        except cachalot.Error as error:
            self._failed(error)


def engine(folder, pool, prompt, answer_tokens=16):
    """An engine that serves one prompt. Returns the answer, seconds to its first token, and the tokens from the pool."""
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    config = transformers.ContinuousBatchingConfig(page_size=32, num_blocks=256, max_batch_tokens=512)
    manager = model.init_continuous_batching(transformers.GenerationConfig(do_sample=False, eos_token_id=-1), config)
    shared = SharedPrefixes(manager, folder, pool) if pool else None
    manager.start()
    for tokens in ([1], prompt):  # the first one warms up
        manager.add_request(tokens, max_new_tokens=answer_tokens, record_timestamps=True)
        result = manager.get_result(timeout=600)
    manager.stop()
    from_pool = shared.client.statistics.used_pool_blocks * 32 if pool else 0
    return result.generated_tokens, result.timestamps[0] - result.created_time, from_pool


if __name__ == "__main__":
    folder, pool = sys.argv[1], f"/dev/shm/cachalot_example_transformers.{os.getpid()}"
    config = transformers.AutoConfig.from_pretrained(folder)
    prompt = random.Random(1).choices(range(config.get_text_config().vocab_size), k=1500)
    geometry, spawn, answers = geometry_of(config, config.dtype, 32), multiprocessing.get_context("spawn"), []
    with cachalot.EmbeddedKeeper(pool=pool, block_bytes=geometry.block_bytes, capacity_blocks=1024):
        for name, path in (("without a pool", None), ("first engine", pool), ("second engine", pool)):
            with spawn.Pool(1) as process:
                answer, seconds, tokens = process.apply(engine, (folder, path, prompt))
            print(f"{name}: {tokens} of {len(prompt)} tokens from the pool, first token after {1000 * seconds:.0f} ms")
            answers.append(answer)
    sys.exit(0 if tokens == (len(prompt) - 1) // 32 * 32 and answers[0] == answers[1] == answers[2] else "wrong answer")
