"""The operators' page in a real browser, over made-up answers."""
