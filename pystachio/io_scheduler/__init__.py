"""Every byte that is moved is a request to one scheduler.

`core` decides (facts in, orders out) and `central` orders plans across nodes, both without input or output; `service`
and `client` are the asyncio shell of the core; `devices` and `network` move bytes; `ledger` and `history` remember
them; `simulation` runs the core in virtual time. Import the modules: this package exports nothing, so that it costs
nothing.
"""
