"""Every byte that is moved is a request to one scheduler.

`request`, `policy` and `scheduler` are the pure core (facts in, orders out); `service` and `client` are its asyncio
shell; `devices` move bytes; `ledger` remembers them. Import the modules: this package exports nothing, so that it costs
nothing.
"""
