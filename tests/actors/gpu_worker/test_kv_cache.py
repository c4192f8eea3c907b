"""The KV pool, as far as nobody else tests it by using it."""

import torch

from pillion.actors.gpu_worker.kv_cache import KvCache


def test_each_layer_that_is_asked_for_is_told() -> None:
    asked: list[None] = []
    cache = KvCache(3, 2, 1, 8, 4, torch.float32, torch.device("cpu"), lambda: asked.append(None))
    assert cache.layer(0).shape == cache.layer(1).shape == (4, 2, 1, 8, 4)
    assert len(asked) == 2
