"""From weights on disk to result groups: one task on one layer."""
