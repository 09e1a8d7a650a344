"""Finding a model, loading it, and knowing where its parts are."""
