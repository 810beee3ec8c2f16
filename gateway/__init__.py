"""HTTP, tokenising, accounting and the operators' side; of the engine it knows only client and messages."""
