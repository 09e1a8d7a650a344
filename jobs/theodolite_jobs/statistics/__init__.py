"""Statistics as pure functions of arrays, in float64, without access to the store, the cluster or the screen."""
