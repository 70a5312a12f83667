"""Models: the PyTorch engine's outputs, states and gradients; the decoder contract; finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from reference_cases import (
    ARCHITECTURES,
    NAMES,
    SIZES,
    SOURCES,
    TARGETS,
    TOLERANCE,
    make_batch,
    numpy_model,
    padded,
    random_weights,
    settings_of,
)

from unrolled import config, reference
from unrolled.errors import ShapeError
from unrolled.parameters import Sizes
from unrolled.reference import gradient_check

BATCH = make_batch()
PLAIN_SIZES = Sizes(15, 0, 13)
PLAIN_SOURCES = tuple([symbol for symbol in row if symbol < 15] for row in SOURCES)
each_architecture = pytest.mark.parametrize(("encoder", "decoder"), ARCHITECTURES, ids=NAMES)


@pytest.fixture(params=ARCHITECTURES, ids=NAMES)
def model(request):
    return numpy_model(*request.param)


def decoded(model, tokens, **options):
    memory = model.encode(BATCH.source, BATCH.source_mask)
    return model.decode(tokens, memory, model.initial_state(memory, len(tokens)), **options)


# --- the PyTorch engine ----------------------------------------------------------------------------------------------


def torch_loss(torch, logits, labels, smoothing):
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=0, reduction="sum", label_smoothing=smoothing
    )


@each_architecture
@pytest.mark.parametrize(
    ("sizes", "sources"), [(SIZES, SOURCES), (PLAIN_SIZES, PLAIN_SOURCES)], ids=["features", "plain"]
)
def test_outputs_and_all_gradients_are_those_of_the_torch_engine(encoder, decoder, sizes, sources):
    check_outputs_and_all_gradients(settings_of(encoder, decoder), sizes, sources)


@pytest.mark.parametrize("window", [1, 3])
def test_encoders_with_a_window_are_those_of_the_torch_engine(window):
    encoder = config.TransformerEncoder(d_model=12, d_ff=11, num_layers=2, num_heads=3, window=window)
    settings = config.Seq2Seq(encoder=encoder, decoder=config.RecurrentDecoder(embedding_dim=3, hidden_size=5))
    check_outputs_and_all_gradients(settings, PLAIN_SIZES, PLAIN_SOURCES)


def check_outputs_and_all_gradients(settings, sizes, sources):
    torch, models = pytest.importorskip("torch"), pytest.importorskip("unrolled.models")
    batch = make_batch(sources)
    weights = random_weights(settings, sizes)
    ours, theirs = reference.build(settings, sizes, weights), models.build(settings, sizes, weights).eval()
    source, mask, inputs, labels = map(torch.tensor, (batch.source, batch.source_mask, batch.inputs, batch.labels))
    memory = theirs.encode(source, mask)
    expected = theirs.decode(inputs, memory, theirs.initial_state(memory, len(source)), need_attention=True)
    our_memory = ours.encode(batch.source, batch.source_mask)
    output = ours.decode(batch.inputs, our_memory, ours.initial_state(our_memory, len(source)), need_attention=True)
    np.testing.assert_allclose(output.logits, expected.logits.detach().numpy(), rtol=0, atol=1e-12)
    assert (output.attention is None) == (expected.attention is None)
    if output.attention is not None:
        np.testing.assert_allclose(output.attention, expected.attention.detach().numpy(), rtol=0, atol=1e-12)

    loss = torch_loss(torch, expected.logits, labels, 0.1)
    loss.backward()
    found = ours.loss_and_gradients(batch, label_smoothing=0.1)
    assert found.loss == pytest.approx(loss.item(), abs=1e-11)
    assert found.num_labels == 12
    assert found.gradients.keys() == weights.keys()
    for name, parameter in theirs.named_parameters():
        gradient = np.zeros(parameter.shape) if parameter.grad is None else parameter.grad.numpy()
        np.testing.assert_allclose(found.gradients[name], gradient, rtol=1e-9, atol=1e-12, err_msg=name)


def their_leaves(tree):
    if tree is None:
        return []
    return [leaf for part in tree for leaf in their_leaves(part)] if isinstance(tree, tuple) else [tree]


@each_architecture
def test_states_masks_and_resets_are_those_of_the_torch_engine(encoder, decoder):
    torch, models = pytest.importorskip("torch"), pytest.importorskip("unrolled.models")
    settings = settings_of(encoder, decoder)
    weights = random_weights(settings, SIZES)
    ours, theirs = reference.build(settings, SIZES, weights), models.build(settings, SIZES, weights).eval()
    rng = np.random.default_rng(0)
    tokens = rng.integers(3, SIZES.target, (8, 4))  # two rows a source
    mask = np.arange(4) < rng.integers(1, 5, (8, 1))
    reset = rng.random((8, 4)) < 0.2
    our_memory = ours.encode(BATCH.source, BATCH.source_mask)
    memory = theirs.encode(torch.tensor(BATCH.source), torch.tensor(BATCH.source_mask))
    our_state, state = ours.initial_state(our_memory, 8), theirs.initial_state(memory, 8)
    for _ in range(2):
        output = ours.decode(tokens, our_memory, our_state, mask=mask, reset=reset)
        expected = theirs.decode(
            torch.tensor(tokens), memory, state, mask=torch.tensor(mask), reset=torch.tensor(reset)
        )
        np.testing.assert_allclose(output.logits[mask], expected.logits.detach().numpy()[mask], rtol=0, atol=1e-12)
        our_state, state = output.state, expected.state
    if isinstance(settings.decoder, config.TransformerDecoder):
        np.testing.assert_array_equal(our_state.position, state.position.numpy())
        return
    pairs = list(zip(their_leaves(tuple(our_state)), their_leaves(tuple(state)), strict=True))
    assert pairs
    for mine, other in pairs:
        np.testing.assert_allclose(mine, other.detach().numpy(), rtol=0, atol=1e-12)


# --- finite differences ----------------------------------------------------------------------------------------------

TINY = Sizes(10, 2, 6)
TINY_ENCODERS = {
    "bigru": config.RecurrentEncoder(cell="gru", embedding_dim=2, hidden_size=2),
    "transformer": config.TransformerEncoder(
        d_model=2, d_ff=3, num_layers=1, num_heads=1, positions="learned", max_positions=5
    ),
    "convolution": config.ConvolutionEncoder(channels=2, num_layers=2),
}
TINY_DECODERS = {
    "general": config.RecurrentDecoder(embedding_dim=2, hidden_size=3),
    "bahdanau": config.RecurrentDecoder(cell="gru", embedding_dim=2, hidden_size=3, wiring="bahdanau"),
    "feeding": config.RecurrentDecoder(
        cell="rnn", embedding_dim=2, hidden_size=3, wiring="luong_input_feeding", num_layers=2
    ),
    "transformer": config.TransformerDecoder(d_model=4, d_ff=3, num_layers=1, num_heads=2, tie_embeddings=True),
    "convolution": config.ConvolutionDecoder(channels=2, kernel_size=2, num_layers=2),
}


# a norm over two numbers gives ±1: a decoder whose layers all attend to that has gradients too small to difference
TINY_PAIRS = [(e, d) for e in TINY_ENCODERS for d in TINY_DECODERS if (e, d) != ("transformer", "convolution")]


@pytest.mark.parametrize(("encoder", "decoder"), TINY_PAIRS)
def test_gradients_of_whole_models(encoder, decoder):
    settings = config.Seq2Seq(encoder=TINY_ENCODERS[encoder], decoder=TINY_DECODERS[decoder])
    model = reference.build(settings, TINY, random_weights(settings, TINY))
    batch = make_batch([[4, 5, 2, 8, 9], [6, 2]], [[4, 5, 2], [3, 2]])
    errors = gradient_check(model, batch.source, batch.source_mask, batch.inputs, batch.labels)
    assert max(errors.values()) < TOLERANCE, errors
    assert len(errors) == len(model.parameters)


@each_architecture
def test_gradients_with_dropout(encoder, decoder):
    """Along one random direction in weight space: dropout everywhere, the same masks at each call."""
    settings = settings_of(encoder, decoder)
    rates = {"encoder": {"dropout": 0.3}, "decoder": {"dropout": 0.3}}
    wet = config.Seq2Seq.model_validate(
        {part: {**getattr(settings, part).model_dump(), **rate} for part, rate in rates.items()}
    )
    weights, direction = random_weights(wet, SIZES), random_weights(wet, SIZES, seed=1)

    def loss(step):
        moved = {name: weight + step * direction[name] for name, weight in weights.items()}
        return reference.build(wet, SIZES, moved).loss_and_gradients(BATCH, rng=np.random.default_rng(7))

    numerical = (loss(1e-6).loss - loss(-1e-6).loss) / 2e-6
    analytic = sum(float(np.vdot(gradient, direction[name])) for name, gradient in loss(0.0).gradients.items())
    assert analytic == pytest.approx(numerical, rel=1e-5)
    calm = reference.build(wet, SIZES, weights).loss_and_gradients(BATCH)
    assert calm.loss == reference.build(wet, SIZES, weights).loss_and_gradients(BATCH).loss
    assert calm.loss != loss(0.0).loss


# --- the decoder contract --------------------------------------------------------------------------------------------

TOKENS = np.array([[1, 4, 5, 6, 3], [1, 8, 3, 12, 9], [1, 9, 10, 4, 7], [1, 2, 3, 4, 5]])


@pytest.mark.parametrize("cuts", [[1, 2, 3, 4], [2], [3, 4]])
def test_whole_is_chunks_is_steps(model, cuts):
    whole = decoded(model, TOKENS, need_attention=True)
    memory = model.encode(BATCH.source, BATCH.source_mask)
    state, outputs = model.initial_state(memory, 4), []
    for chunk in np.split(TOKENS, cuts, axis=1):
        outputs.append(model.decode(chunk, memory, state, need_attention=True))
        state = outputs[-1].state
    np.testing.assert_allclose(np.concatenate([o.logits for o in outputs], axis=1), whole.logits, rtol=0, atol=1e-12)
    if whole.attention is not None:
        attention = np.concatenate([o.attention for o in outputs], axis=1)
        np.testing.assert_allclose(attention, whole.attention, rtol=0, atol=1e-12)


def test_an_output_does_not_depend_on_later_inputs(model):
    changed = TOKENS.copy()
    changed[:, 3] = (changed[:, 3] + 1) % SIZES.target
    before, after = decoded(model, TOKENS).logits, decoded(model, changed).logits
    np.testing.assert_array_equal(before[:, :3], after[:, :3])
    assert np.abs(before[:, 3] - after[:, 3]).min() > 0.0


def test_batch_mates_and_padding_change_nothing(model):
    whole = decoded(model, TOKENS).logits
    for row, source in enumerate(SOURCES):
        for extra in (0, 5):
            alone = np.concatenate([padded([source]), np.zeros((1, extra), np.int64)], axis=1)
            memory = model.encode(alone, alone != 0)
            logits = model.decode(TOKENS[row : row + 1], memory, model.initial_state(memory, 1)).logits
            np.testing.assert_allclose(logits[0], whole[row], rtol=0, atol=1e-12)


def test_rows_of_a_beam_are_sources_times_k(model):
    tokens = np.repeat(TOKENS, 3, axis=0)
    tokens[1::3, 2] = 7
    memory = model.encode(BATCH.source, BATCH.source_mask)
    folded = model.decode(tokens, memory, model.initial_state(memory, 12), need_attention=True)
    repeated = memory.select(np.repeat(np.arange(4), 3))
    flat = model.decode(tokens, repeated, model.initial_state(repeated, 12), need_attention=True)
    np.testing.assert_allclose(folded.logits, flat.logits, rtol=0, atol=1e-12)
    if folded.attention is not None:
        np.testing.assert_allclose(folded.attention, flat.attention, rtol=0, atol=1e-12)


def test_a_selected_state_is_that_of_its_rows_and_decode_changes_none(model):
    memory = model.encode(BATCH.source, BATCH.source_mask)
    state = decoded(model, TOKENS[:, :3]).state
    expected = model.decode(TOKENS[:, 3:4], memory, state).logits
    rows = np.array([2, 0, 2])
    picked = model.decode(TOKENS[rows, 3:4], memory.select(rows), state.select(rows).detach()).logits
    np.testing.assert_allclose(picked, expected[rows], rtol=0, atol=1e-12)
    np.testing.assert_array_equal(model.decode(TOKENS[:, 3:4], memory, state).logits, expected)


def test_attention_rows_sum_to_one_over_real_tokens_and_asking_changes_nothing(model):
    asked, silent = decoded(model, TOKENS, need_attention=True), decoded(model, TOKENS)
    np.testing.assert_array_equal(asked.logits, silent.logits)
    assert silent.attention is None
    if asked.attention is not None:
        np.testing.assert_allclose(asked.attention.sum(axis=2), 1.0, atol=1e-12)
        np.testing.assert_array_equal(
            asked.attention[~np.broadcast_to(BATCH.source_mask[:, None], asked.attention.shape)], 0
        )


def test_weights_are_computed_only_when_asked_for(model, monkeypatch):
    """Of a Transformer's heads they are as many numbers as queries times keys, which training never needs."""
    monkeypatch.setattr(type(model.decoder), "weights", None, raising=False)
    assert np.isfinite(model.loss_and_gradients(BATCH).loss)
    assert decoded(model, TOKENS).attention is None


def test_a_reset_row_is_at_its_start(model):
    reset = np.zeros_like(TOKENS, dtype=bool)
    reset[1, 3] = reset[2, 0] = True
    output = decoded(model, TOKENS, reset=reset, need_attention=True)
    logits = output.logits
    assert output.attention is None or output.attention.shape == (4, 5, BATCH.source.shape[1])
    whole, fresh = decoded(model, TOKENS).logits, decoded(model, TOKENS[:, 3:]).logits
    np.testing.assert_allclose(logits[[0, 2, 3]], whole[[0, 2, 3]], rtol=0, atol=1e-12)
    np.testing.assert_allclose(logits[1, :3], whole[1, :3], rtol=0, atol=1e-12)
    np.testing.assert_allclose(logits[1, 3:], fresh[1], rtol=0, atol=1e-12)


def test_a_source_without_a_real_token_is_finite(model):
    source, mask = BATCH.source, BATCH.source_mask.copy()
    mask[3] = False
    loss, cache = model.forward(source, mask, BATCH.inputs, BATCH.labels)
    assert np.isfinite(loss)
    assert all(np.isfinite(gradient).all() for gradient in model.backward(1.0, cache).values())


@each_architecture
def test_single_precision_stays_single(encoder, decoder):
    model = numpy_model(encoder, decoder, dtype=np.float32)
    output = decoded(model, TOKENS, need_attention=True)
    assert output.logits.dtype == np.float32
    assert output.attention is None or output.attention.dtype == np.float32
    found = model.loss_and_gradients(BATCH, label_smoothing=0.1, rng=np.random.default_rng(0))
    assert {gradient.dtype for gradient in found.gradients.values()} == {np.dtype(np.float32)}


# --- building and training -------------------------------------------------------------------------------------------


def test_weights_that_do_not_fit_are_named():
    settings = settings_of("bilstm", "lstm2_dot")
    weights = random_weights(settings, SIZES)
    name = "decoder.output.bias"
    with pytest.raises(ShapeError, match=r"weight decoder.output.bias must have shape \(13,\), got \(2,\)"):
        reference.build(settings, SIZES, {**weights, name: np.ones(2)})
    with pytest.raises(ShapeError, match=r"weight decoder.output.bias is missing, expected shape \(13,\)"):
        reference.build(settings, SIZES, {key: weight for key, weight in weights.items() if key != name})
    with pytest.raises(ShapeError, match="weight bias is not one of this model's"):
        reference.build(settings, SIZES, {**weights, "bias": np.ones(2)})


def test_sums_of_micro_batches_are_those_of_the_batch():
    model = numpy_model("bilstm", "gru_scaled")
    whole = model.loss_and_gradients(BATCH)
    parts = [model.loss_and_gradients(make_batch(SOURCES[cut], TARGETS[cut])) for cut in (slice(1), slice(1, 4))]
    assert sum(part.num_labels for part in parts) == whole.num_labels
    assert sum(part.loss for part in parts) == pytest.approx(whole.loss, abs=1e-11)
    for name, gradient in whole.gradients.items():
        np.testing.assert_allclose(sum(part.gradients[name] for part in parts), gradient, rtol=0, atol=1e-11)


def test_a_batch_without_labels_has_no_gradient():
    model = numpy_model("bilstm", "gru_scaled")
    found = model.loss_and_gradients(make_batch(SOURCES, [[0], [0], [0], [0]]))
    assert (found.loss, found.num_labels) == (0.0, 0)
    assert not any(gradient.any() for gradient in found.gradients.values())
