"""`python -m gpuyard_agent.keeper DIRECTORY [--while-needed]`"""

import sys

from gpuyard_agent.keeper import daemon

USAGE = """\
usage: python -m gpuyard_agent.keeper DIRECTORY [--while-needed]

Ends the attempts whose fence is over. DIRECTORY is the folder `keeper` in that of the agent.
--while-needed: leave when no agent is there and nothing is held."""


def main(words: list[str]) -> int:
    """The exit code: 2 for a line that cannot be meant, else that of `daemon.serve`."""
    options = [word for word in words if word.startswith("-")]
    folders = [word for word in words if not word.startswith("-")]
    if "--help" in options or "-h" in options:
        print(USAGE)
        return 0
    if len(folders) != 1 or not set(options) <= {"--while-needed"}:
        print(USAGE, file=sys.stderr)
        return 2
    return daemon.serve(folders[0], wanted_always=not options)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
