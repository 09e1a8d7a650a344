"""From a prompt set's description to texts, and from texts to token ids."""
