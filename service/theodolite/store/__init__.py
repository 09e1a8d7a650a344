"""Read and write runs in a local folder or a bucket, through obstore and Zarr."""
