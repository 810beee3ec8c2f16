"""`keepwarm plan`: what keys and values cost, what fits and how fast it can be, from a configuration alone."""
