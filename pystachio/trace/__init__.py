"""What is made of the records of one plan: a file for the Perfetto viewer, and a verdict in words."""
