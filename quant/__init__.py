"""Quantized tensors, their files and their kernels. Usable on its own; never imports specdec_cli."""
