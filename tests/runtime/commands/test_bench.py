"""`pillion bench`: numbers with which nothing can be measured are refused before a daemon starts."""

import argparse
from pathlib import Path

import pytest

from pillion.runtime.commands import bench
from pillion.runtime.errors import ConfigError


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--repeats 0", "--repeats must be at least 1, got 0"),
        ("--requests 0", "--requests must be at least 1"),
        ("--input-len -1", "--input-len must be at least 1"),
        ("--output-len 0", "--output-len must be at least 1"),
        ("--shortest 0", "--shortest must be at least 1"),
        ("--shortest 9 --longest 8", "--shortest is 9, which is above --longest, 8"),
        ("--seconds nan", "--seconds must be above 0"),
        ("--batch 1,x", "--batch takes sizes such as 1,8,32"),
    ],
)
def test_impossible_numbers_are_refused_by_name(
    flags: str, message: str, runtime_root: Path
) -> None:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    with pytest.raises(ConfigError, match=message):
        bench.run(parser.parse_args(["latency", "--model", "m", *flags.split()]))
    assert list(runtime_root.iterdir()) == []
