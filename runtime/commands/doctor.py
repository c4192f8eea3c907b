"""`pillion doctor`: looks for what could go wrong on this machine."""

import argparse
import sys
from typing import Final

import msgspec

from pillion.runtime.health_checks import check_machine

_MARKS: Final = {"ok": "ok", "warning": "warn", "broken": "BROKEN"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """For whom to write."""
    parser.add_argument("--json", action="store_true", help="the findings as a JSON list")


def run(arguments: argparse.Namespace) -> int:
    """Prints what was found; the exit status is 1 if something is broken."""
    broken = False
    findings = []
    for finding in check_machine():
        broken |= finding.state == "broken"
        findings.append(finding)
        if not arguments.json:
            advice = f" -> {finding.advice}" if finding.advice else ""
            mark = _MARKS[finding.state]
            print(f"{mark:7}{finding.check:17}{finding.detail}{advice}", flush=True)
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(findings)) + b"\n")
    return 1 if broken else 0
