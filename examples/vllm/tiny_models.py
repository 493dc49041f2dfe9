"""Random models for the tests and the demonstration: some MiB each, made in seconds, without a download.

usage: tiny_models.py FOLDER [NAME...]
"""

import json
import sys
from pathlib import Path

#: With the usual 0.02 a random model repeats one token, and wrong KV stays unseen.
_RANGE = 0.25


def _tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate(letters)}
    for special in ("<s>", "</s>", "<pad>"):
        vocabulary[special] = len(vocabulary)
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>",
                            chat_template="{% for m in messages %}{{ m.content }}\n{% endfor %}",
                            ).save_pretrained(folder)


def _llama(**changes):
    from transformers import LlamaConfig, LlamaForCausalLM

    values = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
                  num_key_value_heads=2, head_dim=64, vocab_size=512, max_position_embeddings=8192,
                  initializer_range=_RANGE, tie_word_embeddings=False)
    values.update(changes)
    return LlamaForCausalLM, LlamaConfig(**values)


def _mistral():
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM, MistralConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=64, vocab_size=512, max_position_embeddings=8192, initializer_range=_RANGE, sliding_window=256,
        tie_word_embeddings=False)


def _gemma3():
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    return Gemma3ForCausalLM, Gemma3TextConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2,
        head_dim=64, vocab_size=512, max_position_embeddings=8192, initializer_range=_RANGE, sliding_window=256,
        tie_word_embeddings=False, query_pre_attn_scalar=64)


def _qwen3():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM, Qwen3Config(
        hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
        vocab_size=512, max_position_embeddings=8192, initializer_range=_RANGE, tie_word_embeddings=False)


def _deepseek():
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    return DeepseekV2ForCausalLM, DeepseekV2Config(
        hidden_size=256, intermediate_size=512, moe_intermediate_size=128, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=512, q_lora_rank=None, qk_rope_head_dim=64,
        qk_nope_head_dim=128, v_head_dim=128, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2,
        first_k_dense_replace=1, n_group=1, topk_group=1, vocab_size=512, max_position_embeddings=8192, initializer_range=_RANGE,
        tie_word_embeddings=False)


def _lfm2():
    from transformers import Lfm2Config, Lfm2ForCausalLM

    # vLLM 0.32 asks for the names of older configurations, too.
    return Lfm2ForCausalLM, Lfm2Config(
        hidden_size=256, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        layer_types=["conv", "full_attention", "conv", "full_attention"], vocab_size=512, max_position_embeddings=8192,
        initializer_range=_RANGE, tie_word_embeddings=False, block_auto_adjust_ff_dim=False, conv_L_cache=3, conv_dim=256,
        block_dim=256, block_multiple_of=256, block_ffn_dim_multiplier=1.0)


def _qwen3_next():
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    return Qwen3NextForCausalLM, Qwen3NextConfig(
        hidden_size=256, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
        layer_types=["linear_attention", "full_attention"] * 2, linear_num_key_heads=2, linear_num_value_heads=4,
        linear_key_head_dim=64, linear_value_head_dim=64, linear_conv_kernel_dim=4, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=128, shared_expert_intermediate_size=128, decoder_sparse_step=1, mlp_only_layers=[],
        vocab_size=512, max_position_embeddings=8192, initializer_range=_RANGE, tie_word_embeddings=False)


#: Stands for an image of 28 times 28 pixels in a prompt of "llava", which makes 4 tokens of it.
IMAGE_TOKEN = 300


def _llava():
    from transformers import CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration

    vision = CLIPVisionConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, image_size=28,
                              patch_size=14, projection_dim=64)
    config = LlavaConfig(vision_config=vision, text_config=_llama()[1], image_token_index=IMAGE_TOKEN,
                         vision_feature_select_strategy="default", vision_feature_layer=-1, tie_word_embeddings=False)
    config.image_token_id = IMAGE_TOKEN
    return LlavaForConditionalGeneration, config


def _finish_llava(place: Path) -> None:
    """Adds what turns an image into pixels, and gives the weights the names that vLLM 0.32 reads."""
    from safetensors.torch import load_file, save_file
    from transformers import AutoTokenizer, LlavaProcessor
    from transformers.models.clip import CLIPImageProcessorPil

    tokenizer = AutoTokenizer.from_pretrained(place)
    tokenizer.add_tokens([f"<unused{i}>" for i in range(IMAGE_TOKEN - len(tokenizer))])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    pixels = CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    LlavaProcessor(image_processor=pixels, tokenizer=tokenizer, patch_size=14, vision_feature_select_strategy="default",
                   image_token="<image>", num_additional_image_tokens=1).save_pretrained(place)
    tensors = load_file(place / "model.safetensors")
    save_file({name.replace("vision_tower.", "vision_tower.vision_model."): tensor for name, tensor in tensors.items()},
              place / "model.safetensors", metadata={"format": "pt"})


MODELS = {
    "llama": (_llama, 1),
    "llama-retrained": (_llama, 2),  # other weights, all else equal
    "llama-17m": (lambda: _llama(hidden_size=512, intermediate_size=1408, num_hidden_layers=6, num_attention_heads=8,
                                 num_key_value_heads=4), 1),
    "llama-one-head": (lambda: _llama(num_key_value_heads=1), 1),
    "mistral": (_mistral, 1),
    "gemma3": (_gemma3, 1),
    "deepseek": (_deepseek, 1),
    "qwen3": (_qwen3, 1),
    "lfm2": (_lfm2, 1),
    "qwen3-next": (_qwen3_next, 1),
    "llava": (_llava, 1),
}
_FINISH = {"llava": _finish_llava}


def make(folder: Path, name: str) -> Path:
    """Makes a model if it is not there. Returns its folder."""
    import torch

    place = folder / name
    if (place / "config.json").exists():
        return place
    recipe, seed = MODELS[name]
    torch.manual_seed(seed)
    kind, config = recipe()
    model = kind(config).to(torch.bfloat16)
    model.save_pretrained(place)
    _tokenizer(place)
    if name in _FINISH:
        _FINISH[name](place)
    text = json.loads((place / "config.json").read_text())
    text["torch_dtype"] = "bfloat16"
    (place / "config.json").write_text(json.dumps(text, indent=1))
    return place


def make_adapter(folder: Path, seed: int) -> Path:
    """Writes a LoRA adapter for "llama" into this folder."""
    import torch
    from safetensors.torch import save_file

    source = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(4):
        for name, size in (("q_proj", 256), ("v_proj", 128)):
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{at}.lora_A.weight"] = 0.2 * torch.randn(8, 256, generator=source)
            weights[f"{at}.lora_B.weight"] = 0.2 * torch.randn(size, 8, generator=source)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 16, "lora_dropout": 0.0, "bias": "none",
         "target_modules": ["q_proj", "v_proj"], "base_model_name_or_path": "llama"}))
    return folder


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for wanted in sys.argv[2:] or MODELS:
        print(make(Path(sys.argv[1]), wanted))
