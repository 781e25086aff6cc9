"""`detect_anomaly` names the line of the forward pass."""

from __future__ import annotations

import inspect
import threading

import pytest
import tapejit as tj
from tapejit import autograd


def leaf(*values: float) -> tj.Tensor:
    return tj.tensor(values, dtype=tj.float64, requires_grad=True)


def make_nan(x: tj.Tensor) -> tj.Tensor:
    y = x - 2
    return y.sqrt()  # the culprit


def line_of(function: object, text: str) -> str:
    lines, start = inspect.getsourcelines(function)
    place = next(i for i, line in enumerate(lines) if text in line)
    return f"line {start + place}, in {function.__name__}\n    {lines[place].strip()}\n"


def test_a_nan_is_traced_to_its_line() -> None:
    x = leaf(1, 3)
    with autograd.detect_anomaly(), pytest.raises(RuntimeError) as error:
        make_nan(x).sum().backward()
    text = str(error.value)
    assert text.startswith("Function 'SqrtBackward0' returned nan values in its 0th output. Traceback of forward call")
    assert text.endswith(line_of(make_nan, "the culprit"))
    assert "test_a_nan_is_traced_to_its_line" in text and "eager" not in text.replace(__file__, "")
    assert not tj.is_anomaly_enabled()


def test_only_the_innermost_lines_are_kept() -> None:
    def deep(x: tj.Tensor, n: int) -> tj.Tensor:
        return make_nan(x) if n == 0 else deep(x, n - 1)

    with autograd.detect_anomaly(), pytest.raises(RuntimeError) as error:
        deep(leaf(1), 50).sum().backward()
    assert "the culprit" in str(error.value) and str(error.value).count("in deep") < 20


def test_without_it_nans_pass() -> None:
    x = leaf(1, 3)
    make_nan(x).sum().backward()
    assert x.grad.isnan().tolist() == [True, False]


def test_which_gradient_is_nan() -> None:
    a, b = leaf(-1.0), leaf(2.0)
    with autograd.detect_anomaly(), pytest.raises(RuntimeError, match="PowBackward0' returned nan values in its 1th output"):
        (a**b).backward()  # the logarithm of -1


def test_errors_in_backward_name_the_line_too() -> None:
    def forward(x: tj.Tensor) -> tj.Tensor:
        y = x * 1
        z = y * y  # saved here
        y.add_(1)
        return z

    with autograd.detect_anomaly(), pytest.raises(RuntimeError, match="modified by an inplace operation") as error:
        forward(leaf(1, 2)).sum().backward()
    (note,) = error.value.__notes__
    assert note.startswith("Error detected in MulBackward0. Traceback of forward call that caused the error:")
    assert note.endswith(line_of(forward, "saved here"))


def test_custom_functions() -> None:
    class Nan(autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * float("nan")

    class Fails(Nan):
        @staticmethod
        def backward(ctx, g):
            raise KeyError("backward")

    with autograd.detect_anomaly():
        with pytest.raises(RuntimeError, match=r"Function 'NanBackward' returned nan(.|\n)*Nan.apply\(leaf"):
            Nan.apply(leaf(1)).sum().backward()
        with pytest.raises(KeyError) as error:
            Fails.apply(leaf(1)).sum().backward()
    assert "Fails.apply(leaf(1))" in error.value.__notes__[0]


def test_a_forward_pass_outside_has_no_lines() -> None:
    loss = make_nan(leaf(1)).sum()
    with autograd.detect_anomaly(), pytest.raises(RuntimeError, match="enable anomaly detection during the forward pass"):
        loss.backward()


def test_second_order_tells_both_lines() -> None:
    def second(g: tj.Tensor) -> None:
        (g * float("inf")).sum().backward()

    x = leaf(0.0)
    with autograd.detect_anomaly(), pytest.raises(RuntimeError) as error:
        y = x.sin() * x  # first
        (g,) = autograd.grad(y.sum(), x, create_graph=True)
        second(g * 0)
    assert "returned nan values" in str(error.value)
    with autograd.detect_anomaly(), pytest.raises(RuntimeError) as error:
        z = (x + 4).sqrt()  # induced
        (g,) = autograd.grad(z.sum(), x, create_graph=True)
        node = g.grad_fn
        while "induced by" not in (node.where or ""):
            node = node.next_functions[0][0]
        assert "Previous calculation was induced by" in node.where and "# induced" in node.where
        raise RuntimeError(node.where)
    assert "autograd.grad(z.sum()" in str(error.value)


def test_check_nan_off() -> None:
    x = leaf(1)
    with autograd.detect_anomaly(check_nan=False):
        assert tj.is_anomaly_enabled() and not tj.is_anomaly_check_nan_enabled()
        make_nan(x).sum().backward()
    assert x.grad.isnan().all()


def test_set_detect_anomaly() -> None:
    autograd.set_detect_anomaly(True)
    try:
        assert tj.is_anomaly_enabled() and tj.is_anomaly_check_nan_enabled()
        with autograd.set_detect_anomaly(False):
            assert not tj.is_anomaly_enabled()
        assert tj.is_anomaly_enabled()
        with pytest.raises(RuntimeError, match="nan"):
            make_nan(leaf(1)).sum().backward()
    finally:
        autograd.set_detect_anomaly(False)
    assert not tj.is_anomaly_enabled()
    with autograd.detect_anomaly():
        with autograd.detect_anomaly(check_nan=False):
            assert not tj.is_anomaly_check_nan_enabled()
        assert tj.is_anomaly_check_nan_enabled()


def test_it_belongs_to_the_thread() -> None:
    seen: list[bool] = []
    with autograd.detect_anomaly():
        thread = threading.Thread(target=lambda: seen.append(tj.is_anomaly_enabled()))
        thread.start()
        thread.join()
    assert seen == [False]


def test_half_precision_and_integers() -> None:
    for dtype in (tj.float16, tj.bfloat16, tj.float32):
        x = tj.tensor([-1.0], dtype=dtype, requires_grad=True)
        with autograd.detect_anomaly(), pytest.raises(RuntimeError, match="nan"):
            x.sqrt().sum().backward()
    with autograd.detect_anomaly():
        x = leaf(1, 2, 3)
        (x[tj.tensor([0, 2])] * tj.tensor([1, 2])).sum().backward()
