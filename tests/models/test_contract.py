"""What holds for every encoder with every decoder, and for every decoder alone."""

import pytest
import torch
from conftest_models import COMBINATIONS, LANGUAGE_MODELS, SIZES, random_weights, settings_of

from unrolled import models

EXACT = {"rtol": 0.0, "atol": 1e-10}


def encoded(model, batch):
    return model.encode(batch["source"], batch["source_mask"]) if isinstance(model, models.Seq2Seq) else None


def of_sources(memory, sources):
    return None if memory is None else memory.select(sources)


def run(model, batch, **extra):
    memory = encoded(model, batch)
    state = model.initial_state(memory, len(batch["tokens"]))
    return model.decode(batch["tokens"], memory, state, **extra)


def real(values, mask):
    return values[mask]


@pytest.mark.parametrize("chunks", [[1] * 7, [3, 4], [1, 5, 1], [6, 1]], ids=str)
def test_whole_equals_chunks(model, batch, chunks):
    memory = encoded(model, batch)
    state = model.initial_state(memory, 4)
    whole = model.decode(batch["tokens"], memory, state, mask=batch["target_mask"], need_attention=True)
    logits, attention = [], []
    for tokens, mask in zip(batch["tokens"].split(chunks, 1), batch["target_mask"].split(chunks, 1), strict=True):
        output = model.decode(tokens, memory, state, mask=mask, need_attention=True)
        state = output.state
        logits.append(output.logits)
        attention.append(output.attention)
    mask = batch["target_mask"]
    torch.testing.assert_close(torch.cat(logits, 1)[mask], whole.logits[mask], **EXACT)
    if whole.attention is not None:
        torch.testing.assert_close(torch.cat(attention, 1)[mask], whole.attention[mask], **EXACT)
    # the state after the chunks continues like the state after the whole
    probe = torch.full((4, 2), 5)
    after_chunks, after_whole = (model.decode(probe, memory, past).logits for past in (state, whole.state))
    torch.testing.assert_close(after_chunks, after_whole, **EXACT)


def test_ragged_rows_continue_where_their_real_tokens_ended(model, batch):
    memory = encoded(model, batch)
    state = run(model, batch, mask=batch["target_mask"]).state
    probe = torch.tensor([[5, 6], [7, 8], [9, 10], [11, 12]])
    together = model.decode(probe, memory, state).logits
    for row, length in enumerate(batch["target_mask"].sum(1).tolist()):
        alone = of_sources(memory, torch.tensor([row]))
        tokens = torch.cat([batch["tokens"][row, :length], probe[row]])[None]
        expected = model.decode(tokens, alone, model.initial_state(alone, 1)).logits[:, length:]
        torch.testing.assert_close(together[row : row + 1], expected, **EXACT)


def test_logits_of_some_classes_are_those_columns_of_all(model, batch):
    classes = torch.tensor([7, 2, 9])
    reset = torch.zeros_like(batch["target_mask"])
    reset[1, 3] = True
    for extra in ({"mask": batch["target_mask"]}, {"reset": reset}):
        whole, some = run(model, batch, **extra), run(model, batch, classes=classes, **extra)
        mask = batch["target_mask"]
        torch.testing.assert_close(some.logits[mask], whole.logits[..., classes][mask], **EXACT)
        torch.testing.assert_close(some.state, whole.state, **EXACT)


def test_float32_steps_equal_whole(batch):
    for combination in COMBINATIONS + LANGUAGE_MODELS:
        settings = settings_of(*combination)
        model = models.build(settings, SIZES, random_weights(settings)).eval().float()
        memory = encoded(model, batch)
        state = model.initial_state(memory, 4)
        whole = model.decode(batch["tokens"], memory, state).logits
        steps = []
        for tokens in batch["tokens"].split(1, 1):
            output = model.decode(tokens, memory, state)
            state = output.state
            steps.append(output.logits)
        limit = 1e-5 * max(1.0, whole.abs().max().item())
        assert (torch.cat(steps, 1) - whole).abs().max().item() <= limit, combination


def test_no_gradient_from_a_logit_to_a_later_input(model, batch):
    memory = encoded(model, batch)
    state = model.initial_state(memory, 4)
    seen = []
    embed = model.decoder.embedding
    embedded = torch.nn.functional.embedding(batch["tokens"], embed.weight).detach().requires_grad_()
    with one_hot_tokens(model, embedded):
        logits = model.decode(batch["tokens"], memory, state).logits
    for t in range(logits.shape[1]):
        (gradient,) = torch.autograd.grad(logits[:, t].sum(), embedded, retain_graph=True)
        assert (gradient[:, t + 1 :] == 0).all()
        assert (gradient[:, t] != 0).any()
        seen.append(t)
    assert len(seen) == 7


class one_hot_tokens:  # noqa: N801
    """Feed embedded tokens in place of the table's rows, so that each input has a gradient of its own.

    The table becomes all inputs of the batch, one row each, and the ids their numbers.
    """

    def __init__(self, model, embedded):
        self.model, self.embedded = model, embedded

    def __enter__(self):
        B, T, E = self.embedded.shape
        self.kept = self.model.decoder.embedding
        self.ids = torch.arange(B * T).view(B, T)
        rows, ids = self.embedded.view(B * T, E), self.ids

        class Table(torch.nn.Module):
            weight = rows

            def forward(self, tokens):
                return rows[ids[:, : tokens.shape[1]]]

        self.forward = self.model.decoder.forward

        def with_ids(tokens, *args, **kwargs):
            return self.forward(ids, *args, **kwargs)

        output, tied = self.model.decoder.output, self.kept.weight
        output.forward = lambda x, _, classes: type(output).forward(output, x, tied, classes)
        self.model.decoder.embedding = Table()
        self.model.decoder.forward = with_ids

    def __exit__(self, *error):
        self.model.decoder.embedding = self.kept
        del self.model.decoder.forward, self.model.decoder.output.forward


def test_padding_changes_nothing(translator, batch):
    plain = run(translator, batch, need_attention=True)
    source = torch.nn.functional.pad(batch["source"], (0, 5), value=6)  # padding that is not even the pad symbol
    mask = torch.nn.functional.pad(batch["source_mask"], (0, 5), value=False)
    padded = run(translator, {**batch, "source": source, "source_mask": mask}, need_attention=True)
    torch.testing.assert_close(padded.logits, plain.logits, **EXACT)
    if plain.attention is not None:
        assert (padded.attention[..., -5:] == 0).all()


def test_padding_gets_no_gradient_and_gives_none(translator, batch):
    source = batch["source"].clone()
    source[~batch["source_mask"]] = 14  # a symbol that stands nowhere else
    assert not (batch["source"] == 14).any()
    run(translator, {**batch, "source": source}).logits.sum().backward()
    assert (translator.encoder.embedding.weight.grad[14] == 0).all()


def test_batch_mates_change_nothing(model, batch):
    together = run(model, batch).logits
    for row in range(4):
        length = int(batch["source_mask"][row].sum())
        alone = {
            "source": batch["source"][row : row + 1, :length],
            "source_mask": batch["source_mask"][row : row + 1, :length],
            "tokens": batch["tokens"][row : row + 1],
        }
        torch.testing.assert_close(run(model, alone).logits, together[row : row + 1], **EXACT)


def test_attention_rows_sum_to_one_over_real_tokens(translator, batch):
    attention = run(translator, batch, need_attention=True).attention
    if attention is None:
        assert translator.decoder.__class__.__name__ == "RecurrentDecoder"
        return
    torch.testing.assert_close(attention.sum(-1), torch.ones(4, 7, dtype=torch.float64), **EXACT)
    assert (attention[(~batch["source_mask"]).unsqueeze(1).expand_as(attention)] == 0).all()


def test_asking_for_attention_changes_nothing(model, batch):
    gradients = []
    for ask in (False, True):
        model.zero_grad()
        output = run(model, batch, need_attention=ask)
        output.logits.square().sum().backward()
        gradients.append([output.logits.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_decode_leaves_state_and_memory_as_they_were(model, batch):
    memory = encoded(model, batch)
    state = model.decode(batch["tokens"], memory, model.initial_state(memory, 4)).state
    before = [leaf.clone() for leaf in leaves((state, memory))]
    first = model.decode(torch.full((4, 1), 5), memory, state).logits
    model.decode(torch.full((4, 3), 9), memory, state)
    assert all(torch.equal(a, b) for a, b in zip(before, leaves((state, memory)), strict=True))
    assert torch.equal(model.decode(torch.full((4, 1), 5), memory, state).logits, first)


def test_select_reorders_repeats_and_is_independent(model, batch):
    memory = encoded(model, batch)
    state = model.decode(batch["tokens"], memory, model.initial_state(memory, 4)).state
    rows = torch.tensor([2, 0, 2, 3])
    picked = model.decode(batch["tokens"][rows][:, 1:], of_sources(memory, rows), state.select(rows)).logits
    plain = model.decode(batch["tokens"][:, 1:], memory, state).logits
    torch.testing.assert_close(picked, plain[rows], **EXACT)
    copy = state.select(torch.arange(4))
    for leaf in leaves(copy):
        if leaf.is_floating_point():
            leaf.zero_()
    torch.testing.assert_close(model.decode(batch["tokens"][:, 1:], memory, state).logits, plain, **EXACT)


def test_detach_cuts_the_graph(model, batch):
    state = run(model, batch).state
    assert any(leaf.requires_grad for leaf in leaves(state))
    assert not any(leaf.requires_grad for leaf in leaves(state.detach()))


@pytest.mark.parametrize("length", [1, 3])
def test_beams_share_memory(translator, batch, length):
    k = 3
    memory = encoded(translator, batch)
    tokens = torch.randint(4, 13, (4 * k, length), generator=torch.Generator().manual_seed(1))
    folded = translator.decode(tokens, memory, translator.initial_state(memory, 4 * k), need_attention=True)
    copied = of_sources(memory, torch.arange(4).repeat_interleave(k))
    plain = translator.decode(tokens, copied, translator.initial_state(copied, 4 * k), need_attention=True)
    torch.testing.assert_close(folded.logits, plain.logits, **EXACT)
    if plain.attention is not None:
        torch.testing.assert_close(folded.attention, plain.attention, **EXACT)


def test_reset_returns_a_row_to_its_start(model, batch):
    reset = torch.zeros(4, 7, dtype=torch.bool)
    reset[0, 0] = reset[0, 3] = reset[2, 3] = reset[3, 5] = True
    memory = encoded(model, batch)
    start = model.initial_state(memory, 4)
    output = model.decode(batch["tokens"], memory, start, reset=reset, need_attention=True)
    plain = model.decode(batch["tokens"], memory, start).logits
    fresh = {begin: model.decode(batch["tokens"][:, begin:], memory, start).logits for begin in (3, 5)}
    torch.testing.assert_close(output.logits[1], plain[1], **EXACT)
    torch.testing.assert_close(output.logits[0, :3], plain[0, :3], **EXACT)
    torch.testing.assert_close(output.logits[0, 3:], fresh[3][0], **EXACT)
    torch.testing.assert_close(output.logits[2, 3:], fresh[3][2], **EXACT)
    torch.testing.assert_close(output.logits[3, 5:], fresh[5][3], **EXACT)
    # a mask beside it: the same over the real tokens
    masked = model.decode(batch["tokens"], memory, start, mask=batch["target_mask"], reset=reset).logits
    torch.testing.assert_close(masked[batch["target_mask"]], output.logits[batch["target_mask"]], **EXACT)


def test_a_reset_before_the_first_token_forgets_what_was_read(model, batch):
    memory = encoded(model, batch)
    start = model.initial_state(memory, 4)
    past = model.decode(batch["tokens"], memory, start).state
    going_on, anew = (model.decode(batch["tokens"], memory, state) for state in (past, start))
    reset = torch.zeros(4, 7, dtype=torch.bool)
    reset[1, 0] = True
    output = model.decode(batch["tokens"], memory, past, reset=reset)
    torch.testing.assert_close(output.logits[1], anew.logits[1], **EXACT)
    others = torch.tensor([0, 2, 3])
    torch.testing.assert_close(output.logits[others], going_on.logits[others], **EXACT)
    assert (output.logits[1] - going_on.logits[1]).abs().max() > 1e-6
    after = model.decode(batch["tokens"], memory, output.state).logits
    torch.testing.assert_close(after[1], model.decode(batch["tokens"], memory, anew.state).logits[1], **EXACT)


def test_order_of_features_does_not_matter(translator, batch):
    swapped = batch["source"].clone()
    row = swapped[3]
    features = (row >= SIZES.source - SIZES.features).nonzero().flatten()
    row[features] = row[features.flip(0)]
    assert not torch.equal(swapped, batch["source"])
    torch.testing.assert_close(
        run(translator, {**batch, "source": swapped}).logits, run(translator, batch).logits, **EXACT
    )


def test_features_matter(translator, batch):
    other = batch["source"].clone()
    position = int((other[0] >= SIZES.source - SIZES.features).nonzero()[0])
    other[0, position] = 15 if other[0, position] != 15 else 16
    changed, plain = run(translator, {**batch, "source": other}).logits, run(translator, batch).logits
    assert (changed[0] - plain[0]).abs().max() > 1e-6
    torch.testing.assert_close(changed[1:], plain[1:], **EXACT)


def test_a_row_without_any_source_stays_finite(translator, batch):
    mask = batch["source_mask"].clone()
    mask[1] = False
    output = run(translator, {**batch, "source_mask": mask}, need_attention=True)
    if output.attention is not None:
        assert (output.attention[1] == 0).all()
    others = [0, 2, 3]
    torch.testing.assert_close(output.logits[others], run(translator, batch).logits[others], **EXACT)
    output.logits[others].sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in translator.parameters() if p.grad is not None)


def test_a_target_row_without_any_token_stays_finite(model, batch):
    mask = batch["target_mask"].clone()
    mask[1] = False
    output = run(model, batch, mask=mask)
    assert torch.isfinite(output.logits).all()
    memory = encoded(model, batch)
    after = model.decode(torch.full((4, 1), 5), memory, output.state).logits[1]
    fresh = model.decode(torch.full((4, 1), 5), memory, model.initial_state(memory, 4)).logits[1]
    torch.testing.assert_close(after, fresh, **EXACT)


def test_dropout_follows_the_mode(model, batch):
    assert torch.equal(run(model, batch).logits, run(model, batch).logits)
    model.train()
    torch.manual_seed(0)
    assert not torch.equal(run(model, batch).logits, run(model, batch).logits)


def test_every_parameter_gets_a_gradient(model, batch):
    run(model, batch).logits.square().sum().backward()
    has_attention = not hasattr(model.decoder, "start") or hasattr(model.decoder, "attention")
    for name, parameter in model.named_parameters():
        if name.startswith("encoder.features") and not has_attention:
            continue  # memory entries that a fixed-vector decoder never reads
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert (parameter.grad != 0).any(), name


def test_gradients_share_no_memory_and_add_up(model, batch):
    """Clipping works in place, and accumulation is exact: two passes give twice the gradient of one."""
    run(model, batch).logits.square().sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert len({gradient.data_ptr() for gradient in gradients.values()}) == len(gradients)
    once = {name: gradient.clone() for name, gradient in gradients.items()}
    run(model, batch).logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, 2 * once[name], rtol=1e-12, atol=1e-12)


def leaves(tree):
    if tree is None:
        return []
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [leaf for part in tree for leaf in leaves(part)]
