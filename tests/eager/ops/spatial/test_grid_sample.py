"""grid_sample and affine_grid: what samples do not cover."""

import numpy as np
import pytest
import tapejit as tj
from tapejit.nn import functional as F


def test_the_identity_gives_the_image():
    tj.manual_seed(0)
    image = tj.randn(2, 3, 4, 5)
    theta = tj.tensor([[1.0, 0, 0], [0, 1, 0]]).expand(2, 2, 3)
    for align in (True, False):
        for mode in ("bilinear", "nearest", "bicubic"):
            found = F.grid_sample(image, F.affine_grid(theta, image.shape, align), mode, align_corners=align)
            np.testing.assert_allclose(found.numpy(), image.numpy(), atol=1e-5)


def test_a_quarter_turn():
    image = tj.arange(9.0).reshape(1, 1, 3, 3)
    theta = tj.tensor([[[0.0, -1, 0], [1, 0, 0]]])
    found = F.grid_sample(image, F.affine_grid(theta, (1, 1, 3, 3), False), align_corners=False)
    np.testing.assert_allclose(found[0, 0].numpy(), np.rot90(image[0, 0].numpy()), atol=1e-5)


def test_far_outside_and_nan():
    image = tj.ones(1, 1, 2, 2)
    grid = tj.tensor([[[[9.0, 0], [float("nan"), 0], [0, 0]]]])
    assert F.grid_sample(image, grid, align_corners=False)[0, 0, 0].nan_to_num(0).tolist() == [0, 0, 1]
    assert F.grid_sample(image, grid[:, :, ::2], padding_mode="border", align_corners=False).tolist() == [[[[1, 1]]]]


def test_an_image_finds_its_place():
    """A spatial transformer's use: the shift that makes two images equal is found by its gradient."""
    y, x = tj.meshgrid(tj.linspace(-1, 1, 16), tj.linspace(-1, 1, 16), indexing="ij")
    image = tj.exp(-((x**2 + y**2) / 0.3)).reshape(1, 1, 16, 16)
    wanted = tj.exp(-(((x - 0.3) ** 2 + (y + 0.2) ** 2) / 0.3)).reshape(1, 1, 16, 16)
    shift = tj.zeros(2, requires_grad=True)
    optimizer = tj.optim.Adam([shift], lr=0.05)
    for _ in range(60):
        theta = tj.cat([tj.eye(2), shift.reshape(2, 1)], 1).unsqueeze(0)
        found = F.grid_sample(image, F.affine_grid(theta, image.shape, True), padding_mode="border", align_corners=True)
        loss = F.mse_loss(found, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    np.testing.assert_allclose(shift.detach().numpy(), [-0.3, 0.2], atol=0.03)


def test_the_default_of_align_corners_warns():
    with pytest.warns(UserWarning, match="align_corners=False since 1.3.0"):
        F.grid_sample(tj.ones(1, 1, 2, 2), tj.zeros(1, 1, 1, 2))
    with pytest.warns(UserWarning, match="align_corners=False since 1.3.0"):
        F.affine_grid(tj.ones(1, 2, 3), (1, 1, 2, 2))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((tj.ones(1, 1, 2, 2), tj.zeros(1, 1, 1, 3)), RuntimeError, "size 2 in last dimension"),
        ((tj.ones(1, 1, 2, 2), tj.zeros(2, 1, 1, 2)), RuntimeError, "same batch size"),
        ((tj.ones(1, 2, 2), tj.zeros(1, 1, 2)), RuntimeError, "expected 4D or 5D input"),
        ((tj.ones(1, 1, 2, 2), tj.zeros(1, 1, 1, 2).double()), RuntimeError, "same dtype"),
        ((tj.ones(1, 1, 2, 2), tj.zeros(1, 1, 1, 2), "cubic"), ValueError, "expected mode to be"),
        ((tj.ones(1, 1, 2, 2), tj.zeros(1, 1, 1, 2), "nearest", "wrap"), ValueError, "expected padding_mode to be"),
        ((tj.ones(1, 1, 2, 2, 2), tj.zeros(1, 1, 1, 1, 3), "bicubic"), RuntimeError, "only supports 4D"),
    ],
)
def test_bad_calls(arguments, error, message):
    with pytest.raises(error, match=message):
        F.grid_sample(*arguments, align_corners=False)
    with pytest.raises(ValueError, match="Nx2x3"):
        F.affine_grid(tj.ones(1, 3, 4), (1, 1, 2, 2), False)
