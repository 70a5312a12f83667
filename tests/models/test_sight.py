"""Windows: the same as a dense mask, however many blocks there are, and no more memory than the window needs."""

import pytest
import torch
from conftest_models import SIZES, random_weights

from unrolled import config, models
from unrolled.errors import ConfigError
from unrolled.models.attention import dot_product_attention
from unrolled.models.multihead import SelfAttention
from unrolled.models.sight import Window, sight
from unrolled.parameters import Sizes, inventory

CPU = torch.device("cpu")


def projections(n, past, rows=2, heads=3, size=5):
    generator = torch.Generator().manual_seed(0)
    lengths = (n, past + n, past + n)
    return [
        torch.randn(rows, heads, length, size, dtype=torch.float64, generator=generator, requires_grad=True)
        for length in lengths
    ]


def dense(n, past, window, real, *, is_causal):
    """The definition, key by key."""
    ahead = torch.arange(past + n) - torch.arange(past, past + n).unsqueeze(1)
    mask = (ahead.abs() < window) & (ahead <= (0 if is_causal else past + n))
    return mask if real is None else mask & real[:, None, None, :]


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("is_ragged", [False, True])
@pytest.mark.parametrize(("n", "window"), [(7, 3), (64, 10), (200, 1), (201, 40), (331, 70), (331, 97)])
def test_a_window_is_a_dense_mask_with_its_gradients(n, window, is_causal, is_ragged):
    real = torch.arange(n) < torch.tensor([[n], [n - 5]]) if is_ragged else None
    seen = sight(n, n, real, is_causal=is_causal, window=window, device=CPU)
    assert isinstance(seen, Window)
    inputs = projections(n, 0)
    outcomes = []
    for attend in (seen.attend, lambda *x: dot_product_attention(*x, dense(n, 0, window, real, is_causal=is_causal))):
        result = attend(*inputs)
        rows = result if real is None else result * real[:, None, :, None]
        scale = torch.linspace(-1, 1, rows.numel(), dtype=torch.float64).view_as(rows)
        outcomes.append([rows, *torch.autograd.grad((rows * scale).sum(), inputs)])
    for blocked, plain in zip(*outcomes, strict=True):
        torch.testing.assert_close(blocked, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("n", "window", "past"), [(3, 5, 4), (150, 40, 39), (150, 40, 7), (90, 66, 65)])
def test_a_window_reaches_into_the_past(n, window, past):
    inputs = projections(n, past)
    blocked = sight(n, past + n, None, is_causal=True, window=window, device=CPU).attend(*inputs)
    plain = dot_product_attention(*inputs, dense(n, past, window, None, is_causal=True))
    torch.testing.assert_close(blocked, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("is_causal", [True, False])
def test_a_window_over_everything_is_the_whole_attention(is_causal):
    inputs = projections(50, 0)
    for window in (50, 1000):
        wide, whole = (sight(50, 50, None, is_causal=is_causal, window=w, device=CPU) for w in (window, None))
        assert torch.equal(wide.attend(*inputs), whole.attend(*inputs))
    narrow = sight(50, 50, None, is_causal=is_causal, window=49, device=CPU).attend(*inputs)
    assert not torch.allclose(narrow, whole.attend(*inputs))


def language_model(window, positions="sinusoidal"):
    decoder = config.TransformerDecoder(
        d_model=8, d_ff=8, num_layers=1, num_heads=2, window=window, positions=positions
    )
    settings = config.LanguageModel(decoder=decoder)
    return models.build(settings, SIZES, random_weights(settings)).eval()


def test_a_state_keeps_no_more_than_the_window_needs():
    model, tokens = language_model(4), torch.randint(0, SIZES.target, (3, 40))
    state = model.initial_state(None, 3)
    for chunk in tokens.split(7, dim=1):
        state = model.decode(chunk, None, state).state
        assert state.layers[0].keys.shape[2] == 3
    ragged = torch.arange(7) < torch.tensor([[7], [1], [0]])
    state = model.decode(tokens[:, :7], None, state, mask=ragged).state
    assert state.layers[0].keys.shape[2] == state.valid.shape[1] == 3
    assert state.valid.all()
    assert state.position.tolist() == [47, 41, 40]
    fresh = model.decode(tokens[:, :7], None, model.initial_state(None, 3), mask=ragged).state
    assert fresh.valid.tolist() == [[True, True, True], [False, False, True], [False, False, False]]


def test_outputs_forget_what_left_the_window():
    """One layer, window 4, no positions in the embedding: an input changes its own output and the three after it."""
    model, tokens = language_model(4, "rotary"), torch.arange(20).unsqueeze(0) % SIZES.target
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % SIZES.target
    before, after = (model.decode(ids, None, model.initial_state(None, 1)).logits[0] for ids in (tokens, changed))
    assert [t for t in range(20) if (before[t] - after[t]).abs().max() > 1e-9] == [5, 6, 7, 8]


def test_features_have_no_place_in_a_window():
    settings = config.Seq2Seq(encoder=config.TransformerEncoder(window=5))
    assert inventory(settings, Sizes(19, 0, 13))
    with pytest.raises(ConfigError, match=r"features have no position; set model\.encoder\.window=none"):
        inventory(settings, Sizes(19, 4, 13))


def largest_allocation(length, real, *, is_causal, window):
    """Bytes, of all that one pass of a layer asks for, forward and backward; kernels' own buffers too."""
    layer = SelfAttention(32, 2)
    x = torch.randn(1, length, 32, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        seen = sight(length, length, real, is_causal=is_causal, window=window, device=CPU)
        context = seen.attend(*layer.project(x))
        layer.out(context.transpose(1, 2).flatten(2)).sum().backward()
    events = profiler.profiler.kineto_results.events()
    return max(event.nbytes() for event in events if event.name() == "[memory]")


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize(("is_causal", "is_ragged"), [(True, False), (False, False), (False, True)])
def test_no_tensor_grows_with_the_square_of_the_length(window, is_causal, is_ragged):
    sizes = []
    for length in (1024, 2048):
        real = torch.arange(length).unsqueeze(0) < length - 100 if is_ragged else None
        sizes.append(largest_allocation(length, real, is_causal=is_causal, window=window))
    assert sizes[1] < 2048 * 2048  # bytes of the smallest mask over all pairs
    assert sizes[1] < 2.2 * sizes[0]
