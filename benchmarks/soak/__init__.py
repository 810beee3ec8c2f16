"""`make soak`: mixed traffic on a real server for half an hour, and whether its memory stays flat."""
