"""The order of plans across nodes: pure code, as in `core`. `scheduler` runs on one node, `lease_holder` on each."""
