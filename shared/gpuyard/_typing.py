"""One name for `TypedDict`: before Python 3.12 only the backport's kind can be validated."""

import sys

if sys.version_info >= (3, 12):
    from typing import TypedDict
else:
    from typing_extensions import TypedDict

__all__ = ["TypedDict"]
