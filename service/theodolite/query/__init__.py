"""Select and describe results of finished runs, without torch, Ray or Dask."""
