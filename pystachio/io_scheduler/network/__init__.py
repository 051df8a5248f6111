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
`ResourceExhausted` when there is no progress for `NetworkLimits.wait_seconds`, or cancelling the task. A message that
one end gives up, for any reason, ends at the other with the same error.

Nobody is heard who has not proved to know the cluster's secret (`handshake`). Bytes are not encrypted: that is for the
network below. `tcp_path` and `ucx_path` carry the data; control frames always go by TCP. Import the modules: this
package exports nothing, so that it costs nothing.
"""
