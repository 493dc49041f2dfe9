"""Which blocks an engine may share: everything that their bytes depend on, from the engine's own configuration."""

import hashlib
import json
import os
from dataclasses import dataclass
from typing import Any, List, Optional, Tuple

from cachalot import KvGeometry
from cachalot.connectors.vllm.weights import digest_of_folder

_DTYPES = {
    "torch.float32": "f32",
    "torch.float16": "f16",
    "torch.bfloat16": "bf16",
    "torch.float8_e4m3fn": "f8",
    "torch.float8_e5m2": "f8",
    "torch.uint8": "f8",
    "torch.int8": "i8",
}


class UnsupportedCacheError(Exception):
    """The engine's cache is of a kind that this connector does not know: nothing is shared."""


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _local_folder(model: str, revision: Optional[str]) -> Optional[str]:
    """Where the files of a model are on this machine."""
    if os.path.exists(model):
        return model
    try:
        from huggingface_hub import snapshot_download

        return snapshot_download(model, revision=revision, local_files_only=True)
    except Exception:
        return None


def _model_identity(model: str, revision: Optional[str], every_byte: bool) -> str:
    folder = _local_folder(model, revision)
    if folder is None:
        if not revision:
            raise UnsupportedCacheError(
                f"model: {model} has no files on this machine and no revision, so its weights have no identity; "
                "give --revision")
        return f"{model}@{revision}"
    return "files:" + digest_of_folder(folder, every_byte)[:32]


def _config_text(model_config: Any) -> str:
    """The model's configuration with the user's overrides, without names of folders and versions."""
    values = json.loads(model_config.hf_config.to_json_string(use_diff=False))
    for name in ("_name_or_path", "transformers_version", "torch_dtype", "dtype"):
        values.pop(name, None)
    return json.dumps(values, sort_keys=True, default=str)


@dataclass(frozen=True)
class Group:
    """One group of layers that share a block table, as vLLM's KVCacheGroupSpec, on one rank."""

    number: int  # in the engine
    layers: Tuple[str, ...]
    geometry: KvGeometry
    model: str  # with the geometry: the namespace
    window: int  # tokens; 0: all

    @property
    def namespace(self) -> str:
        """Equal for groups and ranks that one client can serve."""
        return self.model + "|" + self.geometry.fingerprint()

    @property
    def is_latent(self) -> bool:
        return self.geometry.attention == "latent"

    @property
    def block_tokens(self) -> int:
        return self.geometry.block_tokens


def _geometry(spec: Any, layers: int, tp_rank: int, tp_size: int, model_config: Any) -> KvGeometry:
    name = type(spec).__name__
    if name not in ("FullAttentionSpec", "SlidingWindowSpec", "MLAAttentionSpec"):
        raise UnsupportedCacheError(f"KV cache of {name}")
    dtype = _DTYPES.get(str(spec.dtype))
    if dtype is None:
        raise UnsupportedCacheError(f"KV cache of {spec.dtype}")
    if getattr(spec, "tokens_per_state", 1) != 1:
        raise UnsupportedCacheError(f"{name} with {spec.tokens_per_state} tokens in one state")
    common = dict(layers=layers, dtype=dtype, block_tokens=spec.block_size, tp_rank=tp_rank, tp_size=tp_size)
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

    def __init__(self, vllm_config: Any, every_byte: bool, salt: str) -> None:
        model_config, cache_config = vllm_config.model_config, vllm_config.cache_config
        self._config = vllm_config
        speculative = getattr(vllm_config, "speculative_config", None)
        self.parts: List[Tuple[str, str]] = [
            ("model", _model_identity(model_config.model, model_config.revision, every_byte)),
            ("config", _short(_config_text(model_config))),
            ("dtype", str(model_config.dtype).replace("torch.", "")),
            ("kv", str(cache_config.cache_dtype)),
            ("scales", str(bool(getattr(cache_config, "calculate_kv_scales", False)))),
            ("quantization", str(model_config.quantization)),
            ("speculative", _short(str(speculative)) if speculative else "none"),
            ("hash", str(cache_config.prefix_caching_hash_algo)),
            ("salt", _short(salt) if salt else "none"),
        ]

    def text(self) -> str:
        """One line for the log."""
        return " ".join(f"{name}={value}" for name, value in self.parts)

    def groups(self, kv_cache_config: Any, tp_rank: int) -> List[Group]:
        """The groups of a rank. Raises UnsupportedCacheError."""
        parallel = self._config.parallel_config
        if parallel.pipeline_parallel_size != 1:
            raise UnsupportedCacheError(f"pipeline parallelism of {parallel.pipeline_parallel_size}")
        for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
            if getattr(parallel, name, 1) != 1:
                raise UnsupportedCacheError(f"{name} of {getattr(parallel, name)}")
        sizes = {group.kv_cache_spec.block_size for group in kv_cache_config.kv_cache_groups}
        hashed = (getattr(kv_cache_config, "hash_block_size", None)  # since 0.32
                  or getattr(self._config.cache_config, "prefix_match_unit", None) or next(iter(sizes)))
        if sizes != {hashed}:
            raise UnsupportedCacheError(f"blocks of {sorted(sizes)} tokens with hashes of {hashed}")
        groups = []
        layers_of_all = _short(";".join(" ".join(group.layer_names) for group in kv_cache_config.kv_cache_groups))
        model = f"vllm/1 {self.text()} layers={layers_of_all}"
        for number, group in enumerate(kv_cache_config.kv_cache_groups):
            layers = tuple(group.layer_names)
            geometry = _geometry(group.kv_cache_spec, len(layers), tp_rank, parallel.tensor_parallel_size,
                                 self._config.model_config)
            # With the hybrid manager switched off, a window is a property of the computation only.
            window = getattr(group.kv_cache_spec, "sliding_window", None) or 0
            groups.append(Group(number, layers, geometry, model, window))
        return groups
