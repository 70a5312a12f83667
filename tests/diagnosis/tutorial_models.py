"""Small models in plain PyTorch, written the way tutorials write them, each with faults that people really make."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from unrolled.diagnosis import Batch

V = 13
PAD, BOS, EOS = 0, 1, 2


# --- batches ---------------------------------------------------------------------------------------------------------


def pairs(rows: int = 5, *, seed: int = 0, longest: int = 5) -> Batch:
    """Reversal of random symbols: ragged, padded with 0."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, longest + 1, (rows,), generator=generator)
    lengths[0], lengths[-1] = longest, 3
    texts = [torch.randint(3, V, (int(n),), generator=generator).tolist() for n in lengths]
    source = _padded([[*text, EOS] for text in texts])
    inputs = _padded([[BOS, *reversed(text)] for text in texts])
    labels = _padded([[*reversed(text), EOS] for text in texts])
    return Batch(inputs, labels, source, pad=PAD)


def text(rows: int = 4, steps: int = 7, *, seed: int = 0) -> Batch:
    """Random text without padding, cut into rows."""
    symbols = torch.randint(3, V, (rows, steps + 1), generator=torch.Generator().manual_seed(seed))
    return Batch(symbols[:, :-1], symbols[:, 1:])


def _padded(rows: list[list[int]]) -> Tensor:
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)


def fit(model: nn.Module, batch: Batch, *, steps: int = 80, rate: float = 1e-2) -> nn.Module:
    """Train a model on one batch until it knows it."""
    from unrolled.diagnosis.adapter import Subject

    subject = Subject(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        loss = subject.loss(batch)
        if float(loss.detach()) < 0.1:
            break
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


# --- language models -------------------------------------------------------------------------------------------------


class RecurrentLM(nn.Module):
    """Word language model of the PyTorch examples."""

    def __init__(self, cell: str = "LSTM", *, hidden: int = 24, layers: int = 2, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(V, 16)
        self.rnn = getattr(nn, cell)(
            16, hidden, layers, batch_first=fault != "time first", dropout=0.2 if layers > 1 else 0
        )
        self.decoder = nn.Linear(hidden, V)

    def forward(self, input: Tensor, hidden=None):  # noqa: A002
        if self.fault == "state dropped":
            hidden = None
        if self.fault == "cell dropped" and hidden is not None:
            hidden = (hidden[0], torch.zeros_like(hidden[1]))
        emb = self.drop(self.encoder(input))
        if self.fault == "functional dropout":
            emb = functional.dropout(emb, 0.3)
        output, new = self.rnn(emb, hidden)
        if self.fault == "state not updated" and hidden is not None:
            new = hidden
        logits = self.decoder(self.drop(output))
        if self.fault == "softmax":
            logits = logits.softmax(-1)
        if self.fault == "reshape":
            logits = self.decoder(output.transpose(0, 1)).reshape(*input.shape, V)
        return logits, new


class KeptStateLM(nn.Module):
    """Keeps its hidden state on the module."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.embed = nn.Embedding(V, 16)
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        self.out = nn.Linear(16, V)
        self.hidden = None

    def forward(self, x: Tensor) -> Tensor:
        start = self.hidden
        if self.fault == "kept detached" and start is not None:
            start = tuple(part.detach() for part in start)
        output, self.hidden = self.lstm(self.embed(x), start)
        return self.out(output)


class LoopLM(nn.Module):
    """LSTMCell in a Python loop."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.embed = nn.Embedding(V, 16)
        self.cell = nn.LSTMCell(16, 20)
        self.out = nn.Linear(20, V)

    def forward(self, x: Tensor) -> Tensor:
        state, outputs = None, []
        for t in range(x.shape[1]):
            step = min(t + 1, x.shape[1] - 1) if self.fault == "next token fed" else t
            state = self.cell(self.embed(x[:, step]), None if self.fault == "state reset" else state)
            outputs.append(self.out(state[0]))
        return torch.stack(outputs, 1)


class Block(nn.Module):
    """Pre-norm GPT block."""

    def __init__(self, d: int, heads: int, fault: str) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = CausalSelfAttention(d, heads, fault)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.ReLU() if "relu" in fault else nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x: Tensor, past=None):
        y, past = self.attn(self.ln1(x), past)
        x = x + y
        return x + self.mlp(self.ln2(x)), past


class CausalSelfAttention(nn.Module):
    """Written out, as in minGPT."""

    def __init__(self, d: int, heads: int, fault: str) -> None:
        super().__init__()
        self.heads, self.fault = heads, fault
        self.c_attn, self.c_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x: Tensor, past=None):
        B, T, C = x.shape
        split = [part.view(B, T, self.heads, C // self.heads).transpose(1, 2) for part in self.c_attn(x).split(C, 2)]
        q, k, v = split
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        S = k.shape[2]
        if self.fault.startswith("fused"):
            mask = torch.ones(T, S, dtype=torch.bool).tril(S - T - (self.fault == "fused diagonal lost"))
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return self.c_proj(y.transpose(1, 2).reshape(B, T, C)), (k, v)
        scale = {"no scale": 1.0, "scale by width": 1 / math.sqrt(C), "scale twice": 1 / k.shape[-1]}
        att = (q @ k.transpose(-2, -1)) * scale.get(self.fault, 1 / math.sqrt(k.shape[-1]))
        att = att.masked_fill(~self._visible(T, S), float("-inf"))
        att = functional.softmax(att, dim={"softmax over queries": -2, "softmax over heads": 1}.get(self.fault, -1))
        if self.fault == "dropout in attention":
            att = functional.dropout(att, 0.2)
        return self.c_proj((att @ v).transpose(1, 2).reshape(B, T, C)), (k, v)

    def _visible(self, T: int, S: int) -> Tensor:
        ones = torch.ones(T, S, dtype=torch.bool)
        if self.fault == "no mask" or (self.fault == "no mask in training" and self.training):
            return ones
        shift = {"mask shifted": 1, "diagonal lost": -1}.get(self.fault, 0)
        visible = ones.tril(S - T + shift)
        return visible.T if self.fault == "mask inverted" else visible


class GPT(nn.Module):
    """Decoder-only Transformer with learned positions, a cache, and (optionally) tied embeddings."""

    def __init__(self, *, d: int = 32, heads: int = 4, layers: int = 2, tied: bool = False, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.wte, self.wpe = nn.Embedding(V, d), nn.Embedding(64, d)
        self.blocks = nn.ModuleList(Block(d, heads, fault) for _ in range(layers))
        self.ln_f, self.head = nn.LayerNorm(d), nn.Linear(d, V, bias=False)
        if tied:
            self.head.weight = self.wte.weight
        if fault != "unit variance":
            for weight in (self.wte.weight, self.wpe.weight, self.head.weight):
                nn.init.normal_(weight, std=0.02)

    def forward(self, idx: Tensor, past=None):
        start = 0 if past is None or self.fault == "positions from 0" else past[0][0].shape[2]
        x = self.wte(idx) + self.wpe(torch.arange(start, start + idx.shape[1]))
        if self.fault == "norm over time":
            x = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
        caches = []
        for number, block in enumerate(self.blocks):
            x, cache = block(x, None if past is None else past[number])
            caches.append(cache)
        return self.head(self.ln_f(x)), caches


class ConvLM(nn.Module):
    """Stack of causal convolutions."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.embed = nn.Embedding(V, 16)
        self.convs = nn.ModuleList(nn.Conv1d(16, 16, 3, dilation=2**layer) for layer in range(3))
        self.out = nn.Linear(16, V)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x).transpose(1, 2)  # (B, E, T)
        for layer, conv in enumerate(self.convs):
            reach = 2 * 2**layer
            sides = (reach // 2, reach - reach // 2) if self.fault == "centred" else (reach, 0)
            h = h + torch.tanh(conv(functional.pad(h, sides)))
        return self.out(h.transpose(1, 2))


# --- encoder–decoder -------------------------------------------------------------------------------------------------


class LSTMSeq2Seq(nn.Module):
    """Bidirectional LSTM encoder, LSTM decoder, `general` attention of Luong et al."""

    def __init__(self, *, hidden: int = 24, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.src_embed, self.tgt_embed = nn.Embedding(V, 16), nn.Embedding(V, 16)
        self.encoder = nn.LSTM(16, hidden // 2, bidirectional=True, batch_first=True)
        self.bridge_h, self.bridge_c = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.decoder = nn.LSTM(16, hidden, batch_first=True)
        self.attn = nn.Linear(hidden, hidden, bias=False)
        self.combine = nn.Linear(2 * hidden, hidden)
        self.out = nn.Linear(hidden, V)

    def forward(self, src: Tensor, tgt: Tensor, src_lengths: Tensor) -> Tensor:
        memory, state = self.encode(src, src_lengths)
        output, _ = self.decoder(self.tgt_embed(tgt), state)
        scores = self.attn(output) @ memory.transpose(1, 2)  # (B, T, S)
        if self.fault != "attention not masked":
            real = torch.arange(src.shape[1]) < src_lengths[:, None]
            scores = scores.masked_fill(~real[:, None], -1e9)
        axis = {"softmax over batch": 0, "softmax over steps": 1}.get(self.fault, 2)
        context = torch.softmax(scores, axis) @ memory
        if self.fault == "source ignored":
            context = torch.zeros_like(context)
        return self.out(torch.tanh(self.combine(torch.cat([context, output], 2))))

    def encode(self, src: Tensor, lengths: Tensor):
        embedded = self.src_embed(src)
        if self.fault == "encoder not trained":
            embedded = embedded.detach()
        if self.fault == "not packed":
            memory, (h, c) = self.encoder(embedded)
        else:
            packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
            packed, (h, c) = self.encoder(packed)
            memory, _ = pad_packed_sequence(packed, batch_first=True, total_length=src.shape[1])
        if self.fault == "source ignored":
            return memory, None
        state = [
            bridge(torch.cat([part[0], part[1]], 1))[None] for bridge, part in ((self.bridge_h, h), (self.bridge_c, c))
        ]
        return memory, tuple(state)


class BahdanauSeq2Seq(nn.Module):
    """GRU encoder and a decoder loop with additive attention, teacher forcing by ratio."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.src_embed, self.tgt_embed = nn.Embedding(V, 16), nn.Embedding(V, 16)
        self.encoder = nn.GRU(16, 20, batch_first=True)
        self.cell = nn.GRUCell(16 + 20, 20)
        self.W, self.U, self.v = nn.Linear(20, 20), nn.Linear(20, 20), nn.Linear(20, 1)
        self.out = nn.Linear(20, V)

    def forward(self, src: Tensor, trg: Tensor, src_mask: Tensor, teacher_forcing_ratio: float = 0.5) -> Tensor:
        memory, _ = self.encoder(self.src_embed(src))
        last = src_mask.sum(1) - 1
        hidden = memory[torch.arange(len(src)), last]
        outputs = []
        for t in range(trg.shape[1]):
            energy = self.v(torch.tanh(self.W(hidden)[:, None] + self.U(memory))).squeeze(2)
            weights = functional.softmax(energy.masked_fill(~src_mask, float("-inf")), dim=1)
            context = (weights[:, :, None] * memory).sum(1)
            hidden = self.cell(torch.cat([self.tgt_embed(trg[:, t]), context], 1), hidden)
            outputs.append(self.out(hidden))
        return torch.stack(outputs, 1)


class FixedVectorSeq2Seq(nn.Module):
    """No attention: the encoder's last state starts the decoder."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.src_embed, self.tgt_embed = nn.Embedding(V, 16), nn.Embedding(V, 16)
        self.encoder, self.decoder = nn.GRU(16, 24, batch_first=True), nn.GRU(16, 24, batch_first=True)
        self.out = nn.Linear(24, V)

    def forward(self, src: Tensor, tgt: Tensor, src_lengths: Tensor) -> Tensor:
        output, _ = self.encoder(self.src_embed(src))
        last = output[:, -1] if self.fault == "last column" else output[torch.arange(len(src)), src_lengths - 1]
        if self.fault == "pooled over padding":
            last = output.mean(1)
        start = None if self.fault == "state not passed" else last[None].contiguous()
        return self.out(self.decoder(self.tgt_embed(tgt), start)[0])


class TransformerSeq2Seq(nn.Module):
    """`nn.Transformer` with sinusoidal positions, as in the translation tutorial."""

    def __init__(self, *, d: int = 32, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.src_embed, self.tgt_embed = nn.Embedding(V, d), nn.Embedding(V, d)
        self.transformer = nn.Transformer(d, 4, 2, 2, 64, dropout=0.1, batch_first=True)
        self.generator = nn.Linear(d, V)
        position = torch.arange(64)[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
        self.register_buffer("pe", torch.stack([position.sin(), position.cos()], 2).flatten(1))

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        T = tgt.shape[1]
        mask = torch.ones(T, T, dtype=torch.bool).triu(1)  # True = hidden
        if self.fault == "mask inverted":
            mask = ~mask
        if self.fault == "no mask":
            mask = None
        if self.fault == "mask shifted":
            mask = torch.ones(T, T, dtype=torch.bool).triu(2)
        padding = src == PAD
        if self.fault == "padding inverted":
            padding = ~padding
        memory = self.transformer.encoder(
            self.src_embed(src) + self.pe[: src.shape[1]],
            src_key_padding_mask=None if self.fault == "encoder not masked" else padding,
        )
        output = self.transformer.decoder(
            self.tgt_embed(tgt) + self.pe[:T],
            memory,
            tgt_mask=mask,
            memory_key_padding_mask=None if self.fault == "memory not masked" else padding,
        )
        return self.generator(output)


# --- deep stacks -----------------------------------------------------------------------------------------------------


class DeepTagger(nn.Module):
    """Embedding and a deep stack of fully connected layers at each step, on top of a GRU."""

    def __init__(self, *, layers: int = 10, act: type[nn.Module] = nn.Tanh, gain: float = 1.0, residual: bool = False):
        super().__init__()
        self.residual = residual
        self.embed, self.gru = nn.Embedding(V, 16), nn.GRU(16, 24, batch_first=True)
        self.layers = nn.ModuleList(nn.Linear(24, 24) for _ in range(layers))
        self.act, self.out = act(), nn.Linear(24, V)
        for layer in self.layers:
            nn.init.xavier_normal_(layer.weight, gain)

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.gru(self.embed(x))
        for layer in self.layers:
            h = h + self.act(layer(h)) if self.residual else self.act(layer(h))
        return self.out(h)


def shifting(logits: Tensor, labels: Tensor) -> Tensor:
    """Loss of libraries that shift labels themselves."""
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
