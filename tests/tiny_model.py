"""A tiny tokenizer and a tiny random Llama in a folder, as `--model` takes it.

The tokenizer is byte-level, so any text works: one token a byte, plus a few merges. The model answers nonsense, always
the same nonsense: its weights come from a fixed seed.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = (("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("in", "g"), ("a", "n"), ("an", "d"), ("Ġ", "and"))

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_tokenizer(template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """Build a byte-level tokenizer that speaks ChatML, by another template or by none."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*SPECIALS, *alphabet, *("".join(merge) for merge in MERGES)]
    tokenizer = Tokenizer(models.BPE(vocab={word: place for place, word in enumerate(words)}, merges=list(MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIALS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=SPECIALS[0], eos_token=SPECIALS[2], pad_token=SPECIALS[2]
    )
    fast.chat_template = template
    return fast


def save_tiny_tokenizer(folder: Path, template: str | None = CHATML) -> Path:
    """Write only the tokenizer."""
    tiny_tokenizer(template).save_pretrained(folder)
    return folder


def save_tiny_model(folder: Path, *, window: int = 2048, seed: int = 0) -> Path:
    """Write a random float32 Llama of two layers and its tokenizer. Imports torch, so call it outside the gateway."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tiny_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=window,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
        dtype="float32",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
