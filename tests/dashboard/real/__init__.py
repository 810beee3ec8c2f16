"""The page over real gateways on a tiny model: what it shows is what was answered."""
