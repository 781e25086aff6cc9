"""Tables of vectors: Embedding looks rows up, EmbeddingBag pools the rows of each bag."""

from __future__ import annotations

from typing import Any

from ...core.tape.grad_mode import no_grad
from ...core.tensor import Tensor
from ...ops.create import empty
from .. import functional as F
from .. import init
from ..module import Module
from ..parameter import Parameter


class _Table(Module):
    """Base of Embedding and EmbeddingBag: the table and the row for padding."""

    weight: Parameter

    def _make_table(self, shape: tuple[int, int], padding_idx: int | None, given: Tensor | None, kind: dict[str, Any]) -> None:
        rows, _ = self.num_embeddings, self.embedding_dim = shape
        if padding_idx is not None and not (padding_idx == 0 or -rows <= padding_idx < rows):
            raise AssertionError(f"Padding_idx must be within num_embeddings: {padding_idx} is not in [{-rows}, {rows - 1}]")
        self.padding_idx = padding_idx + rows if padding_idx is not None and padding_idx < 0 else padding_idx
        if given is None:
            self.weight = Parameter(empty(*shape, **kind))
            self.reset_parameters()
        elif tuple(given.shape) != shape:
            raise AssertionError(
                f"Shape of weight does not match num_embeddings and embedding_dim: {list(given.shape)} against {list(shape)}"
            )
        else:
            self.weight = Parameter(given)

    def reset_parameters(self) -> None:
        """Draw a new table: standard normal, with zeros in the row for padding."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx].fill_(0)

    @staticmethod
    def _sizes(embeddings: Tensor) -> tuple[int, int]:
        if embeddings.ndim != 2:
            raise AssertionError(f"Embeddings parameter is expected to be 2-dimensional, got {embeddings.ndim} dimensions")
        return embeddings.shape[0], embeddings.shape[1]


class Embedding(_Table):
    """Rows of a table by number. Row `padding_idx` gets no gradient; `max_norm` shortens rows that are used."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse = max_norm, norm_type, scale_grad_by_freq, sparse
        self._make_table((num_embeddings, embedding_dim), padding_idx, _weight, {"device": device, "dtype": dtype})
        self.weight.requires_grad_(not _freeze)

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Embedding:
        """A layer on a table that exists; it is not trained unless `freeze=False`."""
        rows, columns = cls._sizes(embeddings)
        return cls(rows, columns, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, embeddings, freeze)

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(  # type: ignore[no-any-return]
            input, self.weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse
        )

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        text += f", padding_idx={self.padding_idx}" if self.padding_idx is not None else ""
        text += f", max_norm={self.max_norm}" if self.max_norm is not None else ""
        text += f", norm_type={self.norm_type}" if self.norm_type != 2 else ""
        text += f", scale_grad_by_freq={self.scale_grad_by_freq}" if self.scale_grad_by_freq is not False else ""
        return text + (", sparse=True" if self.sparse is not False else "")


class EmbeddingBag(_Table):
    """Sums, means or maxima of rows of a table, bag by bag."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.max_norm, self.norm_type, self.scale_grad_by_freq = max_norm, norm_type, scale_grad_by_freq
        self.mode, self.sparse, self.include_last_offset = mode, sparse, include_last_offset
        self._make_table((num_embeddings, embedding_dim), padding_idx, _weight, {"device": device, "dtype": dtype})

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> EmbeddingBag:
        """A layer on a table that exists; it is not trained unless `freeze=False`."""
        rows, columns = cls._sizes(embeddings)
        settings = (max_norm, norm_type, scale_grad_by_freq, mode, sparse, embeddings, include_last_offset, padding_idx)
        bag = cls(rows, columns, *settings)
        bag.weight.requires_grad_(not freeze)
        return bag

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        return F.embedding_bag(  # type: ignore[no-any-return]
            input, self.weight, offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.mode, self.sparse,
            per_sample_weights, self.include_last_offset, self.padding_idx,
        )  # fmt: skip

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        text += f", max_norm={self.max_norm}" if self.max_norm is not None else ""
        text += f", norm_type={self.norm_type}" if self.norm_type != 2 else ""
        text += f", scale_grad_by_freq={self.scale_grad_by_freq}" if self.scale_grad_by_freq is not False else ""
        text += f", mode={self.mode!r}"
        return text + (f", padding_idx={self.padding_idx}" if self.padding_idx is not None else "")
