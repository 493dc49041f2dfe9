"""What is not shared is refused as a whole, and its name is in the log: vLLM's own groups, without an engine."""

import importlib
import json
from types import SimpleNamespace

import pytest
import torch
import vllm
from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.v1.core import kv_cache_utils
from vllm.v1 import kv_cache_interface as specs
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum

namespace = importlib.import_module("cachalot.connectors.vllm.namespace")
group = importlib.import_module("cachalot.connectors.access.group")


@pytest.fixture
def groups(models):
    """Makes the connector's groups of vLLM's groups."""
    text = SimpleNamespace(kv_lora_rank=512, qk_rope_head_dim=64)
    model = SimpleNamespace(model=str(models()), revision=None, hf_overrides={}, hf_config_path=None, dtype=torch.bfloat16, quantization=None,
                            hf_config=text, hf_text_config=text, max_model_len=4096, get_total_num_kv_heads=lambda: 2)

    def made(of_vllm, hash_block_size=None, share_tp=0, tp=1, pp=1, config_at=None, images=None):
        model.hf_config_path, model.multimodal_config = config_at, images
        parallel = SimpleNamespace(tensor_parallel_size=tp, pipeline_parallel_size=pp)
        config = SimpleNamespace(
            model_config=model, parallel_config=parallel, load_config=SimpleNamespace(load_format="auto"),
            cache_config=SimpleNamespace(cache_dtype="auto", prefix_caching_hash_algo="sha256", prefix_match_unit=None))
        identity = namespace.Identity(config, False, "", share_tp)
        cache = SimpleNamespace(kv_cache_groups=of_vllm, hash_block_size=hash_block_size, kv_cache_layout=None)
        return identity.groups(cache, namespace.Rank(0))

    return made


def attention(block=128, **more):
    return specs.FullAttentionSpec(block_size=block, num_kv_heads=2, head_size=64, dtype=torch.bfloat16, **more)


def latent(size=576, **more):
    return specs.MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=size, dtype=torch.bfloat16, **more)


def state(block=128, mode="align", speculative=0, kind=MambaAttentionBackendEnum.SHORT_CONV):
    return specs.MambaSpec(block_size=block, shapes=((2, 256),), dtypes=(torch.bfloat16,), mamba_type=kind,
                           mamba_cache_mode=mode, num_speculative_blocks=speculative)


def in_groups(*of_each):
    return [specs.KVCacheGroupSpec([f"model.layers.{number}.x"], spec) for number, spec in enumerate(of_each)]


def test_latents_with_an_indexer_are_refused_together(groups):
    """DeepSeek V3.2: a block of latents without its indexer's cache is worth nothing. vLLM puts both into one group."""
    layers = {}
    for number in range(2):
        layers[f"model.layers.{number}.self_attn.attn"] = latent()
        layers[f"model.layers.{number}.self_attn.indexer.k_cache"] = specs.MLAAttentionSpec(
            block_size=64, num_kv_heads=1, head_size=132, dtype=torch.uint8, cache_role=specs.SparseCacheRole.INDEXER)
    of_vllm = kv_cache_utils.get_kv_cache_groups(VllmConfig(), layers)
    assert [len(one.layer_names) for one in of_vllm] == [4]
    with pytest.raises(group.UnsupportedCacheError, match=r"different KV caches \(MLAAttentionSpec of 132 numbers, MLAAttentionSpec of 576"):
        groups(of_vllm)
    assert [one.geometry.kv_lora_rank for one in groups(in_groups(latent()))] == [512]
    # Were they two groups, the latents would not be shared alone either.
    with pytest.raises(group.UnsupportedCacheError, match="MLA with states of 132 numbers, expected 512 [+] 64"):
        groups(in_groups(latent(), latent(132)))


REFUSED = {
    "groups of different block sizes": ((attention(128), attention(64)), {}, r"blocks of \[64, 128\] tokens"),
    "hashes of smaller blocks": ((attention(128), attention(128)), {"hash_block_size": 64}, "with hashes of 64"),
    "states of larger blocks": ((attention(128), state(256)), {}, r"blocks of \[128, 256\] tokens"),
    "states at the end of a request": ((attention(), state(mode="none")), {}, "mamba_cache_mode=none, expected align"),
    "states of every block": ((attention(), state(mode="all")), {}, "mamba_cache_mode=all, expected align"),
    "states with speculative decoding": ((attention(), state(speculative=2)), {}, "speculative decoding with state layers"),
    "states only": ((state(),), {}, "a model of state layers only"),
    "states on several ranks": ((attention(), state()), {"tp": 2}, "state layers on several ranks"),
    "states and share_tp": ((attention(), state()), {"share_tp": "auto"}, "share_tp with state layers"),
    "compressed latents": ((latent(tokens_per_state=4),), {}, "MLAAttentionSpec with 4 tokens in one state"),
    "attention that sees later tokens": ((attention(non_causal=True),), {}, "attention that sees later tokens"),
    "attention of chunks": ((specs.ChunkedLocalAttentionSpec(block_size=128, num_kv_heads=2, head_size=64,
                                                             dtype=torch.bfloat16, attention_chunk_size=256),), {},
                            "KV cache of ChunkedLocalAttentionSpec"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_named(groups, case):
    of_each, given, words = REFUSED[case]
    with pytest.raises(group.UnsupportedCacheError, match=words):
        groups(in_groups(*of_each), **given)


@pytest.mark.parametrize("kind", [MambaAttentionBackendEnum.SHORT_CONV, MambaAttentionBackendEnum.MAMBA2])
def test_states_beside_attention_are_shared(groups, kind):
    made = groups(in_groups(attention(), state(kind=kind)))
    assert [(one.has_state, one.block_tokens) for one in made] == [(False, 128), (True, 128)]
    assert made[0].namespace != made[1].namespace


def test_engines_share_pages_of_one_order_only(groups, monkeypatch):
    """On the CPU the kernels for AMX pack the keys of a page, the others turn them; those of a GPU do neither."""
    name = lambda: groups(in_groups(attention()))[0].namespace  # noqa: E731
    names, amx = {name()}, torch.cpu._is_amx_tile_supported()
    assert "processor-order=" in name()
    for place, attribute, value in ((torch.cpu, "_is_amx_tile_supported", lambda: not amx), (vllm, "__version__", "0.99.0"),
                                    (current_platform, "is_cpu", lambda: False)):
        with monkeypatch.context() as patch:
            patch.setattr(place, attribute, value)
            names.add(name())
    assert len(names) == 4


def test_a_configuration_elsewhere_is_part_of_the_name(groups, tmp_path):
    names = set()
    for theta in (None, 10000, 20000):
        if theta is not None:
            (tmp_path / "config.json").write_text(json.dumps({"rope_theta": theta}))
        names.add(groups(in_groups(attention()), config_at=None if theta is None else str(tmp_path))[0].namespace)
    assert len(names) == 3


def test_options_of_images_and_videos_are_part_of_the_name(groups):
    options = [(None, None), ({"max_pixels": 100}, None), ({"max_pixels": 100}, 0.5), ({"max_pixels": 100}, 0.75), (None, 0.5)]
    names = {groups(in_groups(attention()), images=SimpleNamespace(mm_processor_kwargs=kwargs, video_pruning_rate=rate))[0].namespace
             for kwargs, rate in options}
    assert len(names) == len(options)
