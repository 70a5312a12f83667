from .batches import Batch, Examples, collate, shift, show_batch
from .codec import Codec
from .columns import parse_input, split_features
from .corpus import Corpus, list_files
from .files import read_lines
from .frame_preparation import PreparedFrames, prepare_frames
from .frames import FrameBatch, FrameCodec, Pieces, read_pieces
from .normal_form import normalise, recompose
from .pairs import DataFile, Pairs, read_pairs, read_parallel
from .plans import evaluation_batches, in_order, padding_share, plan_batches
from .preparation import Prepared, prepare
from .ragged import Ragged, pad_rows
from .report import DataReport
from .sources import hold_out, seen_sources, source_keys
from .streams import Streams, TextBatch, Windows
from .text_codec import TextCodec
from .text_preparation import PreparedText, prepare_text
from .text_report import TextReport, TextTally
from .token_store import Tokens
from .unknown import UnknownSymbols
from .vocabulary import BOS, EOS, PAD, UNK, Vocabulary

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
    "list_files",
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
