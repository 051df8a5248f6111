"""Clusters in virtual time: whole nodes, their network, disks and workers on one loop, replayed from a seed."""
