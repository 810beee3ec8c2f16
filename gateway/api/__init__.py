"""One room per wire format: parse, shape answers, shape errors, shape usage."""
