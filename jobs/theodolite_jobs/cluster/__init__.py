"""Ray replicas, which each hold a copy of the model, and the loop that dispatches shards to them.

Only this package imports Ray.
"""
