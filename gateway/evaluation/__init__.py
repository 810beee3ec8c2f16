"""`keepwarm eval`: what a way of keeping K and V does to answers."""
