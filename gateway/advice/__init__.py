"""What the gateway's own traffic says about its policies, and what is going wrong: from hashes and counts."""
