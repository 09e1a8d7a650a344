"""The only modules that import Ray: replicas that pin a model, and the loop that feeds them."""
