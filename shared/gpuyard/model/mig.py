"""Profiles of MIG instances: the names that the driver gives them, as `1g.10gb`.

`1g` is one of the seven compute slices of a GPU, `10gb` the memory; `1c.2g.10gb` has one of the two
compute slices of a `2g.10gb`, and a suffix such as `+me` tells of further engines.
"""

import re
from typing import Final

PROFILE: Final = r"^([1-7]c\.)?[1-7]g\.[0-9]{1,4}gb([+-][a-z]+(\.[a-z]+)*)*$"
_PROFILE: Final = re.compile(PROFILE)
_SLICES: Final = 7
"""Compute slices of a GPU; cards that have but four are counted alike, in the tenant's favour."""
_WHOLE_GPU_MILLI: Final = 1000


LEAST_MILLI: Final = _WHOLE_GPU_MILLI // _SLICES
"""What the smallest instance counts for."""


def is_profile(text: str) -> bool:
    return _PROFILE.fullmatch(text) is not None


def milli_of(profile: str) -> int:
    """What an instance counts for in limits and usage, in milli-GPU: a seventh of a GPU for each of
    its compute slices, rounded down, so that the instances of one GPU are never more than one."""
    return int(profile[0]) * _WHOLE_GPU_MILLI // _SLICES


def is_uuid(text: str) -> bool:
    """True for the UUID of an instance, or the beginning of one; not for a GPU's."""
    return text[:4].upper() == "MIG-"
