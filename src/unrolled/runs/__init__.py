"""A run's folder: read, write, verify, without any framework."""

from unrolled.runs.atomic import digest_file, is_stream, write_atomic
from unrolled.runs.folder import Run, check_free, locked, resume_command, use_command
from unrolled.runs.records import DataDigest, Environment, FileDigest
from unrolled.runs.states import SavedState, States
from unrolled.runs.tensors import check_tensors, decode_tensors, encode_tensors

__all__ = [
    "DataDigest",
    "Environment",
    "FileDigest",
    "Run",
    "SavedState",
    "States",
    "check_free",
    "check_tensors",
    "decode_tensors",
    "digest_file",
    "encode_tensors",
    "is_stream",
    "locked",
    "resume_command",
    "use_command",
    "write_atomic",
]
