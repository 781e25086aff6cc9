"""Large kernels in pieces: the same results on any number of threads, errors raised, forked children go on."""

import os

import numpy as np
import pytest
import tapejit as tj
import tapejit.nn.functional as F
from tapejit.eager import threads


@pytest.fixture(autouse=True)
def as_before():
    before = tj.get_num_threads()
    yield
    tj.set_num_threads(before)


def step():
    """gelu, attention and AdamW over arrays that are divided, and a size that leaves a rest."""
    tj.manual_seed(0)
    w = tj.randn(3, 50, 1001, requires_grad=True)
    q = tj.randn(2, 3, 200, 16, requires_grad=True)
    out = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    (F.gelu(w).sum() + (out * out).sum()).backward()
    optimizer = tj.optim.AdamW([w, q], lr=0.1)
    optimizer.step()
    return [t.detach().numpy() for t in (w, q, w.grad, q.grad, out)]


def test_results_do_not_depend_on_the_number_of_threads():
    results = []
    for count in (1, 2, 3):
        tj.set_num_threads(count)
        results.append(step())
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert np.array_equal(a, b)


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_error_in_any_part_is_raised(failing):
    tj.set_num_threads(3)

    def task(i):
        if i == failing:
            raise KeyError(i)

    with pytest.raises(KeyError, match=str(failing)):
        threads.run_all(task, 3)


def test_every_part_runs_once():
    tj.set_num_threads(2)
    seen = []
    threads.run_all(seen.append, 5)
    assert sorted(seen) == [0, 1, 2, 3, 4]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_goes_on():
    tj.set_num_threads(2)
    expected = F.gelu(tj.ones(100_000)).sum().item()
    child = os.fork()
    if child == 0:
        os._exit(0 if F.gelu(tj.ones(100_000)).sum().item() == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
