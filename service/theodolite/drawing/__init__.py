"""Plotly figures from stored results, for notebooks, the report and the page."""
