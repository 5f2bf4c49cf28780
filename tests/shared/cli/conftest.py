"""Fixtures of the command line's tests."""

from tests.shared.cli.in_process import alone

__all__ = ["alone"]
