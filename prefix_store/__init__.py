"""What is cached, until when and for whom. Knows no torch and no HTTP."""
