"""Sessions on nodes elsewhere: what clients and nodes say to each other, and the client's side of it."""
