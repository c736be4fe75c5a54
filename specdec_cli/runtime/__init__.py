"""Executors: what runs a model definition, and the KV cache it runs on."""
