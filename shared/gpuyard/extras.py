"""Whether what an extra of the distribution brings is there, before anything of it is imported."""

from importlib.util import find_spec


def missing(*packages: str) -> list[str]:
    """Those that are not installed, by the names under which they are imported."""
    return [name for name in packages if find_spec(name) is None]


def fault(extra: str, *packages: str) -> str | None:
    """The line that says what is missing and how to get it; None where all of it is there."""
    absent = missing(*packages)
    if not absent:
        return None
    text = f"pip install 'gpuyard[{extra}]', or the wheel file with [{extra}] after it"
    return f"not installed: {', '.join(absent)}; {text}"
