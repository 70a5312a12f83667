"""Files to pairs, pairs to symbols, symbols to batches; knows no framework.

`read_pairs` and `read_parallel` are the only readers of data files, `Codec` the only place where text and ids meet, and
`Batch` what a model is trained on.
"""

from unrolled.text.batches import Batch, Examples, collate, shift, show_batch
from unrolled.text.codec import Codec
from unrolled.text.columns import parse_input, split_features
from unrolled.text.corpus import Corpus
from unrolled.text.files import read_lines
from unrolled.text.frame_preparation import PreparedFrames, prepare_frames
from unrolled.text.frames import FrameBatch, FrameCodec, Pieces, read_pieces
from unrolled.text.normal_form import normalise, recompose
from unrolled.text.pairs import DataFile, Pairs, read_pairs, read_parallel
from unrolled.text.plans import evaluation_batches, in_order, padding_share, plan_batches
from unrolled.text.preparation import Prepared, prepare
from unrolled.text.ragged import Ragged, pad_rows
from unrolled.text.report import DataReport
from unrolled.text.sources import hold_out, seen_sources, source_keys
from unrolled.text.streams import Streams, TextBatch, Windows
from unrolled.text.text_codec import TextCodec
from unrolled.text.text_preparation import PreparedText, prepare_text
from unrolled.text.text_report import TextReport, TextTally
from unrolled.text.token_store import Tokens
from unrolled.text.unknown import UnknownSymbols
from unrolled.text.vocabulary import BOS, EOS, PAD, UNK, Vocabulary

__all__ = [
    "BOS",
    "EOS",
    "PAD",
    "UNK",
    "Batch",
    "Codec",
    "Corpus",
    "DataFile",
    "DataReport",
    "Examples",
    "FrameBatch",
    "FrameCodec",
    "Pairs",
    "Pieces",
    "Prepared",
    "PreparedFrames",
    "PreparedText",
    "Ragged",
    "Streams",
    "TextBatch",
    "TextCodec",
    "TextReport",
    "TextTally",
    "Tokens",
    "UnknownSymbols",
    "Vocabulary",
    "Windows",
    "collate",
    "evaluation_batches",
    "hold_out",
    "in_order",
    "normalise",
    "pad_rows",
    "padding_share",
    "parse_input",
    "plan_batches",
    "prepare",
    "prepare_frames",
    "prepare_text",
    "read_lines",
    "read_pairs",
    "read_parallel",
    "read_pieces",
    "recompose",
    "seen_sources",
    "shift",
    "show_batch",
    "source_keys",
    "split_features",
]
