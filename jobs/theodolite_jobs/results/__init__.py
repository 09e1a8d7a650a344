"""One module for each result group: what its digest covers, and how it is computed from a captured run."""
