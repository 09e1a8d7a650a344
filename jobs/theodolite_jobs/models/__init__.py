"""Find a model, load it, and describe its parts."""
