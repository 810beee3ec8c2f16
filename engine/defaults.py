"""What a model's family means where its configuration is silent: transformers' own classes, asked in a process apart.

Knows no weights. The gateway never imports torch, and reading a configuration's class does: so it runs
`python -m engine.defaults` with the configuration on standard input, and reads the text model's on standard output.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec
from transformers import AutoConfig

NAMES = (  # under which every family tells them, however it spells them itself
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_size",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)


def filled(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of the text model with every default of its class. Raises what transformers raises."""
    whole = AutoConfig.for_model(**config)
    text = whole.get_text_config(decoder=True)
    found: dict[str, Any] = text.to_dict()
    for name in NAMES:
        if hasattr(text, name):
            found[name] = getattr(text, name)
    for name in ("dtype", "torch_dtype", "quantization_config"):
        if found.get(name) is None and config.get(name) is not None:
            found[name] = config[name]
    return found


def main() -> int:
    """Fill one configuration for a parent process."""
    given = msgspec.json.decode(sys.stdin.buffer.read(), type=dict[str, Any])
    sys.stdout.buffer.write(msgspec.json.encode(filled(given), enc_hook=str))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
