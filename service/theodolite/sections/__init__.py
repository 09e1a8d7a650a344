"""Sentences, figures and tables of each analysis of a run. The report and the page share them."""
