"""Which blocks an engine may share: everything that their bytes depend on, from the engine's own configuration."""

from dataclasses import dataclass
from typing import Any, List, Tuple

import numpy as np

from cachalot import KvGeometry, PartStrides
from cachalot.connectors.access.group import Group, UnsupportedCacheError
from cachalot.connectors.access.identity import DTYPES, model_identity, rope_limit, short

_KEY_DIGITS = 32  # of SGLang's 64


def hashes_of(keys: List[str]) -> np.ndarray:
    """SGLang's chained hashes of pages, cut to what Client takes. Shape: (pages, 2)."""
    words = np.frombuffer(bytes.fromhex("".join(key[:_KEY_DIGITS] for key in keys)), ">u8").reshape(-1, 2)
    return words[:, ::-1].astype("<u8")


@dataclass(frozen=True)
class Place:
    """One scheduler's place in an engine. Ranks are those that share the attention heads."""

    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int


def _dtype_of(cache: Any) -> str:
    name = DTYPES.get(str(cache.dtype))
    if name is None or getattr(cache, "store_dtype", cache.dtype).itemsize != cache.dtype.itemsize:
        raise UnsupportedCacheError(f"a KV cache of {cache.dtype}")
    if getattr(cache, "is_quantized_kv_cache", False):
        raise UnsupportedCacheError("a quantized KV cache, whose scales lie elsewhere,")
    return name


def _geometry(cache: Any, place: Place, model_kv_heads: int) -> KvGeometry:
    common = dict(layers=cache.layer_num, dtype=_dtype_of(cache), block_tokens=cache.page_size, tp_rank=place.tp_rank,
                  tp_size=place.tp_size, pp_rank=place.pp_rank, pp_size=place.pp_size)
    kind = type(cache).__name__.removesuffix("Host")
    if kind == "MLATokenToKVPool":
        if cache.kv_cache_dim != cache.kv_lora_rank + cache.qk_rope_head_dim:
            raise UnsupportedCacheError(f"MLA with states of {cache.kv_cache_dim} numbers")
        return KvGeometry(attention="latent", kv_lora_rank=cache.kv_lora_rank, qk_rope_head_dim=cache.qk_rope_head_dim,
                          **common)
    if kind != "MHATokenToKVPool" or getattr(cache, "kv_cache_layout", "nhd") != "nhd":
        raise UnsupportedCacheError(f"{kind} with layout {getattr(cache, 'kv_cache_layout', 'unknown')}")
    if cache.v_head_dim != cache.head_dim:
        raise UnsupportedCacheError(f"heads of {cache.head_dim} numbers for keys and {cache.v_head_dim} for values")
    return KvGeometry(attention="grouped", kv_heads=cache.head_num, head_dim=cache.head_dim,
                      tp_replicas=max(1, place.tp_size // model_kv_heads), **common)


def group_of(args: Any, cache: Any, place: Place, every_byte: bool, salt: str) -> Group:
    """args: what the user gave SGLang. cache: the engine's own KV buffers, or HiCache's host pool for them.

    Raises UnsupportedCacheError.
    """
    from sglang.srt.configs.model_config import ModelConfig

    model = ModelConfig.from_server_args(args)
    if model.is_multimodal:
        raise UnsupportedCacheError("a model of images or sound")
    if args.speculative_algorithm:
        raise UnsupportedCacheError("speculative decoding, whose draft model has KV of its own,")
    if args.quantization_param_path:
        raise UnsupportedCacheError("quantization_param_path, by which the KV cache has scales of its own,")
    geometry = _geometry(cache, place, model.get_total_num_kv_heads())
    parts = [
        ("model", model_identity(args.model_path, args.revision, every_byte, str(args.load_format))),
        ("overrides", short(str(args.json_model_override_args))),
        ("dtype", str(model.dtype).replace("torch.", "")),
        ("kv", str(cache.dtype).replace("torch.", "")),
        ("quantization", str(model.quantization)),
        ("rope-limit", rope_limit(model.hf_config, model.context_len)),
        ("salt", short(salt) if salt else "none"),
        ("layers", f"{cache.start_layer}-{cache.start_layer + cache.layer_num - 1}"),
    ]
    layers = tuple(str(number) for number in range(cache.start_layer, cache.start_layer + cache.layer_num))
    # In a block of the default order, as in SGLang's pages, the keys of a layer are one piece, and its values.
    return Group(0, layers, geometry, "sglang/1 " + " ".join(f"{key}={value}" for key, value in parts), 0)


def engine_memory(cache: Any) -> Tuple[List[Any], List[PartStrides]]:
    """The engine's own buffers, of each layer [slots, heads, numbers], as Client.register_cache() takes them."""
    if type(cache).__name__ == "MLATokenToKVPool":
        tensors = list(cache.kv_buffer)
        parts = [dict(tensor=0, offset=0), dict(tensor=0, offset=cache.kv_lora_rank * tensors[0].element_size())]
    else:
        tensors = [*cache.k_buffer, *cache.v_buffer]
        parts = [dict(tensor=0, offset=0), dict(tensor=cache.layer_num, offset=0)]
    item, (token, head, number) = tensors[0].element_size(), tensors[0].stride()
    if number != 1 or any(tensor.stride() != tensors[0].stride() for tensor in tensors):
        raise UnsupportedCacheError(f"KV buffers with strides {tensors[0].stride()}")
    return tensors, [PartStrides(layer_tensors=1 if cache.layer_num > 1 else 0, layer=0, page=cache.page_size * token * item,
                                 head=head * item, token=token * item, **part) for part in parts]


#: Axes of HiCache's host buffers; keys and values, where there are both, come before them.
_HOST_AXES = {"layer_first": ("layer", "slot", "head"), "page_first": ("slot", "layer", "head"),
              "page_first_direct": ("page", "layer", "token", "head")}


def host_memory(host: Any) -> Tuple[List[Any], List[PartStrides], int]:
    """HiCache's host pool: one tensor, where its parts lie, and its number of pages."""
    axes = _HOST_AXES.get(host.layout)
    if axes is None:
        raise UnsupportedCacheError(f"hicache_mem_layout {host.layout}, expected {', '.join(_HOST_AXES)}")
    tensor, item = host.kv_buffer, host.kv_buffer.element_size()
    is_latent = type(host).__name__ == "MLATokenToKVPoolHost"
    if tensor.dim() != len(axes) + (1 if is_latent else 2) or tensor.stride(-1) != 1:
        raise UnsupportedCacheError(f"a host pool of shape {tuple(tensor.shape)}")
    first = 0 if is_latent else 1
    steps = {axis: tensor.stride(first + at) * item for at, axis in enumerate(axes)}
    token = steps.get("token", steps.get("slot"))
    page = steps.get("page", token * host.page_size)
    second = host.kv_lora_rank * item if is_latent else tensor.stride(0) * item
    strides = [PartStrides(tensor=0, layer_tensors=0, offset=offset, layer=steps["layer"], page=page, head=steps["head"],
                           token=token) for offset in (0, second)]
    return [tensor], strides, host.size // host.page_size


def pages_of(slots: Any, page_tokens: int) -> np.ndarray:
    """Of whole pages of slots, as SGLang allocates them: a tensor of one slot for each token."""
    import torch

    return (slots[::page_tokens] // page_tokens).to(device="cpu", dtype=torch.int32).numpy().view(np.uint32)
