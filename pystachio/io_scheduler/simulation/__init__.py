"""A discrete-event simulator around the scheduler that production runs: what scenario files import.

`load_scenario` finds a scenario, `simulate` runs it; see docs/simulation.md.
"""

from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.io_scheduler.simulation.central_service import CentralService
from pystachio.io_scheduler.simulation.exchanges import AllToAll, UrgentMessages
from pystachio.io_scheduler.simulation.faults import Cancel, DeviceFault, Rerank, Silence
from pystachio.io_scheduler.simulation.hardware import GIB, GPU, KIB, MIB, NVME, PCIE, Device, Hardware, Network
from pystachio.io_scheduler.simulation.outcome import ClassOutcome, LinkOutcome, Outcome
from pystachio.io_scheduler.simulation.scenario import Scenario, find_policy, simulate
from pystachio.io_scheduler.simulation.scenario_files import built_in_names, load_scenario
from pystachio.io_scheduler.simulation.shared_scans import SharedScan
from pystachio.io_scheduler.simulation.simulation import Deadlock
from pystachio.io_scheduler.simulation.workloads import Queries, Scans, Workload

__all__ = [
    "GIB",
    "GPU",
    "KIB",
    "MIB",
    "NVME",
    "PCIE",
    "AllToAll",
    "Cancel",
    "CentralService",
    "ClassOutcome",
    "Deadlock",
    "Device",
    "DeviceFault",
    "Hardware",
    "LinkOutcome",
    "Network",
    "Outcome",
    "PriorityClass",
    "Queries",
    "Rerank",
    "Scans",
    "Scenario",
    "SharedScan",
    "Silence",
    "UrgentMessages",
    "Workload",
    "built_in_names",
    "find_policy",
    "load_scenario",
    "simulate",
]
