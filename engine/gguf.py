"""Turns one GGUF file into a folder of safetensors and tokenizer files that any start can load at once.

Owns: the conversion itself. Knows nothing of caches, locks or names; `engine.weights` decides where the folder goes.
Rule: a folder is written whole or the caller gets `ModelRefused`; weights are unpacked to float32, which holds every
value of a quantised file exactly, so that logits from the folder equal those from the file.
Imports torch and transformers inside the function only: reading this module costs nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

from engine.errors import ModelRefused

Progress = Callable[[str, int, int], None]  # what is being done, parts done, parts in all

MAGIC = b"GGUF"

# What gguf and transformers raise on a file they cannot read: they have no error of their own.
UNREADABLE = (
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    RuntimeError,
    OSError,
    struct.error,
)


def check_magic(source: Path) -> None:
    """Refuse at once, before seconds of work, what is not GGUF at all."""
    try:
        with source.open("rb") as file:
            magic = file.read(len(MAGIC))
    except OSError as error:
        raise ModelRefused(f"{source} cannot be read: {error.strerror}. Check the path and its permissions.") from error
    if magic != MAGIC:
        raise ModelRefused(f"{source} is not a GGUF file: it does not begin with 'GGUF'. Download it again.")


def convert(source: Path, target: Path, progress: Progress) -> None:
    """Write `source` as safetensors, configuration, tokenizer and chat template into the empty folder `target`.

    Raises ModelRefused when `source` cannot be read and OSError when `target` cannot be written.
    """
    check_magic(source)
    import torch  # noqa: PLC0415  two seconds that only a conversion pays
    import transformers  # noqa: PLC0415
    from safetensors import SafetensorError  # noqa: PLC0415

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder, file = str(source.parent), source.name
    stages = 4
    try:
        progress("Reading the tokenizer", 0, stages)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)
        progress("Reading the model's shape", 1, stages)
        config = transformers.AutoConfig.from_pretrained(folder, gguf_file=file)
        progress("Unpacking the weights", 2, stages)
        model, loading = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            gguf_file=file,
            config=config,
            dtype=torch.float32,
            quantization_config=transformers.GgufConfig(dequantize=True),
            output_loading_info=True,
        )
    except UNREADABLE as error:
        raise ModelRefused(f"{source} is broken or of an unknown kind ({error}). Download it again.") from error
    if loading["missing_keys"]:
        missing = ", ".join(sorted(loading["missing_keys"])[:3])
        raise ModelRefused(f"{source} lacks weights that its architecture needs ({missing}). Download it again.")
    progress("Writing safetensors", 3, stages)
    tokenizer.save_pretrained(target)
    try:
        model.save_pretrained(target)
    except SafetensorError as error:  # its only word for a full disk
        raise OSError(str(error)) from error
    progress("Converted", stages, stages)
