"""What a node of a cluster says about itself; clients read it, so it is theirs."""

from pystachio.remote.description import MemberDescription as MemberDescription
from pystachio.remote.description import NodeDescription as NodeDescription
