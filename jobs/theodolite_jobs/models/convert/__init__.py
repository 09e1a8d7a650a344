"""Convert models from formats that transformers does not load as they are."""
