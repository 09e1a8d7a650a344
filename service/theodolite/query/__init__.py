"""Select and describe results of finished runs, for the command line, the figures and the API.

The package imports no torch, Ray or Dask.
"""
