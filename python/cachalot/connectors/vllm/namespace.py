"""Which blocks an engine may share: everything that their bytes depend on, from the engine's own configuration."""

import json
import platform
import re
from dataclasses import dataclass
from typing import Any, List, Optional, Tuple, Union

from cachalot import KvGeometry
from cachalot.connectors.access.group import Group, UnsupportedCacheError, model_heads
from cachalot.connectors.access.identity import DTYPES, config_identity, model_identity, rope_limit, short


def _overrides(model_config: Any) -> str:
    """What the user changes of the model's configuration, whose file is part of the model's identity unless it lies elsewhere.

    The configuration itself tells less: some models change it while a worker loads them.
    """
    overrides = model_config.hf_overrides
    if callable(overrides):
        raise UnsupportedCacheError("hf_overrides by a function")
    config = config_identity(model_config.hf_config_path, model_config.revision)
    return json.dumps(overrides, sort_keys=True, default=str) + config


def _processor_options(model_config: Any) -> Any:
    """Images and videos become other embeddings under other options, and keep their hash."""
    config = getattr(model_config, "multimodal_config", None)
    options, pruned = getattr(config, "mm_processor_kwargs", None), getattr(config, "video_pruning_rate", None)
    return [options, pruned] if pruned else options


def _float8(cache_dtype: str) -> str:
    """Platforms have different numbers of 8 bits."""
    from vllm.platforms import current_platform

    return str(current_platform.fp8_dtype()).replace("torch.", "") if "fp8" in cache_dtype else "none"


def _processor_order() -> Optional[str]:
    """Where a page has the keys of its tokens. On a GPU (None) one token follows another in each head. Of a processor it
    depends on the instructions that vLLM's kernels use there, and only that version of vLLM knows it."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return None
    import torch
    import vllm

    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        words = set(file.read().split())
    extensions = [name for name, is_there in (("amx", torch.cpu._is_amx_tile_supported()), ("bf16", "bf16" in words))
                  if is_there]
    return "-".join((platform.machine(), *extensions, vllm.__version__))


@dataclass(frozen=True)
class Rank:
    """One worker's place in an engine."""

    tp: int
    pp: int = 0


def _layers_of_stage(first_stage: Tuple[str, ...], stage: int, stages: int, layers: int) -> Tuple[str, ...]:
    """The names of a pipeline stage's layers: vLLM's scheduler knows those of the first one only."""
    from vllm.distributed.utils import get_pp_indices

    numbers = [re.findall(r"(?<=\.)\d+(?=\.)", name) for name in first_stage]
    begin, end = get_pp_indices(layers, 0, stages)
    if numbers != [[str(number)] for number in range(begin, end)]:
        raise UnsupportedCacheError(f"pipeline parallelism with layers as {first_stage[0]} to {first_stage[-1]}")
    begin, end = get_pp_indices(layers, stage, stages)
    return tuple(re.sub(r"(?<=\.)\d+(?=\.)", str(number), first_stage[0]) for number in range(begin, end))


def _block_order(kv_cache_config: Any) -> str:
    """The order of a block in the pool in which a page of vLLM is one piece for each layer: a copy is fastest then."""
    layout = getattr(kv_cache_config, "kv_cache_layout", None)  # since 0.32
    name = getattr(layout, "name", layout)
    if name is None:
        return "layer_first"
    return "layer_first_packed_hnd" if name.index("H") < name.index("N") else "layer_first_packed"


def _state_geometry(state: Any, layers: int, parallel: Any) -> KvGeometry:
    """A layer's state as bytes: two halves, in the place of keys and values of one token."""
    if state.mamba_cache_mode != "align":
        raise UnsupportedCacheError(f"state layers with mamba_cache_mode={state.mamba_cache_mode}, expected align,")
    if state.num_speculative_blocks:
        raise UnsupportedCacheError("speculative decoding with state layers")
    if parallel.tensor_parallel_size != 1 or parallel.pipeline_parallel_size != 1:
        raise UnsupportedCacheError("a model with state layers on several ranks")
    size = state.real_page_size_bytes
    if size % 2:
        raise UnsupportedCacheError(f"a state of {size} bytes")
    return KvGeometry(attention="grouped", layers=layers, dtype="i8", block_tokens=1, kv_heads=1, head_dim=size // 2)


def _state_identity(state: Any) -> str:
    """What the geometry of bytes does not tell."""
    kind = getattr(state.mamba_type, "name", state.mamba_type)
    return f" state={short(f'{kind} {state.shapes} {state.dtypes} {state.block_size}')}"


def _kinds(several: Any) -> str:
    """Of a UniformTypeKVCacheSpecs: layers whose blocks differ, as those of latents and of their indexer do."""
    return ", ".join(sorted({f"{type(one).__name__} of {getattr(one, 'head_size', '?')} numbers"
                             for one in several.kv_cache_specs.values()}))


def _geometry(spec: Any, layers: int, rank: Rank, parallel: Any, model_config: Any) -> KvGeometry:
    name = type(spec).__name__
    if name == "UniformTypeKVCacheSpecs":
        raise UnsupportedCacheError(f"a group of layers with different KV caches ({_kinds(spec)})")
    if name not in ("FullAttentionSpec", "SlidingWindowSpec", "MLAAttentionSpec"):
        raise UnsupportedCacheError(f"KV cache of {name}")
    dtype = DTYPES.get(str(spec.dtype))
    if dtype is None:
        raise UnsupportedCacheError(f"KV cache of {spec.dtype}")
    mode = getattr(getattr(spec, "kv_quant_mode", None), "name", "NONE")
    if mode not in ("NONE", "FP8_PER_TENSOR"):  # the others have scales of their own, beside or between the numbers
        raise UnsupportedCacheError(f"a KV cache of {mode.lower()} numbers, whose scales lie elsewhere,")
    if getattr(spec, "non_causal", False):
        raise UnsupportedCacheError("attention that sees later tokens")
    if getattr(spec, "tokens_per_state", 1) != 1:
        raise UnsupportedCacheError(f"{name} with {spec.tokens_per_state} tokens in one state")
    tp_size = parallel.tensor_parallel_size
    common = dict(layers=layers, dtype=dtype, block_tokens=spec.block_size, tp_rank=rank.tp, tp_size=tp_size,
                  pp_rank=rank.pp, pp_size=parallel.pipeline_parallel_size)
    if name == "MLAAttentionSpec":
        rope = getattr(model_config.hf_text_config, "qk_rope_head_dim", 0) or 0
        rank = getattr(model_config.hf_text_config, "kv_lora_rank", 0) or 0
        if rank + rope != spec.head_size or rank == 0:
            raise UnsupportedCacheError(f"MLA with states of {spec.head_size} numbers, expected {rank} + {rope}")
        return KvGeometry(attention="latent", kv_lora_rank=rank, qk_rope_head_dim=rope, **common)
    if getattr(spec, "head_size_v", None) not in (None, spec.head_size):
        raise UnsupportedCacheError(f"heads of {spec.head_size} numbers for keys and {spec.head_size_v} for values")
    heads = model_config.get_total_num_kv_heads()
    return KvGeometry(attention="grouped", kv_heads=spec.num_kv_heads, head_dim=spec.head_size,
                      tp_replicas=max(1, tp_size // heads), **common)


class Identity:
    """What all groups and ranks of one engine have in common."""

    def __init__(self, vllm_config: Any, every_byte: bool, salt: str, share_tp: Union[int, str] = 0) -> None:
        model_config, cache_config = vllm_config.model_config, vllm_config.cache_config
        self._config, self._share_tp = vllm_config, share_tp
        if getattr(cache_config, "calculate_kv_scales", False):
            raise UnsupportedCacheError("calculate_kv_scales, by which each engine has scales of its own,")
        speculative = getattr(vllm_config, "speculative_config", None)
        self.parts: List[Tuple[str, str]] = [
            ("model", model_identity(model_config.model, model_config.revision, every_byte,
                                      str(vllm_config.load_config.load_format))),
            ("overrides", short(_overrides(model_config))),
            ("processor", short(json.dumps(_processor_options(model_config), sort_keys=True, default=str))),
            ("dtype", str(model_config.dtype).replace("torch.", "")),
            ("kv", str(cache_config.cache_dtype)),
            ("float8", _float8(str(cache_config.cache_dtype))),
            ("scales", "False"),
            ("quantization", str(model_config.quantization)),
            ("rope-limit", rope_limit(model_config.hf_config, model_config.max_model_len)),
            ("speculative", short(str(speculative)) if speculative else "none"),
            ("hash", str(cache_config.prefix_caching_hash_algo)),
            ("salt", short(salt) if salt else "none"),
        ]
        if (order := _processor_order()) is not None:
            self.parts.append(("processor-order", order))

    def text(self) -> str:
        """One line for the log."""
        return " ".join(f"{name}={value}" for name, value in self.parts)

    def ranks(self) -> List[Rank]:
        parallel = self._config.parallel_config
        return [Rank(tp, pp) for pp in range(parallel.pipeline_parallel_size)
                for tp in range(parallel.tensor_parallel_size)]

    def groups_of(self, kv_cache_config: Any, rank: Rank) -> List[Group]:
        """The groups of any rank, as the scheduler sees them. Raises as groups()."""
        stages = self._config.parallel_config.pipeline_parallel_size
        if stages == 1:
            return self.groups(kv_cache_config, rank)
        if len(kv_cache_config.kv_cache_groups) != 1:
            raise UnsupportedCacheError("pipeline parallelism of a model with several groups of layers")
        layers = self._config.model_config.hf_text_config.num_hidden_layers
        first = tuple(kv_cache_config.kv_cache_groups[0].layer_names)
        return self.groups(kv_cache_config, rank, [_layers_of_stage(first, rank.pp, stages, layers)])

    def groups(self, kv_cache_config: Any, rank: Rank,
               layer_names: Optional[List[Tuple[str, ...]]] = None) -> List[Group]:
        """The groups of a rank whose configuration this is, but for names of layers that are given.

        Raises UnsupportedCacheError; InvalidArgumentError: share_tp does not fit the heads.
        """
        parallel = self._config.parallel_config
        for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
            if getattr(parallel, name, 1) != 1:
                raise UnsupportedCacheError(f"{name} of {getattr(parallel, name)}")
        sizes = {group.kv_cache_spec.block_size for group in kv_cache_config.kv_cache_groups}
        hashed = (getattr(kv_cache_config, "hash_block_size", None)  # since 0.32
                  or getattr(self._config.cache_config, "prefix_match_unit", None) or next(iter(sizes)))
        if sizes != {hashed}:
            raise UnsupportedCacheError(f"blocks of {sorted(sizes)} tokens with hashes of {hashed}")
        names = layer_names or [tuple(group.layer_names) for group in kv_cache_config.kv_cache_groups]
        groups = []
        layers_of_all = short(";".join(" ".join(layers) for layers in names))
        order = _block_order(kv_cache_config)
        model = f"vllm/1 {self.text()} layers={layers_of_all} order={order}"
        for number, group in enumerate(kv_cache_config.kv_cache_groups):
            layers = names[number]
            spec = group.kv_cache_spec
            if type(spec).__name__ == "MambaSpec":
                if self._share_tp:
                    raise UnsupportedCacheError("share_tp with state layers")
                geometry = _state_geometry(spec, len(layers), parallel)
                groups.append(Group(number, layers, geometry, model + _state_identity(spec), 0,
                                    state_tokens=spec.block_size))
                continue
            geometry = _geometry(spec, len(layers), rank, parallel, self._config.model_config)
            # With the hybrid manager switched off, a window is a property of the computation only.
            window = getattr(spec, "sliding_window", None) or 0
            block_order = "layer_first" if geometry.attention == "latent" else order
            share_tp = model_heads(geometry) if self._share_tp == "auto" else int(self._share_tp)
            if share_tp:
                geometry.head_group(share_tp)  # refuses what does not fit
            groups.append(Group(number, layers, geometry, model, window, block_order, share_tp))
        if all(one.has_state for one in groups):
            raise UnsupportedCacheError("a model of state layers only")
        return groups
