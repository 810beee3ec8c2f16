"""What can be wrong with what the doctor is given."""


class Unusable(Exception):
    """The input cannot be looked at; the message says which and why, in one line."""
