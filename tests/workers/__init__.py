"""Several gateway processes as one."""
