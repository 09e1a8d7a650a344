"""Capture activations: turn token ids and a model into arrays. This package does not depend on Ray or Zarr."""
