"""What a node offers to other nodes: the control plane (typed messages, membership) and the central service over it."""
