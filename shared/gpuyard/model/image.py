"""Names of container images, as engines read them.

The grammar is that of https://pkg.go.dev/github.com/distribution/reference: a registry's host where
there is one, the path in lower case, and perhaps a tag and a digest.
"""

from typing import Final

_HOST: Final = (
    r"([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*"
    r"|\[[0-9A-Fa-f:]+\])(:[0-9]+)?"
)
_PART: Final = r"[a-z0-9]+((\.|__?|-+)[a-z0-9]+)*"
_TAG: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_DIGEST: Final = r"[A-Za-z][A-Za-z0-9]*([+._-][A-Za-z][A-Za-z0-9]*)*:[0-9A-Fa-f]{32,}"
REFERENCE: Final = f"^({_HOST}/)?{_PART}(/{_PART})*(:{_TAG})?(@{_DIGEST})?$"
