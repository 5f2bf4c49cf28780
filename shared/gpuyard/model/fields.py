"""Fields of the documents that people write: the forms that a value may take, and its bounds."""

import json
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from gpuyard.model import moments
from gpuyard.model.quantities import number, parse_duration_s, parse_size_mib

MOST_PRIORITY: Final = 100
LEAST_MEMORY_MIB: Final = 6
LEAST_CPUS: Final = 0.01
"""Both of Docker Engine: it starts no container with less."""


class Part(BaseModel):
    """A map inside a document. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


def read_seconds(value: Any) -> Any:
    """Of a number of seconds, or of a duration such as `4h`."""
    return parse_duration_s(value) if isinstance(value, str) else number(value)


def _read_moment(value: Any) -> Any:
    if isinstance(value, str):
        return moments.parse_moment(value)
    seconds = number(value)
    return moments.parse_seconds(seconds) if isinstance(seconds, int | float) else seconds


def read_mib(value: Any) -> Any:
    """Of a number of MiB, or of a size such as `8GiB`."""
    return parse_size_mib(value) if isinstance(value, str) else number(value)


def _read_words(value: Any) -> Any:
    """A command written as one text is refused with the list that it likely means."""
    if isinstance(value, str):
        raise ValueError(f"write it as a list, one item per word: {json.dumps(value.split())}")
    return value


Seconds = Annotated[float, Field(ge=0.001, le=10 * 365 * 86400), BeforeValidator(read_seconds)]
Mib = Annotated[int, Field(gt=0, le=2**31), BeforeValidator(read_mib)]
HostMib = Annotated[int, Field(ge=LEAST_MEMORY_MIB, le=2**31), BeforeValidator(read_mib)]
Moment = Annotated[str, BeforeValidator(_read_moment)]
Cpus = Annotated[float, Field(ge=LEAST_CPUS, le=100_000), BeforeValidator(number)]
Count = Annotated[int, BeforeValidator(number)]
Words = Annotated[list[str], BeforeValidator(_read_words)]
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$")]
