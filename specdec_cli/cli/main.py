"""Entry point of the `specdec` command."""

import typer

app = typer.Typer(no_args_is_help=True)


def main() -> None:
    """Run the command line."""
    app()
