"""Writes tiny models of kinds whose prompts cannot be shared, with random weights, as GGUF files.

usage: tiny_model.py recurrent|windowed FILE
"""
import array
import os
import random
import struct
import sys

WIDTH, LAYERS, HEADS, CONTEXT = 64, 4, 4, 1024
U32, F32, BOOL, STRING, ARRAY, I32 = 4, 6, 7, 8, 9, 5
ALIGNMENT = 32

# The first tokens, then a token for each byte, then letters. Kinds: 2 unknown, 3 control, 6 byte, 1 text.
TOKENS = ([("<unk>", 2), ("<s>", 3), ("</s>", 3)] + [(f"<0x{b:02X}>", 6) for b in range(256)] +
          [(chr(c), 1) for c in range(ord("a"), ord("z") + 1)])


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key, kind, value):
    """One line of the metadata."""
    packed = {U32: lambda: struct.pack("<I", value), F32: lambda: struct.pack("<f", value),
              BOOL: lambda: struct.pack("<?", value), STRING: lambda: text(value),
              ARRAY: lambda: struct.pack("<IQ", value[0], len(value[1])) + b"".join(value[1])}[kind]()
    return text(key) + struct.pack("<I", kind) + packed


def vocabulary():
    return [entry("tokenizer.ggml.model", STRING, "llama"),
            entry("tokenizer.ggml.tokens", ARRAY, (STRING, [text(t) for t, _ in TOKENS])),
            entry("tokenizer.ggml.scores", ARRAY, (F32, [struct.pack("<f", 0)] * len(TOKENS))),
            entry("tokenizer.ggml.token_type", ARRAY, (I32, [struct.pack("<i", k) for _, k in TOKENS])),
            entry("tokenizer.ggml.unknown_token_id", U32, 0), entry("tokenizer.ggml.bos_token_id", U32, 1),
            entry("tokenizer.ggml.eos_token_id", U32, 2), entry("tokenizer.ggml.add_space_prefix", BOOL, False)]


def recurrent():
    """Mamba: (metadata, tensors by layer)"""
    inner, state, rank, kernel = 2 * WIDTH, 16, 4, 4
    metadata = [("feed_forward_length", U32, 0), ("attention.head_count", U32, 0),
                ("attention.layer_norm_rms_epsilon", F32, 1e-5), ("ssm.conv_kernel", U32, kernel),
                ("ssm.inner_size", U32, inner), ("ssm.state_size", U32, state), ("ssm.time_step_rank", U32, rank)]
    tensors = {"attn_norm.weight": (WIDTH,), "ssm_in.weight": (WIDTH, 2 * inner),
               "ssm_conv1d.weight": (kernel, inner), "ssm_conv1d.bias": (inner,),
               "ssm_x.weight": (inner, rank + 2 * state), "ssm_dt.weight": (rank, inner), "ssm_dt.bias": (inner,),
               "ssm_a": (state, inner), "ssm_d": (inner,), "ssm_out.weight": (inner, WIDTH)}
    return "mamba", metadata, tensors


def windowed():
    """Cohere 2: attention over a window in three of four layers."""
    metadata = [("feed_forward_length", U32, 2 * WIDTH), ("attention.head_count", U32, HEADS),
                ("attention.head_count_kv", U32, HEADS), ("attention.layer_norm_epsilon", F32, 1e-5),
                ("attention.sliding_window", U32, 32), ("logit_scale", F32, 0.25),
                ("rope.dimension_count", U32, WIDTH // HEADS)]
    square = (WIDTH, WIDTH)
    tensors = {"attn_norm.weight": (WIDTH,), "attn_q.weight": square, "attn_k.weight": square,
               "attn_v.weight": square, "attn_output.weight": square, "ffn_gate.weight": (WIDTH, 2 * WIDTH),
               "ffn_up.weight": (WIDTH, 2 * WIDTH), "ffn_down.weight": (2 * WIDTH, WIDTH)}
    return "cohere2", metadata, tensors


def weights(name, shape, rng):
    count = shape[0] * (shape[1] if len(shape) == 2 else 1)
    if name.endswith("norm.weight"):
        return array.array("f", [1] * count)
    if name.endswith("ssm_a"):
        return array.array("f", [-1] * count)
    return array.array("f", (rng.gauss(0, shape[0] ** -0.5) for _ in range(count)))


def model(kind):
    name, metadata, by_layer = {"recurrent": recurrent, "windowed": windowed}[kind]()
    entries = [entry("general.architecture", STRING, name), *vocabulary()]
    for key, form, value in [("context_length", U32, CONTEXT), ("embedding_length", U32, WIDTH),
                             ("block_count", U32, LAYERS), ("vocab_size", U32, len(TOKENS)), *metadata]:
        entries.append(entry(f"{name}.{key}", form, value))
    tensors = {"token_embd.weight": (WIDTH, len(TOKENS)), "output_norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        tensors.update({f"blk.{layer}.{tensor}": shape for tensor, shape in by_layer.items()})
    rng, infos, data = random.Random(1), b"", b""
    for tensor, shape in tensors.items():
        infos += text(tensor) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        infos += struct.pack("<IQ", 0, len(data))  # 0: f32
        data += weights(tensor, shape, rng).tobytes()
        data += bytes(-len(data) % ALIGNMENT)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries)) + b"".join(entries) + infos
    return head + bytes(-len(head) % ALIGNMENT) + data


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("recurrent", "windowed"):
        raise SystemExit(__doc__)
    unfinished = f"{sys.argv[2]}.{os.getpid()}"
    with open(unfinished, "wb") as file:
        file.write(model(sys.argv[1]))
    os.replace(unfinished, sys.argv[2])


if __name__ == "__main__":
    main()
