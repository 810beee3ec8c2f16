"""What Keepwarm costs, measured. `make bench` runs all of it and ends in one JSON line."""
