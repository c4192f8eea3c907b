"""Sizes that bound a step and a request."""

import pytest
from fake_model import FakeModel
from fake_worker import fake_geometry
from msgspec.structs import replace

from pillion.actors.scheduler.limits import Limits
from pillion.runtime.config import EngineConfig
from pillion.runtime.errors import InvariantBroken

GEOMETRY = fake_geometry(FakeModel(50, 100), 8, 64, 40, 16)


def test_the_smallest_group_bounds_the_pool() -> None:
    (group,) = GEOMETRY.kv_groups
    geometry = replace(GEOMETRY, kv_groups=[group, replace(group, num_blocks=3)])
    limits = Limits.of(EngineConfig(model="fake"), geometry)
    assert (limits.num_groups, limits.num_blocks) == (2, 3)
    assert limits.refusal(40, 8) is None
    refusal = limits.refusal(40, 9)
    assert refusal is not None
    assert "40 prompt tokens + 9 of max_tokens = 49 tokens" in refusal


def test_the_model_bounds_the_answer_before_the_pool_does() -> None:
    limits = Limits.of(EngineConfig(model="fake"), GEOMETRY)
    assert limits.total_tokens(90, 50) == 100
    assert limits.refusal(90, 10**6) is None


def test_groups_of_different_block_sizes_cannot_work() -> None:
    (group,) = GEOMETRY.kv_groups
    geometry = replace(GEOMETRY, kv_groups=[group, replace(group, block_size_tokens=32)])
    with pytest.raises(InvariantBroken, match=r"\[16, 32\]"):
        Limits.of(EngineConfig(model="fake"), geometry)
