"""Plans for several nodes: where rows are, where they must meet, and keys that are too heavy for one node."""
