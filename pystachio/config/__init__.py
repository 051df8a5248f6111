"""The settings: one TOML file, environment variables `PYSTACHIO_...`, flags or keyword arguments; the last one wins.

Read once, at the door. The parts of the engine never see this module: their constructors take the values they need.
"""

from pystachio.config.cluster import CLUSTER_PREFIX as CLUSTER_PREFIX
from pystachio.config.cluster import CLUSTER_SECTION as CLUSTER_SECTION
from pystachio.config.cluster import ClusterSettings as ClusterSettings
from pystachio.config.cluster import EmulatedNetwork as EmulatedNetwork
from pystachio.config.cluster import require_serviceable as require_serviceable
from pystachio.config.loading import CONFIG_VARIABLE as CONFIG_VARIABLE
from pystachio.config.loading import TOKEN_VARIABLE as TOKEN_VARIABLE
from pystachio.config.loading import Loaded as Loaded
from pystachio.config.loading import load as load
from pystachio.config.quantities import parse_duration as parse_duration
from pystachio.config.quantities import parse_size as parse_size
from pystachio.config.settings import SECTIONS as SECTIONS
from pystachio.config.settings import EmulatedDisk as EmulatedDisk
from pystachio.config.settings import Settings as Settings
