"""The page over real gateways."""
