"""What cannot be shared is refused by name before the engine serves, as docs/guide/sglang.md lists it."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from test_ranks import ENVIRONMENT

from cachalot.connectors.access.group import UnsupportedCacheError
from cachalot.connectors.sglang import CachalotStorage
from cachalot.connectors.sglang.linker import CachalotLinker
from cachalot.connectors.sglang.namespace import Place, group_of

OPTIONS = {"pool": "/dev/shm/cachalot_sglang_no_pool"}


def link(components=(ComponentType.FULL,), dcp_size=1, **changes):
    """Begins to make a linker. What is not refused ends with an error of another kind: there is no cache."""
    given = {"attn_tp_cache_group": None, "tp_cache_group": None, "mtp_draft_device_pools": (), "sidecar_draft_device_pools": (),
             "attn_cp_size": 1, "pp_rank": 0, "pp_size": 1, "page_size": 16, "token_to_kv_pool_allocator": None, **changes}
    CachalotLinker(SimpleNamespace(dcp_size=dcp_size), SimpleNamespace(**given), components=set(components), extra_config=OPTIONS)


@pytest.mark.parametrize(("changes", "says"), [
    ({"components": (ComponentType.FULL, ComponentType.SWA)}, "SWA state beside its KV pages"),
    ({"components": (ComponentType.FULL, ComponentType.MAMBA)}, "MAMBA state beside its KV pages"),
    ({"mtp_draft_device_pools": (object(),)}, "a draft model"),
    ({"sidecar_draft_device_pools": (object(),)}, "a draft model"),
    ({"attn_cp_size": 2}, "context parallelism of 2"),
    ({"dcp_size": 2}, "context parallelism of 2"),
    ({"pp_size": 2}, "pipeline parallelism of 2"),
])
def test_the_linker_refuses(changes, says):
    with pytest.raises(UnsupportedCacheError, match=says):
        link(**changes)


def test_what_is_not_refused_goes_on():
    with pytest.raises(AttributeError, match="get_kvcache"):
        link()


@pytest.mark.parametrize("name", [name for name in PoolName if name != PoolName.KV])
def test_hicache_with_a_side_pool_is_refused(name):
    """SGLang registers all of a model's pools before it serves."""
    storage = CachalotStorage(SimpleNamespace(extra_config=OPTIONS), {})
    with pytest.raises(UnsupportedCacheError, match=f"a model with {name.value} state beside its KV pages"):
        storage.register_mem_host_pool_v2(object(), name)


@pytest.mark.parametrize("changes", [{"attn_cp_size": 2}, {"dcp_size": 2}])
def test_hicache_with_context_parallelism_is_refused(changes, monkeypatch):
    monkeypatch.setattr("sglang.srt.runtime_context.get_server_args", lambda: None)
    config = SimpleNamespace(**{"attn_cp_size": 1, "dcp_size": 1, "extra_config": OPTIONS, **changes})
    with pytest.raises(UnsupportedCacheError, match="context parallelism"):
        CachalotStorage(config, {}).register_mem_pool_host(object())


CACHE = {"dtype": torch.bfloat16, "store_dtype": torch.bfloat16, "layer_num": 2, "page_size": 16, "head_num": 2, "head_dim": 64,
         "v_head_dim": 64}


@pytest.mark.parametrize(("model", "args", "cache", "says"), [
    ({"is_multimodal": True}, {}, {}, "a model of images or sound"),
    ({}, {"speculative_algorithm": "NGRAM"}, {}, "speculative decoding"),
    ({}, {"quantization_param_path": "scales.json"}, {}, "quantization_param_path"),
    ({}, {}, {"store_dtype": torch.uint8}, "a KV cache of torch.bfloat16"),
    ({}, {}, {"is_quantized_kv_cache": True}, "a quantized KV cache"),
    ({}, {}, {"kv_cache_layout": "hnd"}, "with layout hnd"),
    ({}, {}, {"v_head_dim": 32}, "64 numbers for keys and 32 for values"),
    ({}, {}, {"kind": "DeepSeekV4TokenToKVPool"}, "DeepSeekV4TokenToKVPool"),
])
def test_a_model_is_refused(monkeypatch, model, args, cache, says):
    made = SimpleNamespace(**{"is_multimodal": False, "get_total_num_kv_heads": lambda: 2, **model})
    monkeypatch.setattr(ModelConfig, "from_server_args", lambda _: made)
    given = SimpleNamespace(**{"speculative_algorithm": None, "quantization_param_path": None, **args})
    pages = type(cache.get("kind", "MHATokenToKVPool"), (), {**CACHE, **cache})()
    with pytest.raises(UnsupportedCacheError, match=says):
        group_of(given, pages, Place(0, 1, 0, 1), False, "")


def test_a_refusal_ends_the_engine_with_one_error(models, engines):
    engine = engines(models(), OPTIONS, ENVIRONMENT, pp_size=2)
    with pytest.raises(AssertionError, match="the engine has ended"):
        engine.answer([[1, 2, 3]])
    assert "pipeline parallelism of 2" in engine.text(), engine.text()[-3000:]
