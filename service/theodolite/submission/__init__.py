"""Survey jobs: the store keeps their record, a Ray cluster runs them."""
