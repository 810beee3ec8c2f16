"""Writes a whole GGUF model of a few thousand weights, so that a conversion takes milliseconds."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

WIDTH, HEADS, LAYERS, INNER = 32, 2, 2, 64
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"


def byte_alphabet() -> list[str]:
    """Return the 256 printable stand-ins for bytes that byte-level BPE uses."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    return [chr(code) for code in printable] + [chr(256 + n) for n in range(256 - len(printable))]


def write_tiny_gguf(path: Path, *, without: str = "") -> Path:
    """Write a Llama of two layers with a byte-level vocabulary; leave out the tensors whose name holds `without`."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = byte_alphabet()
    tokens = [*special, *alphabet, "he", "ll"]
    kinds = [gguf.TokenType.CONTROL] * len(special) + [gguf.TokenType.NORMAL] * (len(tokens) - len(special))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["h e", "l l"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    for name, shape in _tensors(len(tokens)).items():
        if not without or without not in name:
            writer.add_tensor(name, np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32) * 0.1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(vocab: int) -> dict[str, tuple[int, ...]]:
    """Return every tensor's name and shape; the output layer is tied to the embedding."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab, WIDTH), "output_norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            shapes[f"blk.{layer}.{name}.weight"] = (WIDTH, WIDTH)
        for name in ("ffn_gate", "ffn_up"):
            shapes[f"blk.{layer}.{name}.weight"] = (INNER, WIDTH)
        shapes[f"blk.{layer}.ffn_down.weight"] = (WIDTH, INNER)
        for name in ("attn_norm", "ffn_norm"):
            shapes[f"blk.{layer}.{name}.weight"] = (WIDTH,)
    return shapes
