"""The records of families, by the form of their blocks."""
