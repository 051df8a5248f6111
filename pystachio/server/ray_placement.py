"""Where supervisors go: how many, and what each takes of a host, decided from what Ray says of its hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pystachio.errors import InvalidRequest, ResourceExhausted

CPU, GPU = "CPU", "GPU"


@dataclass(frozen=True, slots=True)
class Placement:
    """For a placement group of Ray: a bundle of resources for each supervisor, and how they are spread over hosts."""

    bundles: tuple[Mapping[str, float], ...]
    strategy: str


def place(hosts: Sequence[Mapping[str, float]], nodes: int | None, per_gpu: bool | None) -> Placement:
    """`hosts` are the resources of each; one without CPUs (`ray start --num-cpus=0`) gets no node.

    With neither choice there is one node for each GPU, or where there is none one for each host. So many `nodes` are
    spread over the hosts as evenly as may be. Each takes one CPU of Ray's count, or one GPU.
    Raises ResourceExhausted when there is too little, InvalidRequest for choices that exclude each other.
    """
    if nodes is not None and per_gpu:
        raise InvalidRequest("a number of nodes and one for each GPU exclude each other")
    cpus = [int(host.get(CPU, 0)) for host in hosts]
    able = sum(count > 0 for count in cpus)
    gpus = sum(int(host.get(GPU, 0)) for host in hosts)
    if per_gpu and not gpus:
        raise ResourceExhausted("none of Ray's hosts has a GPU", setting="per_gpu", value=0, needed=1)
    if nodes is None and gpus and per_gpu is not False:
        # Only hosts with a GPU have room for such a bundle, and each for as many as it has GPUs.
        return Placement(({GPU: 1.0},) * gpus, "PACK")
    wanted = (able or 1) if nodes is None else nodes
    if wanted > sum(cpus):
        raise ResourceExhausted(
            f"Ray's hosts have {sum(cpus)} CPUs by its count, and {wanted} nodes take one each",
            setting="nodes",
            value=sum(cpus),
            needed=wanted,
            hint="more hosts, or a higher count for `ray start --num-cpus`",
        )
    return Placement(({CPU: 1.0},) * wanted, "STRICT_SPREAD" if wanted <= able else "SPREAD")
