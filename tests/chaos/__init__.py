"""Seeded schedules of faults over a survey of a tiny model: after each of them, nothing is lost, doubled or different.

`make chaos` runs them. A schedule runs the real survey in processes of its own: the driver, and two replicas that the
real scheduling loop uses through pipes instead of Ray. `tests/integration` kills replicas, drivers and nodes of a real
Ray cluster.
"""
