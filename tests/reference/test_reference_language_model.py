"""Language models of the NumPy engine: the PyTorch engine's numbers, finite differences, carried state, prompts."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from reference_cases import TOLERANCE, random_weights

from unrolled import config, reference
from unrolled.errors import ShapeError
from unrolled.parameters import Sizes
from unrolled.reference import gradient_check
from unrolled.reference.engine import NumpyEngine
from unrolled.reference.optimizers import adamw, adamw_start, clip

V = 11
SIZES = Sizes(0, 0, V)
DECODERS = {
    "lstm2": config.RecurrentLanguageDecoder(embedding_dim=3, hidden_size=5, num_layers=2),
    "gru_tied_variational": config.RecurrentLanguageDecoder(
        cell="gru", embedding_dim=5, hidden_size=5, num_layers=2, tie_embeddings=True, variational_dropout=True
    ),
    "rnn": config.RecurrentLanguageDecoder(cell="rnn", embedding_dim=3, hidden_size=5),
    "rotary": config.TransformerDecoder(d_model=12, d_ff=7, num_layers=2, num_heads=3, positions="rotary"),
    "learned_post_tied": config.TransformerDecoder(
        d_model=6,
        d_ff=7,
        num_layers=2,
        num_heads=2,
        positions="learned",
        max_positions=17,
        norm="post",
        activation="swiglu",
        tie_embeddings=True,
    ),
    "window": config.TransformerDecoder(d_model=6, d_ff=7, num_layers=2, num_heads=1, window=3),
    "convolution_tied": config.ConvolutionDecoder(channels=6, num_layers=2, tie_embeddings=True),
}
each_decoder = pytest.mark.parametrize("name", DECODERS)
RNG = np.random.default_rng(0)
INPUTS = RNG.integers(0, V, (3, 7))
LABELS = RNG.integers(0, V, (3, 7)) * (np.arange(7) < np.array([[7], [3], [5]]))
STREAM = SimpleNamespace(inputs=INPUTS, labels=LABELS)


def numpy_model(name, **changes):
    settings = config.LanguageModel(decoder=DECODERS[name].model_copy(update=changes))
    return reference.build(settings, SIZES, random_weights(settings, SIZES))


def torch_model(name):
    models = pytest.importorskip("unrolled.models")
    settings = config.LanguageModel(decoder=DECODERS[name])
    return models.build(settings, SIZES, random_weights(settings, SIZES)).eval()


def leaves(tree):
    if tree is None:
        return []
    return [leaf for part in tree for leaf in leaves(part)] if isinstance(tree, tuple) else [np.asarray(tree)]


# --- the PyTorch engine ----------------------------------------------------------------------------------------------


@each_decoder
def test_outputs_and_all_gradients_are_those_of_the_torch_engine(name):
    torch = pytest.importorskip("torch")
    ours, theirs = numpy_model(name), torch_model(name)
    expected = theirs.decode(torch.tensor(INPUTS), None, theirs.initial_state(None, 3)).logits
    output = ours.decode(INPUTS, None, ours.initial_state(None, 3), need_attention=True)
    np.testing.assert_allclose(output.logits, expected.detach().numpy(), rtol=0, atol=1e-12)
    assert output.attention is None
    loss = torch.nn.functional.cross_entropy(
        expected.flatten(0, 1), torch.tensor(LABELS).flatten(), ignore_index=0, reduction="sum", label_smoothing=0.1
    )
    loss.backward()
    found = ours.loss_and_gradients(STREAM, label_smoothing=0.1)
    assert found.loss == pytest.approx(loss.item(), abs=1e-11)
    assert found.num_labels == (LABELS != 0).sum()
    assert found.gradients.keys() == ours.parameters.keys()
    for parameter_name, parameter in theirs.named_parameters():
        gradient = parameter.grad.numpy()
        np.testing.assert_allclose(
            found.gradients[parameter_name], gradient, rtol=1e-9, atol=1e-12, err_msg=parameter_name
        )


@each_decoder
def test_states_masks_and_resets_are_those_of_the_torch_engine(name):
    torch = pytest.importorskip("torch")
    ours, theirs, rng = numpy_model(name), torch_model(name), np.random.default_rng(1)
    our_state, state = ours.initial_state(None, 5), theirs.initial_state(None, 5)
    for _ in range(3):
        tokens = rng.integers(0, V, (5, 4))
        mask = np.arange(4) < rng.integers(0, 5, (5, 1))
        reset = rng.random((5, 4)) < 0.3
        output = ours.decode(tokens, None, our_state, mask=mask, reset=reset)
        expected = theirs.decode(torch.tensor(tokens), None, state, mask=torch.tensor(mask), reset=torch.tensor(reset))
        np.testing.assert_allclose(output.logits[mask], expected.logits.detach().numpy()[mask], rtol=0, atol=1e-12)
        our_state, state = output.state, expected.state.detach()
    if isinstance(DECODERS[name], config.TransformerDecoder):
        np.testing.assert_array_equal(our_state.position, state.position)
        assert DECODERS[name].window is None or our_state.valid.shape[1] == state.layers[0].keys.shape[2] == 2
        return
    for mine, other in zip(leaves(our_state), leaves(state), strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-12)


@each_decoder
def test_twenty_steps_of_both_engines_agree(name):
    """A recurrent model carries its state from step to step, cut from the graph."""
    torch = pytest.importorskip("torch")
    ours, theirs = numpy_model(name), torch_model(name)
    settings, weights = config.LanguageModel(decoder=DECODERS[name]), ours.parameters
    is_carried = isinstance(settings.decoder, config.RecurrentLanguageDecoder)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-2, betas=(0.9, 0.98), eps=1e-4, weight_decay=0.0)
    moments, state, our_state = adamw_start(weights), theirs.initial_state(None, 3), ours.initial_state(None, 3)
    labels = torch.tensor(LABELS).flatten()
    for _ in range(20):
        output = theirs.decode(torch.tensor(INPUTS), None, state)
        loss = torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), labels, ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in theirs.parameters()]))
        for parameter in theirs.parameters():
            parameter.grad *= (1.0 / norm).clamp(max=1.0)
        optimizer.step()
        model = reference.build(settings, SIZES, weights)
        our_loss, cache = model.forward(INPUTS, LABELS, our_state)
        assert our_loss / (LABELS != 0).sum() == pytest.approx(loss.item(), abs=1e-9)
        clipped = clip(model.backward(1.0 / (LABELS != 0).sum(), cache), 1.0)
        assert clipped.norm == pytest.approx(norm.item(), abs=1e-9)
        weights, moments = adamw(
            weights, clipped.gradients, moments, learning_rate=1e-2, epsilon=1e-4, weight_decay=0.0
        )
        if is_carried:
            state, our_state = output.state.detach(), cache.state
    for parameter, tensor in theirs.named_parameters():
        np.testing.assert_allclose(weights[parameter], tensor.detach().numpy(), rtol=0, atol=1e-9, err_msg=parameter)


# --- finite differences ----------------------------------------------------------------------------------------------


@each_decoder
def test_gradients_of_whole_models(name):
    sizes = {"recurrent": {"embedding_dim": 2, "hidden_size": 2}, "transformer": {"d_model": 6, "d_ff": 3}}
    model = numpy_model(name, num_layers=1, **sizes.get(DECODERS[name].type, {"channels": 2}))
    errors = gradient_check(model, INPUTS[:2, :4], LABELS[:2, :4])
    assert max(errors.values()) < TOLERANCE, errors
    assert len(errors) == len(model.parameters)


@each_decoder
def test_gradients_with_dropout(name):
    """Along one random direction in weight space: dropout everywhere, the same masks at each call."""
    settings = config.LanguageModel(decoder=DECODERS[name].model_copy(update={"dropout": 0.3}))
    weights, direction = random_weights(settings, SIZES), random_weights(settings, SIZES, seed=1)

    def loss(step):
        moved = {name: weight + step * direction[name] for name, weight in weights.items()}
        return reference.build(settings, SIZES, moved).loss_and_gradients(STREAM, rng=np.random.default_rng(7))

    numerical = (loss(1e-6).loss - loss(-1e-6).loss) / 2e-6
    analytic = sum(float(np.vdot(gradient, direction[name])) for name, gradient in loss(0.0).gradients.items())
    assert analytic == pytest.approx(numerical, rel=1e-5)
    calm = reference.build(settings, SIZES, weights).loss_and_gradients(STREAM)
    assert abs(calm.loss - loss(0.0).loss) > 1e-3


def test_a_row_keeps_its_variational_mask_over_all_steps():
    """One layer, constant inputs and zero recurrence: with one mask a sequence every step gives the same logits."""
    decoder = config.RecurrentLanguageDecoder(
        cell="rnn", embedding_dim=5, hidden_size=7, variational_dropout=True, dropout=0.5
    )
    settings = config.LanguageModel(decoder=decoder)
    weights = random_weights(settings, SIZES)
    weights["decoder.layers.0.fwd.weight_hh"][:] = 0.0
    tokens, seed = np.full((3, 6), 4), np.random.default_rng(2)
    decoder = reference.build(settings, SIZES, weights).decoder
    (logits, *_), _ = decoder.forward(tokens, None, decoder.initial_state(None, 3), rng=seed)
    np.testing.assert_allclose(logits, np.repeat(logits[:, :1], 6, axis=1), rtol=0, atol=1e-12)
    assert not np.allclose(logits[0], logits[1])


# --- the decoder contract --------------------------------------------------------------------------------------------


@each_decoder
@pytest.mark.parametrize("cuts", [[1, 2, 3, 4, 5, 6], [4]])
def test_whole_is_chunks_is_steps(name, cuts):
    model = numpy_model(name)
    state, outputs = model.initial_state(None, 3), []
    whole = model.decode(INPUTS, None, state).logits
    for chunk in np.split(INPUTS, cuts, axis=1):
        outputs.append(model.decode(chunk, None, state).logits)
        state = model.decode(chunk, None, state).state
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), whole, rtol=0, atol=1e-12)


@each_decoder
def test_the_losses_of_chunks_add_up(name):
    model = numpy_model(name)
    whole, _ = model.forward(INPUTS, LABELS)
    first, cache = model.forward(INPUTS[:, :3], LABELS[:, :3])
    second, _ = model.forward(INPUTS[:, 3:], LABELS[:, 3:], cache.state)
    assert first + second == pytest.approx(whole, abs=1e-12)


@each_decoder
def test_a_later_input_changes_no_earlier_output_and_a_mate_none(name):
    model, changed = numpy_model(name), INPUTS.copy()
    changed[:, 4] = (changed[:, 4] + 1) % V
    changed[2] = (changed[2] + 3) % V
    before, after = (model.decode(ids, None, model.initial_state(None, 3)).logits for ids in (INPUTS, changed))
    np.testing.assert_array_equal(after[:2, :4], before[:2, :4])
    assert np.abs(after[:2, 4:] - before[:2, 4:]).max(axis=2).min() > 0


@each_decoder
def test_single_precision_stays_single(name):
    settings = config.LanguageModel(decoder=DECODERS[name].model_copy(update={"dropout": 0.3}))
    weights = {key: value.astype(np.float32) for key, value in random_weights(settings, SIZES).items()}
    model = reference.build(settings, SIZES, weights)
    assert model.decode(INPUTS, None, model.initial_state(None, 3)).logits.dtype == np.float32
    gradients = model.loss_and_gradients(STREAM, rng=np.random.default_rng(0)).gradients
    assert {gradient.dtype for gradient in gradients.values()} == {np.dtype(np.float32)}


# --- the engine ------------------------------------------------------------------------------------------------------

PROMPTS = [np.array([5, 6, 7, 8, 9]), np.array([4]), np.array([9, 8, 3])]
CONTINUATIONS = [np.array([5, 6]), np.array([2]), np.array([10, 4, 9, 3])]


def engines(name):
    torch_engine = pytest.importorskip("unrolled.models.engine").TorchEngine
    return NumpyEngine(numpy_model(name), vocabulary_size=V), torch_engine(torch_model(name), vocabulary_size=V)


@each_decoder
def test_a_prompt_is_fed_and_continued(name):
    """Ragged prompts together: the distribution after each is that after its own symbols, in either engine."""
    for engine in engines(name):
        together = engine.start(PROMPTS)
        for number, prompt in enumerate(PROMPTS):
            alone = engine.start([prompt[:1]])
            for symbol in prompt[1:]:
                alone.advance(np.array([symbol]))
            np.testing.assert_allclose(together.probabilities()[number], alone.probabilities()[0], rtol=0, atol=1e-10)
        together.select(np.array([2, 0, 0]), np.array([0, 2]))
        together.advance(np.array([1, 3, 4]))
        longer = engine.start([np.append(PROMPTS[2], 1), np.append(PROMPTS[0], 3), np.append(PROMPTS[0], 4)])
        np.testing.assert_allclose(together.probabilities(), longer.probabilities(), rtol=0, atol=1e-10)


@each_decoder
def test_scores_equal_stepping(name):
    results = [engine.log_probs(PROMPTS, CONTINUATIONS) for engine in engines(name)]
    for mine, other in zip(*results, strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-10)
    engine = engines(name)[0]
    for prompt, continuation, scores in zip(PROMPTS, CONTINUATIONS, results[0], strict=True):
        stepper, alone = engine.start([prompt]), []
        for symbol in continuation:
            alone.append(stepper.log_prob_of(np.array([symbol]))[0])
            stepper.advance(np.array([symbol]))
        np.testing.assert_allclose(scores, alone, rtol=0, atol=1e-12)


@each_decoder
def test_streams_are_read_in_chunks(name):
    labels = np.where(LABELS == 0, 3, LABELS)
    reset = np.zeros(INPUTS.shape, bool)
    reset[1, 5] = reset[0, 2] = True
    for engine in engines(name):
        whole, _ = engine.stream_log_probs(INPUTS, labels, reset=reset)
        first, state = engine.stream_log_probs(INPUTS[:, :3], labels[:, :3], reset=reset[:, :3])
        second, _ = engine.stream_log_probs(INPUTS[:, 3:], labels[:, 3:], state, reset=reset[:, 3:])
        np.testing.assert_allclose(np.concatenate([first, second], axis=1), whole, rtol=0, atol=1e-10)
        fresh, _ = engine.stream_log_probs(INPUTS[1:2, 5:], labels[1:2, 5:])
        np.testing.assert_allclose(whole[1, 5:], fresh[0], rtol=0, atol=1e-10)
        alone = engine.log_probs([INPUTS[2, :1]], [labels[2, :1]])[0]
        np.testing.assert_allclose(whole[2, :1], alone, rtol=0, atol=1e-10)


def test_an_empty_prompt_is_refused():
    for engine in engines("lstm2"):
        with pytest.raises(ShapeError, match="at least one symbol, got an empty prompt"):
            engine.start([np.array([4]), np.array([], np.int64)])
