"""Prompts with images: what an image is counts for the blocks from the first one that has a part of it."""

import importlib

import pytest

pytest.importorskip("torchvision", reason="vLLM reads a model with images by torchvision only")
IMAGE_TOKEN = importlib.import_module("tiny_models").IMAGE_TOKEN
BLOCK = 128


def external_hits(answer):
    return answer["metrics"].get("vllm:external_prefix_cache_hits", 0)


def test_engines_share_prompts_with_images(models, engines, pools, prompt):
    """One text with two images, which stand behind two full blocks: those are a hit for both, the rest for the same image."""
    pool = pools()
    model, options = models("llava"), {"pool": pool.path}
    words = prompt(1, 6 * BLOCK)
    asked = [words[: 2 * BLOCK + 5] + [IMAGE_TOKEN] + words[2 * BLOCK + 5 :]]
    whole = (len(asked[0]) + 3) // BLOCK * BLOCK  # an image is four tokens
    alone = engines(model)
    expected = {seed: alone.answer(asked, image=seed)["tokens"] for seed in (1, 2)}
    assert expected[1] != expected[2], "the images do not matter: this model cannot show a wrong one"
    assert engines(model, options).answer(asked, image=1)["tokens"] == expected[1]
    second = engines(model, options)
    answer = second.answer(asked, image=1)
    assert answer["tokens"] == expected[1]
    assert answer["cached"] == [whole] and external_hits(answer) == whole
    answer = second.answer(asked, image=2)
    assert answer["tokens"] == expected[2]
    assert answer["cached"] == [2 * BLOCK]
    answer = engines(model, options).answer(asked, image=2)
    assert answer["tokens"] == expected[2]
    assert answer["cached"] == [whole] and external_hits(answer) == whole
