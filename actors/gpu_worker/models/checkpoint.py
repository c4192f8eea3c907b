"""What a loader sees of a checkpoint, whatever its format: tensors by their Hugging Face names, unread."""

from typing import Protocol

from pillion.actors.gpu_worker.models.model_config import ModelConfig
from pillion.actors.gpu_worker.quantization.stored_tensor import StoredTensor


class Checkpoint(Protocol):
    """A model's files, opened and checked but not read."""

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""

    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """A tensor such as "model.layers.0.mlp.up_proj.weight".

        Raises ModelError naming the file and the tensor if it is missing or has another shape.
        """
