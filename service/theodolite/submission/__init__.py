"""Survey jobs: the store holds their records, and a Ray cluster runs them as Ray jobs."""
