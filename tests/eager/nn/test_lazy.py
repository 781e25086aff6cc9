"""Layers that learn their sizes at the first call, and wrappers for devices and processes that are not there."""

import copy

import pytest
import tapejit as tj
from tapejit import nn

PLAIN = [
    (nn.LazyLinear, (4,), nn.Linear, (3, 4), (5, 3)),
    (nn.LazyConv1d, (4, 2), nn.Conv1d, (3, 4, 2), (2, 3, 5)),
    (nn.LazyConv2d, (4, 2), nn.Conv2d, (3, 4, 2), (3, 5, 5)),
    (nn.LazyConv3d, (4, 2), nn.Conv3d, (3, 4, 2), (2, 3, 4, 4, 4)),
    (nn.LazyConvTranspose1d, (4, 2), nn.ConvTranspose1d, (3, 4, 2), (2, 3, 5)),
    (nn.LazyConvTranspose2d, (4, 2), nn.ConvTranspose2d, (3, 4, 2), (2, 3, 5, 5)),
    (nn.LazyConvTranspose3d, (4, 2), nn.ConvTranspose3d, (3, 4, 2), (3, 2, 2, 2)),
    (nn.LazyBatchNorm1d, (), nn.BatchNorm1d, (3,), (4, 3)),
    (nn.LazyBatchNorm2d, (), nn.BatchNorm2d, (3,), (4, 3, 2, 2)),
    (nn.LazyBatchNorm3d, (), nn.BatchNorm3d, (3,), (4, 3, 2, 2, 2)),
    (nn.LazyInstanceNorm1d, (), nn.InstanceNorm1d, (3, 1e-5, 0.1, True, True), (4, 3, 2)),
    (nn.LazyInstanceNorm2d, (), nn.InstanceNorm2d, (3, 1e-5, 0.1, True, True), (3, 2, 2)),
    (nn.LazyInstanceNorm3d, (), nn.InstanceNorm3d, (3, 1e-5, 0.1, True, True), (4, 3, 2, 2, 2)),
]
LAYERS = pytest.mark.parametrize(("lazy", "given", "plain", "full", "shape"), PLAIN, ids=[case[0].__name__ for case in PLAIN])


@LAYERS
def test_the_first_call_makes_it_the_plain_layer(lazy, given, plain, full, shape):
    x = tj.randn(shape)
    tj.manual_seed(1)
    layer = lazy(*given)
    assert layer.has_uninitialized_params() and repr(layer).startswith("Lazy")
    parameters = list(layer.parameters())
    found = layer(x)
    tj.manual_seed(1)
    other = plain(*full)
    assert type(layer) is plain and repr(layer) == repr(other) and list(layer.state_dict()) == list(other.state_dict())
    assert tj.equal(found, other(x)) and tj.equal(layer(x), other(x))
    assert all(a is b and type(a) is nn.Parameter for a, b in zip(parameters, layer.parameters(), strict=True))
    layer(x).sum().backward()


@LAYERS
def test_states_give_it_its_sizes(lazy, given, plain, full, shape):
    layer, other = lazy(*given), plain(*full)
    assert str(layer.load_state_dict(other.state_dict())) == "<All keys matched successfully>"
    x = tj.randn(shape)
    assert tj.equal(layer(x), other(x)) and repr(layer) == repr(other)
    assert all(tj.equal(a, b) for a, b in zip(layer.state_dict().values(), other.state_dict().values(), strict=True))


def test_states_without_sizes():
    layer = nn.LazyLinear(2)
    assert list(layer.state_dict().values()) == [layer.weight, layer.bias]
    nn.LazyLinear(2).load_state_dict(layer.state_dict())
    with pytest.raises(RuntimeError, match="shape of an uninitialized parameter"):
        nn.Linear(3, 2).load_state_dict(layer.state_dict())


def test_use_before_the_first_call_is_explained():
    layer = nn.LazyLinear(2)
    with pytest.raises(ValueError, match="uninitialized parameter"):
        layer.weight + 1
    with pytest.raises(ValueError, match="uninitialized parameter"):
        sum(p.numel() for p in layer.parameters())
    with pytest.raises(RuntimeError, match="shape of an uninitialized"):
        nn.init.xavier_uniform_(layer.weight)
    with pytest.raises(RuntimeError, match="shape of an uninitialized"):
        layer.weight.shape  # noqa: B018
    assert repr(layer.weight) == "<UninitializedParameter>" and layer.weight.requires_grad


def test_dtype_copy_and_optimizer_before_the_first_call():
    tj.manual_seed(0)
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(1)).double()
    model[0].requires_grad_(False)
    assert model[0].weight.dtype is tj.float64
    other = copy.deepcopy(model)
    optimizer = tj.optim.Adam(model.parameters(), lr=0.1)
    x = tj.randn(8, 2, 5, 5, dtype=tj.float64)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = ((model(x) - 1) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] and model[3].weight.shape == (1, 36) and model[0].weight.grad is None
    assert other[3].has_uninitialized_params() and other.float()(x.float()).dtype is tj.float32


def test_bad_inputs():
    with pytest.raises(RuntimeError, match=r"Expected 3D \(unbatched\) or 4D \(batched\) input to LazyConv2d"):
        nn.LazyConv2d(3, 3)(tj.ones(3, 7))
    with pytest.raises(ValueError, match="divisible by groups"):
        nn.LazyConv1d(4, 1, groups=2)(tj.ones(1, 3, 5))


class LazyScale(nn.modules.lazy.LazyModuleMixin, nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.UninitializedParameter()

    def initialize_parameters(self, x):
        self.scale.materialize(x.shape[-1:])
        nn.init.constant_(self.scale, 3)

    def forward(self, x):
        return x * self.scale


def test_a_module_of_one_s_own():
    model = LazyScale()
    assert model(tj.ones(2, 3)).tolist() == [[3.0] * 3] * 2 and type(model) is LazyScale
    assert not model.has_uninitialized_params()


# ---- one process, at most one device


def test_sync_batch_norm():
    x = tj.randn(4, 3, 2)
    sync, plain = nn.SyncBatchNorm(3), nn.BatchNorm1d(3)
    assert tj.equal(sync(x), plain(x)) and tj.equal(sync.running_var, plain.running_var)
    with pytest.raises(ValueError, match="at least 2D input"):
        sync(tj.ones(3))
    model = nn.Sequential(nn.BatchNorm2d(3, momentum=0.3), nn.Sequential(nn.BatchNorm1d(2))).eval()
    weight = model[0].weight
    found = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert isinstance(found[0], nn.SyncBatchNorm) and isinstance(found[1][0], nn.SyncBatchNorm)
    assert found[0].weight is weight and found[0].momentum == 0.3 and not found[0].training


def test_data_parallel():
    inner = nn.Linear(2, 3)
    model = nn.DataParallel(inner)
    x = tj.randn(4, 2)
    assert tj.equal(model(x), inner(x)) and list(model.state_dict()) == ["module.weight", "module.bias"]
    assert model.device_ids == [] and tj.equal(nn.parallel.data_parallel(inner, x), inner(x))
    with pytest.raises(NotImplementedError, match="2 devices"):
        nn.DataParallel(inner, device_ids=[0, 1])


def test_a_group_of_one(monkeypatch):
    distributed = tj.distributed
    assert distributed.is_available() and not distributed.is_initialized()
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    distributed.init_process_group("gloo")
    try:
        assert distributed.get_rank() == 0 and distributed.get_world_size() == 1
        model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2), device_ids=None)
        x = tj.randn(3, 2)
        with model.no_sync():
            assert tj.equal(model(x), model.module(x))
        distributed.all_reduce(x, op=distributed.ReduceOp.AVG)
        distributed.barrier()
        with pytest.raises(ValueError, match="twice"):
            distributed.init_process_group("gloo")
    finally:
        distributed.destroy_process_group()
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(NotImplementedError, match="4 processes"):
        distributed.init_process_group("nccl")
