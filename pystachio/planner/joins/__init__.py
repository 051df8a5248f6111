"""The order of joins: graphs of joins, estimates, and the search."""
