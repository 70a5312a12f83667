"""One embedding for source and target, in both engines: it is two equal ones, and its gradient the sum of theirs."""

import copy

import numpy as np
import pytest
import torch
from reference_cases import TARGETS, make_batch, random_weights
from torch.nn import functional

from unrolled import config, models, reference
from unrolled.errors import ShapeError
from unrolled.parameters import Sizes, inventory
from unrolled.settings import resolve

SIZES = Sizes(source=13, features=0, target=13)
SOURCES = ([4, 5, 6, 2], [7, 8, 12, 2], [9, 4, 4, 10, 2], [2])
TRANSFORMER = {"d_model": 14, "d_ff": 11, "num_layers": 1, "num_heads": 2}
MODELS = {
    "transformers": config.Seq2Seq(
        encoder=config.TransformerEncoder(**TRANSFORMER), decoder=config.TransformerDecoder(**TRANSFORMER)
    ),
    "transformers_three_way": config.Seq2Seq(
        encoder=config.TransformerEncoder(**TRANSFORMER),
        decoder=config.TransformerDecoder(**TRANSFORMER, tie_embeddings=True),
    ),
    "recurrent_three_way": config.Seq2Seq(
        encoder=config.RecurrentEncoder(embedding_dim=7, hidden_size=5),
        decoder=config.RecurrentDecoder(cell="gru", embedding_dim=7, hidden_size=7, tie_embeddings=True),
    ),
    "convolutions_three_way": config.Seq2Seq(
        encoder=config.ConvolutionEncoder(channels=14, num_layers=2),
        decoder=config.ConvolutionDecoder(channels=14, num_layers=2, tie_embeddings=True),
    ),
    "mixed": config.Seq2Seq(
        encoder=config.RecurrentEncoder(embedding_dim=14, hidden_size=5),
        decoder=config.TransformerDecoder(**TRANSFORMER),
    ),
}


@pytest.fixture(params=MODELS)
def cases(request):
    """Settings and weights of a model with one embedding, and of its twin with two equal ones."""
    apart = MODELS[request.param]
    shared = apart.model_copy(update={"share_embeddings": True})
    weights = random_weights(shared, SIZES)
    table = weights["decoder.embedding.weight"]
    return (shared, weights), (apart, {**weights, "encoder.embedding.weight": table})


def torch_gradients(settings, weights, batch):
    model = models.build(settings, SIZES, weights).double().eval()
    source, mask, inputs, labels = (
        torch.from_numpy(array) for array in (batch.source, batch.source_mask, batch.inputs, batch.labels)
    )
    memory = model.encode(source, mask)
    output = model.decode(inputs, memory, model.initial_state(memory, len(inputs)))
    loss = functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten(), ignore_index=0, reduction="sum")
    loss.backward()
    return loss.item(), {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}


def numpy_gradients(settings, weights, batch):
    found = reference.build(settings, SIZES, weights).loss_and_gradients(batch)
    return found.loss, found.gradients


@pytest.mark.parametrize("gradients", [torch_gradients, numpy_gradients])
def test_one_embedding_is_two_equal_ones(cases, gradients):
    batch = make_batch(SOURCES, TARGETS)
    (loss, found), (loss_apart, apart) = (gradients(*case, batch) for case in cases)
    assert loss == pytest.approx(loss_apart, rel=1e-12)
    apart["decoder.embedding.weight"] = apart["decoder.embedding.weight"] + apart.pop("encoder.embedding.weight")
    assert found.keys() == apart.keys() == {parameter.name for parameter in inventory(cases[0][0], SIZES)}
    for name, gradient in found.items():
        np.testing.assert_allclose(gradient, apart[name], rtol=1e-9, atol=1e-11, err_msg=name)


def test_its_weight_has_one_name_and_is_counted_once(cases):
    model = models.build(cases[0][0], SIZES, cases[0][1])
    names = {parameter.name for parameter in inventory(cases[0][0], SIZES)}
    assert model.state_dict().keys() == names == dict(model.named_parameters()).keys()
    assert "encoder.embedding.weight" not in names
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.decoder.embedding.weight.add_(1.0)
    assert other.encoder.embedding.weight is other.decoder.embedding.weight
    assert not torch.equal(model.encoder.embedding.weight, other.encoder.embedding.weight)


def test_vocabularies_of_different_sizes_are_refused(cases):
    with pytest.raises(ShapeError, match="share_embeddings needs one vocabulary, got 14 source and 13 target symbols"):
        inventory(cases[0][0], Sizes(source=14, features=0, target=13))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.share_embeddings=true", "model.decoder.embedding_dim=64"], "embeddings of equal size, got 128 and 64"),
        (["model.share_embeddings=true"], "model.share_embeddings needs data.shared_vocabulary=true"),
        (
            ["model.share_embeddings=true", "data.shared_vocabulary=true", "data.columns=source,target,features"],
            "features belong to the source alone",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(overrides, message):
    with pytest.raises(ValueError, match=message):
        resolve(overrides=overrides)
