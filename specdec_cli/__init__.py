"""specdec: local quantized inference with speculative decoding that never changes the output."""
