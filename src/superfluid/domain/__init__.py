"""The nouns every process shares: requests, replies, ids. No I/O."""
