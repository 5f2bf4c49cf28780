"""The command line. `main` is its entry; everything else loads when it is needed."""


def main() -> None:
    """Runs the command in `sys.argv` and exits with its code."""
    from gpuyard.cli.app import cli

    cli.main()
