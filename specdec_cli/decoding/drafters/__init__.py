"""Drafters: everything that proposes tokens, one file per strategy."""
