"""What the computations of analyses share."""
