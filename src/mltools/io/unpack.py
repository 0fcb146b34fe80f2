"""Compressed bytes unpacked, by whatever packed them, and never far more of them than a file of its size can mean."""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from typing import Any

from mltools.errors import RowsError

MAGIC = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst", b"BZh": ".bz2", b"\xfd7zXZ\x00": ".xz"}
"""How each kind of compressed file starts."""
BLOCK = 1 << 16
SIP = 1 << 8
"""So many bytes are given to zstd at once, which makes up to 128 KiB of each 4, and takes no limit."""
LARGE = 1 << 26
DENSEST = 1000
"""A file may unpack to this many times its size; less than `LARGE` bytes are never too many."""
OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def unpacked(stream: io.BufferedIOBase, form: str, name: str) -> Iterator[bytes]:
    """Yield the bytes of a stream as they come, unpacked if `form` is a kind of compression; `name` is for messages.

    Raises:
        RowsError: it is damaged or cut short, or unpacks to more than its size can mean.
    """
    if form not in MAGIC.values():
        while piece := stream.read1(BLOCK):
            yield piece
        return
    counted, total = _Counted(stream), 0
    try:
        for piece in _zstd(counted) if form == ".zst" else _opened(OPENERS[form], counted):
            total += len(piece)
            if total > max(LARGE, DENSEST * counted.taken):
                raise RowsError(f"{name}: unpacks to over {DENSEST} times its size; unpack it first if that is meant")
            yield piece
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if getattr(error, "errno", None) is not None:  # not damage, but what the system says
            raise
        raise RowsError(f"{name}: damaged compressed file ({error})") from None


class _Counted(io.RawIOBase):
    """Counts the packed bytes that were taken."""

    def __init__(self, stream: io.BufferedIOBase) -> None:
        self._stream, self.taken = stream, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        n = self._stream.readinto1(buffer)
        self.taken += n
        return n


def _opened(opener: Any, packed: io.RawIOBase) -> Iterator[bytes]:
    with opener(packed) as plain:
        while piece := plain.read1(BLOCK):
            yield piece


def _zstd(packed: io.RawIOBase) -> Iterator[bytes]:
    """Unpack frame by frame; the library's own stream reader takes a file that is cut short for its end."""
    import zstandard

    frame, whole = zstandard.ZstdDecompressor().decompressobj(), True
    while sip := packed.read(SIP):
        while sip:
            try:
                yield frame.decompress(sip)
            except zstandard.ZstdError as error:
                raise EOFError(error) from None
            whole, sip = frame.eof, frame.unused_data
            if whole:
                frame = zstandard.ZstdDecompressor().decompressobj()
    if not whole:
        raise EOFError("it ends in the middle")
