"""`pillion pull`: fetches a model before it is needed."""

import argparse

from pillion.runtime.model_source import resolve_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which model."""
    parser.add_argument(
        "model", metavar="MODEL", help="hub id (org/name or org/name@revision) or alias (smollm2)"
    )
    parser.add_argument(
        "--quiet", action="store_true", help="show no progress, print only where the model is"
    )


def run(arguments: argparse.Namespace) -> int:
    """Fetches the newest version, or checks what is there, and prints its path."""
    source = resolve_model(arguments.model, progress=not arguments.quiet, refresh=True)
    print(source.path)
    return 0
