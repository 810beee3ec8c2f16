"""Several gateway processes on one port, and the parent that answers operators for all of them."""
