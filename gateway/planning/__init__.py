"""`keepwarm plan`: what a model's keys and values cost, what fits, and how fast a machine can be, from a config alone."""
