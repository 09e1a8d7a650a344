"""Standalone HTML pages from stored results: the report of a run, and the comparison of several runs."""
