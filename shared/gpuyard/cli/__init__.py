"""The command line. `main` is its entry; everything else loads when it is needed."""


def main() -> None:
    """Runs the command in `sys.argv` and exits with its code."""
    try:
        from gpuyard.cli.app import cli
    except KeyboardInterrupt:
        # Ctrl-C while the program still loads: nothing was asked of the yard yet.
        raise SystemExit(130) from None
    cli.main()
