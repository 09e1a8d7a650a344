"""The service: questions over finished runs, and jobs for the Ray cluster. Imports no torch, Ray or Dask."""
