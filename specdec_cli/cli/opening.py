"""From option values to a session: models found (or fetched), paired, loaded, and an engine over them."""

from specdec_cli.cli.console import Reporter
from specdec_cli.cli.options import ModelOptions, SpecOptions
from specdec_cli.cli.session import Session
from specdec_cli.cli.settings import Settings


def open_session(model: ModelOptions, spec: SpecOptions, settings: Settings, reporter: Reporter) -> Session:
    raise NotImplementedError
