"""The standalone HTML page: what was measured, said and drawn from stored results."""
