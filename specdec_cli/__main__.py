"""Where `specdec` and `python -m specdec_cli` begin. Ctrl-C is answered from here on, imports included."""

import sys


def main() -> int:
    """Run the command line and return its exit code."""
    try:
        from specdec_cli.cli.main import main as run

        return run()
    except KeyboardInterrupt:  # while modules were imported, or twice
        return 130


if __name__ == "__main__":
    sys.exit(main())
