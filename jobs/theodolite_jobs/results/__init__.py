"""One module for each analysis: what its digest covers, and how it is computed from a captured run."""
