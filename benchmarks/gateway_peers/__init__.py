"""What a gateway adds, beside the rivals: `python -m benchmarks.gateway_peers`."""
