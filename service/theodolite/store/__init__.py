"""Where runs are kept: a local folder or a bucket, through obstore and Zarr."""
