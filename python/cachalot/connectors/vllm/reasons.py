"""Why a pool has no hits for an engine: what the engines that share it have otherwise."""

from typing import Dict, Iterable, List, Optional, Tuple

#: A pool keeps so much of a name.
_NAME_BYTES = 416
#: Parts of a namespace's name in the words of a user, the weightiest first.
_WORDS = {
    "model": "weights",
    "overrides": "hf_overrides",
    "processor": "processor options",
    "dtype": "dtype",
    "kv": "KV dtype",
    "float8": "8-bit format",
    "quantization": "quantization",
    "salt": "salt",
    "geometry shard": "tensor parallel rank and size",
    "geometry stage": "pipeline stage",
    "geometry block_tokens": "block size",
    "geometry dtype": "stored dtype",
    "layers": "layers",
    "order": "KV cache layout",
    "processor-order": "processor or version of vLLM, on which the order of a page depends",
    "rope-limit": "max_model_len, on which this model's RoPE depends",
    "hash": "prefix caching hash",
    "speculative": "speculative decoding",
    "scales": "KV scales",
}


def _parts(name: str) -> Dict[str, List[str]]:
    parts: Dict[str, List[str]] = {}
    engine, _, geometry = name.partition(" | ")
    for place, text in (("", engine), ("geometry ", geometry)):
        for word in text.split():
            key, equals, value = word.partition("=")
            if equals:
                parts.setdefault(place + key, []).append(value)
    return parts


def _differences(here: Dict[str, List[str]], there: Dict[str, List[str]]) -> List[Tuple[str, str, str]]:
    keys = [*_WORDS, *sorted((here.keys() | there.keys()) - _WORDS.keys())]
    return [(_WORDS.get(key, key), "/".join(here.get(key, ["none"])), "/".join(there.get(key, ["none"])))
            for key in keys if here.get(key) != there.get(key)]


def _distance(differences: List[Tuple[str, str, str]]) -> Tuple[bool, int]:
    return any(what == "weights" for what, _, _ in differences), len(differences)


def why_no_hits(own: Iterable[str], in_pool: Iterable[str]) -> Optional[str]:
    """own: names of the engine's namespaces; in_pool: of all namespaces, as Client.namespaces() returns them.

    Returns what the most similar namespace of another engine has otherwise; None: vLLM uses no other one here.
    """
    mine = {name[:_NAME_BYTES] for name in own}
    here = [_parts(name) for name in mine]
    others = [_parts(name) for name in in_pool if name.startswith("vllm/") and name not in mine]
    nearest = min((_differences(one, other) for one in here for other in others), key=_distance, default=None)
    if not nearest:
        return None
    text = "; ".join(f"other {what} ({there}, here {here})" for what, here, there in nearest[:3])
    more = f"; {len(nearest) - 3} more" if len(nearest) > 3 else ""
    same = "the same weights with " if all(what != "weights" for what, _, _ in nearest) else ""
    return f"other engines of this pool have {same}{text}{more}"
