"""Reading finished runs: what the command line, the figures and the API share. Imports no torch, Ray or Dask."""
