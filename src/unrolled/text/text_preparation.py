"""From text files to everything that training a language model needs, in one call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from unrolled.config import Text
from unrolled.errors import ConfigError, DataError
from unrolled.text.corpus import Corpus, Paths
from unrolled.text.text_codec import TextCodec
from unrolled.text.text_report import TextReport, TextTally
from unrolled.text.token_store import Tokens, Writer, store_key, stored, stored_facts
from unrolled.text.wording import counted

__all__ = ["PreparedText", "prepare_text"]

FEW_SYMBOLS = 10_000
LEAST_SYMBOLS = 2  # one to read, one to predict
LEAST_HELD_OUT = 10  # characters: fewer choose nothing
NOT_IN_THE_TOKENS = ("context",)  # settings that the stored ids do not depend on


@dataclass(frozen=True)
class PreparedText:
    """What training a language model needs of its text.

    Parameters
    ----------
    codec : TextCodec
    train, valid : id arrays (N,)
        Mapped from the store; `valid` is None if there is nothing to hold out.
    report : TextReport
    train_sha256, valid_sha256 : str
        Of the files; the latter is empty where the valid text was held out of the training text.
    """

    codec: TextCodec
    train: Tokens
    valid: Tokens | None
    report: TextReport
    train_sha256: str
    valid_sha256: str


def prepare_text(
    train_paths: Paths, valid_paths: Paths | None, text: Text, *, folder: Path, codec: TextCodec | None = None
) -> PreparedText:
    """Read, check, split, encode and report the text that a language model is trained on.

    Without `valid_paths` the end of the text is held out, cut between two symbols, or between documents where these
    are marked.

    Parameters
    ----------
    train_paths, valid_paths : path or sequence of paths
        Files, plain or gzip, or folders of files.
    text : Text
    folder : Path
        Where ids are stored: once for the same bytes and settings.
    codec : TextCodec, optional
        Of a model that is trained further: its vocabulary is kept, and new symbols are noted.

    Raises
    ------
    DataError
        If a file cannot be used, or there are fewer than two symbols to train on.
    ConfigError
        If `codec` cuts text in another way than `text` says.
    """
    if codec is not None:
        _check_same_text(codec.text, text)
    train = Corpus(train_paths, text)
    valid = None if valid_paths is None else Corpus(valid_paths, text)
    digests = train.sha256(), "" if valid is None else valid.sha256()
    names = [path.name for corpus in (train, valid) if corpus is not None for path in corpus.files]
    content = {
        "files": [*digests, *names],
        "text": text.model_dump(mode="json", exclude=set(NOT_IN_THE_TOKENS)),
    }
    arrays, facts = stored(_place(folder, content, codec), lambda writer: _make(writer, train, valid, text, codec))
    size = arrays["train"].size
    if size < LEAST_SYMBOLS:
        raise DataError(
            f"{counted(size, 'symbol')} to train on; a language model needs at least {LEAST_SYMBOLS}",
            file=train.files[0],
        )
    return PreparedText(
        codec=replace(TextCodec.from_json(facts["codec"]), text=text),
        train=arrays["train"],
        valid=arrays["valid"] if arrays["valid"].size else None,
        report=TextReport.from_json(facts["report"]).with_notes(_size_notes(arrays, text)),
        train_sha256=digests[0],
        valid_sha256=digests[1],
    )


def _place(folder: Path, content: Mapping[str, Any], codec: TextCodec | None) -> Path:
    """Where ids are stored; a saved vocabulary has a place of its own, unless it is the one that the text gives."""
    place = folder / store_key(content)
    if codec is None:
        return place
    facts, saved = stored_facts(place), _vocabulary(codec.to_json())
    if facts is not None and _vocabulary(facts["codec"]) == saved:
        return place
    return folder / store_key({**content, "vocabulary": saved})


def _vocabulary(codec: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in codec.items() if name != "text"}


def _check_same_text(saved: Text, text: Text) -> None:
    for name in ("units", "normal_form", "line_ends", "document_end"):
        ours, theirs = getattr(saved, name), getattr(text, name)
        if ours != theirs:
            raise ConfigError(
                f"data.{name}: the saved model has {ours!r}, the settings say {theirs!r}; they must agree"
            )


def _size_notes(arrays: Mapping[str, Tokens], text: Text) -> list[str]:
    num_train, num_valid = arrays["train"].size, arrays["valid"].size
    notes = []
    if not num_valid:
        notes.append("no valid set: the text is too short to hold a part of it out; give a valid file")
    if num_train <= text.context:
        notes.append(f"data.context={text.context} is longer than the text: cut to {num_train - 1}")
    if num_train < FEW_SYMBOLS:
        notes.append(f"little text: {num_train} training and {num_valid} valid symbols; figures on so few say little")
    return notes


# --- what is stored --------------------------------------------------------------------------------------------------


def _make(writer: Writer, train: Corpus, valid: Corpus | None, text: Text, codec: TextCodec | None) -> dict[str, Any]:
    """Write the ids of both parts; the codec and the report are the facts that go with them."""
    parts = _split(train, valid, text)
    used = TextCodec.fit(text, parts["train"].blocks()) if codec is None else codec
    reports, notes = {}, [*train.notes(), *([] if valid is None else valid.notes())]
    for name, part in parts.items():
        tally = TextTally(used)
        writer.write(name, map(tally.encode, part.blocks()), vocabulary_size=len(used.vocabulary))
        reports[name] = tally.report(part.corpus.files)
        summary = tally.unknown.summary(cause="not in the vocabulary")
        notes += [f"{name}: {summary}"] if summary and (name == "valid" or codec is not None) else []
    report = TextReport(text.units, len(used.vocabulary.symbols), reports["train"], reports["valid"], tuple(notes))
    return {"codec": used.to_json(), "report": asdict(report)}


@dataclass(frozen=True)
class _Part:
    """The characters of a corpus from `start` to `stop`."""

    corpus: Corpus
    start: int
    stop: int

    def blocks(self) -> Iterator[str]:
        return self.corpus.blocks(self.start, self.stop)


def _split(train: Corpus, valid: Corpus | None, text: Text) -> dict[str, _Part]:
    """The parts to train on and to choose by, the latter perhaps empty."""
    size = _size(train)
    if valid is not None:
        return {"train": _Part(train, 0, size), "valid": _Part(valid, 0, _size(valid))}
    cut = train.cut_before(int((1 - text.valid_fraction) * size))
    cut = size if size - cut < LEAST_HELD_OUT or not cut else cut
    return {"train": _Part(train, 0, cut), "valid": _Part(train, cut, size)}


def _size(corpus: Corpus) -> int:
    size = corpus.size()
    if not size:
        raise DataError("is empty; expected running text", file=corpus.files[0])
    return size
