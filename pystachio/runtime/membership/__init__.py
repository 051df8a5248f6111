"""Who is in the cluster: the same view on every node, with an epoch, without consensus.

Queries are read-only and nodes share no state that changes, so two sides of a partition may each go on by themselves.
What is left to agree on is a list: the leader, the least name among the members that are connected, publishes it with a
higher epoch whenever somebody is connected, lost or drained, and the others follow. `core.Membership` decides, from
events to actions, with time and chance as arguments; `server/control_plane.py` drives it with a real network, and
`simulation` with thousands of faults. Whether a node lives is the network's business (its heartbeats).
"""
