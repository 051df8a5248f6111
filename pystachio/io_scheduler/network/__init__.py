"""Messages between nodes, every chunk of them scheduled like a read from a disk.

    async with Network(node="a", service=service, secret=secret, transport=choose_transport()) as network:
        address = await network.listen("10.0.0.1", 0)
        await network.connect("b", host, port)
        await network.send("b", MessageKey(plan_id, operator, sequence), buffer)
        received = await network.receive("b", MessageKey(plan_id, operator, sequence))

Messages are called by (plan, operator, sequence): neither end depends on the order in which the other comes to them. A
message moves when both ends have come to it. The receiver's scheduler decides when each chunk may come (plan's class,
fairness, memory credit, window: the ingress link), then the sender's when it goes (the egress link); the plan must be
open in both. Buffers may be reused when `send` or `receive` has ended, in whatever way, and never before.

What ends a wait: the other end, `NodeLost` when the peer's process, connection or event loop is gone (heartbeats: 4 s),
`ResourceExhausted` when there is no progress for `NetworkLimits.wait_seconds` (or the `patience` of who waits), or
cancelling the task. A message that one end gives up, for any reason, ends at the other with the same error.

Besides messages there are bodies, for words between nodes that are no data: `network.tell(peer, body)` calls the peer's
`heard`, in order. Clients, who are no nodes, tell and are told bodies on connections of their own (`visits`).

Nobody is heard who has not proved to know the cluster's secret, or the key of a token made from it (`handshake`,
`tokens`), and each frame proves that it comes from there, in its turn (`seal`). Nothing is encrypted, and data are not
proof against who can change them on their way, unless `Network(tls=...)` says so (`tls`).

`tcp_path` and `ucx_path` carry the data; control frames always go by TCP. Import the modules: this package exports
nothing, so that it costs nothing.
"""
