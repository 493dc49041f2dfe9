"""How many bytes a block of a model's KV cache has, from its config.json: before any engine runs."""

import json
import os
from dataclasses import dataclass
from typing import Any, Dict, List, Optional

from cachalot import KvGeometry

# Every so many layers one has no window, where the configuration does not say it.
_PERIODS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4, "llama4_text": 4}
# State layers between those of attention; an indexer's keys; layers that read those of an earlier one.
_OTHERS = ("full_attention_interval", "attn_layer_period", "attn_layer_indices", "attn_type_list", "layers_block_type",
           "hybrid_override_pattern", "linear_attn_config", "mamba_d_ssm", "mamba_d_state", "state_size", "index_head_dim",
           "num_kv_shared_layers")
_FULL, _WINDOW = "full_attention", ("sliding_attention", "chunked_attention")


class ConfigError(Exception):
    """The configuration is not there, or does not tell the size."""


def read_config(model: str) -> Dict[str, Any]:
    """model: a config.json, the folder that has it, or a name that huggingface_hub knows. Raises ConfigError."""
    path = model
    if not os.path.exists(path):
        path = _fetch(model)
    if os.path.isdir(path):
        path = os.path.join(path, "config.json")
    try:
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: is no JSON object, expected a model's config.json")
    return config


def _fetch(model: str) -> str:
    if model.endswith(".json") or model.startswith((".", "/")):
        raise ConfigError(f"{model}: No such file or directory")
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise ConfigError(f"{model}: no such file, and huggingface_hub, which finds models by their names, is not installed") from error
    try:
        return str(hf_hub_download(model, "config.json"))
    except Exception as error:  # its own errors, and those of the network
        raise ConfigError(f"{model}: {str(error).splitlines()[0]}") from error


@dataclass(frozen=True)
class Parallel:
    """How an engine spreads a model."""

    tensor: int = 1
    pipeline: int = 1


def _kinds_of_layers(text: Dict[str, Any], layers: int) -> List[str]:
    """Some models say each layer's kind, others how often a layer without a window comes, others nothing but their type."""
    kinds = text.get("layer_types")
    if isinstance(kinds, list):
        return kinds
    period = text.get("sliding_window_pattern") or _PERIODS.get(text.get("model_type", ""), 0)
    if not isinstance(period, int) or period < 2:
        return []
    return [_FULL if layer % period == 0 else _WINDOW[0] for layer in range(1, layers + 1)]


def _layers_of_a_group(text: Dict[str, Any], layers: int) -> int:
    """Layers with and without a window have tables of their own; vLLM makes groups of as many layers as the rarer kind has."""
    kinds = _kinds_of_layers(text, layers)
    other = [f"layers of {kind}" for kind in kinds if kind != _FULL and kind not in _WINDOW]
    # attn_type_list: 1 is a layer of attention.
    other += [key for key in _OTHERS if text.get(key) and not (isinstance(text[key], list) and all(kind == 1 for kind in text[key]))]
    if other:
        raise ConfigError(f"{other[0]}: the engine alone can size its blocks; start it once, its log says how many bytes a block has")
    full = kinds.count(_FULL)
    fewer, more = sorted((full, len(kinds) - full))
    if more == 0:
        return layers
    if fewer == 0:
        return more
    return more if more < 1.25 * fewer else fewer


def geometry_of(config: Dict[str, Any], block_tokens: int, parallel: Parallel = Parallel(),
                dtype: Optional[str] = None) -> KvGeometry:
    """Of a rank's blocks. dtype: of the cache ("f32", "f8"); None: 16 bits, which engines take of float32 models, too. Raises
    ConfigError."""
    text = config.get("text_config", config)
    number = lambda name: text[name] if isinstance(text.get(name), int) else None  # noqa: E731
    layers, heads, width = (number(name) for name in ("num_hidden_layers", "num_attention_heads", "hidden_size"))
    latent, rope = number("kv_lora_rank"), number("qk_rope_head_dim")
    kv_heads = number("num_key_value_heads") or heads
    head_dim = number("head_dim") or (width // heads if width and heads else None)
    if not layers or not (latent and rope or kv_heads and head_dim):
        raise ConfigError("expected num_hidden_layers, and num_key_value_heads and head_dim, or kv_lora_rank and qk_rope_head_dim")
    shared = _layers_of_a_group(text, layers)
    if parallel.pipeline > 1:
        shared = -(-shared // parallel.pipeline)
    fields: Dict[str, Any] = dict(layers=shared, dtype=dtype or "bf16", block_tokens=block_tokens, tp_size=parallel.tensor)
    if latent and rope:
        return KvGeometry(attention="latent", kv_lora_rank=latent, qk_rope_head_dim=rope, **fields)
    if parallel.tensor > kv_heads:
        return KvGeometry(attention="grouped", kv_heads=1, head_dim=head_dim, tp_replicas=parallel.tensor // kv_heads, **fields)
    if kv_heads % parallel.tensor:
        raise ConfigError(f"{kv_heads} KV heads on {parallel.tensor} ranks, expected a divisor")
    return KvGeometry(attention="grouped", kv_heads=kv_heads // parallel.tensor, head_dim=head_dim, **fields)
