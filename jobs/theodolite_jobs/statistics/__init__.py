"""Pure statistics: arrays in, arrays out, in float64. They know no store, cluster or screen."""
