"""Read prompt sets as texts, and convert texts to token ids."""
