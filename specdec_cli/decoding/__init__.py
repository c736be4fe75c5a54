"""Propose, verify, commit: speculative decoding against protocols only."""
