"""Sentences, figures and tables of each result group of a run. The report and the page share them."""
