"""From token ids and a model to arrays of activations. Knows neither Ray nor Zarr nor where it runs."""
