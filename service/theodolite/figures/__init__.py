"""Plotly figures from stored results: notebook, report and page all use these."""
