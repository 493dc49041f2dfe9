"""The size of a block before any engine runs: python -m cachalot.connectors.vllm MODEL. Without vLLM."""

import json
import re
import subprocess
import sys

import pytest

LLAMA = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
         "torch_dtype": "bfloat16"}
DEEPSEEK = {"num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "kv_lora_rank": 512,
            "qk_rope_head_dim": 64, "dtype": "bfloat16"}
WINDOWS = {"text_config": {"num_hidden_layers": 12, "num_key_value_heads": 2, "head_dim": 64,
                           "layer_types": 2 * (["sliding_attention"] * 5 + ["full_attention"])}, "dtype": "float16"}


def block_size(*arguments):
    """Exit code, stdout and stderr."""
    ran = subprocess.run([sys.executable, "-m", "cachalot.connectors.vllm", *arguments], capture_output=True, text=True,
                         check=False, timeout=120)
    return ran.returncode, ran.stdout, ran.stderr


@pytest.mark.parametrize("config, flags, expected", [
    (LLAMA, (), 32 * 2 * 8 * 128 * 2 * 16),
    (LLAMA, ("--block-size", "128", "-tp", "4"), 32 * 2 * 2 * 128 * 2 * 128),
    (LLAMA, ("-tp", "16"), 32 * 2 * 1 * 128 * 2 * 16),  # two ranks have one head
    (LLAMA, ("--kv-cache-dtype", "fp8", "-pp", "2"), 16 * 2 * 8 * 128 * 1 * 16),
    ({**LLAMA, "torch_dtype": "float32"}, (), 32 * 2 * 8 * 128 * 2 * 16),  # vLLM takes it in 16 bits
    ({**LLAMA, "torch_dtype": "float32"}, ("--dtype", "float32"), 32 * 2 * 8 * 128 * 4 * 16),
    (LLAMA, ("--dtype", "float32", "--kv-cache-dtype", "fp8"), 32 * 2 * 8 * 128 * 1 * 16),
    (DEEPSEEK, ("-tp", "8"), 61 * 576 * 2 * 16),
    (WINDOWS, (), 2 * 2 * 2 * 64 * 2 * 16),  # groups of two layers: as many as have no window
    ({"text_config": {**LLAMA, "num_hidden_layers": 12, "sliding_window_pattern": 6}}, (), 2 * 2 * 8 * 128 * 2 * 16),
    ({"text_config": {**LLAMA, "num_hidden_layers": 12, "model_type": "gemma3_text"}}, (), 2 * 2 * 8 * 128 * 2 * 16),
    ({**LLAMA, "attn_type_list": 32 * [1]}, (), 32 * 2 * 8 * 128 * 2 * 16),
    ({**LLAMA, "model_type": "gemma2"}, (), 16 * 2 * 8 * 128 * 2 * 16),
])
def test_the_line_has_the_bytes_of_a_ranks_block(tmp_path, config, flags, expected):
    (tmp_path / "config.json").write_text(json.dumps(config))
    for model in (tmp_path, tmp_path / "config.json"):
        code, out, errors = block_size(str(model), *flags)
        assert (code, errors) == (0, "")
        assert int(re.fullmatch(r"cachalot serve --pool /dev/shm/kv --create --block-bytes (\d+) --size 64GiB\n", out)[1]) == expected


@pytest.mark.parametrize("text, flags, expected", [
    ("{", (), "is no JSON"),
    ("[]", (), "is no JSON object"),
    ("{}", (), "expected num_hidden_layers"),
    (json.dumps({**LLAMA, "layer_types": ["full_attention", "linear_attention"]}), (), "layers of linear_attention"),
    (json.dumps({**LLAMA, "full_attention_interval": 4}), (), "full_attention_interval: the engine alone"),
    (json.dumps({**LLAMA, "attn_type_list": 16 * [0, 1]}), (), "attn_type_list: the engine alone"),
    (json.dumps({**DEEPSEEK, "index_head_dim": 128}), (), "index_head_dim: the engine alone"),
    (json.dumps(LLAMA), ("-tp", "3"), "8 KV heads on 3 ranks"),
    (json.dumps(LLAMA), ("--kv-cache-dtype", "f8"), "--kv-cache-dtype: f8, expected one of auto"),
    (json.dumps(LLAMA), ("--size", "64gb"), "--size: 64gb, expected a number and a unit"),
    (json.dumps(LLAMA), ("--block-size", "0"), "--block-size: 0, expected at least 1"),
    (None, (), "No such file"),
])
def test_a_mistake_is_one_line_without_a_traceback(tmp_path, text, flags, expected):
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    code, out, errors = block_size(str(path), *flags)
    assert (code, out) == (2, "")
    assert expected in errors and errors.startswith("cachalot: ") and len(errors.splitlines()) == 1
