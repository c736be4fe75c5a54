"""Measurements: strategies against plain decoding, the cost of a pass by its rows, equality of ids."""
