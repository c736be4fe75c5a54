"""Logits processors, keyed noise and the sampler that plain and speculative decoding share."""
