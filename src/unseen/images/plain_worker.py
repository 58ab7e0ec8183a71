"""A process that reads plain JPEG files for another one, which starts it (`plain_pool`).

It answers requests on standard input until there are no more: the process that asked has ended, whatever ended it.
"""

import struct
import sys

from unseen.errors import ImageError
from unseen.images.files import read_local
from unseen.images.jpeg import plain_size

LENGTH = struct.Struct("=Q")  # of the paths of a request, which a zero divides
FOUND = struct.Struct("=QII")  # bytes, width and height of a plain file, zeros for any other
NO_FILE = FOUND.pack(0, 0, 0)


def main() -> None:
    """Answer requests: first what was found for each path, then the bytes of all plain files."""
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while len(head := source.read(LENGTH.size)) == LENGTH.size:
        names = source.read(LENGTH.unpack(head)[0]).split(b"\0")
        answers = [_answer(name.decode(errors="surrogateescape")) for name in names]
        try:
            target.write(b"".join(found for found, _ in answers))
            for _, data in answers:
                target.write(data)
            target.flush()
        except OSError:  # nobody reads it
            return


def _answer(path: str) -> tuple[bytes, bytes]:
    try:
        data = read_local(path)
    except (ImageError, MemoryError):  # the other process finds the reason
        return NO_FILE, b""
    size = plain_size(data)
    return (FOUND.pack(len(data), *size), data) if size else (NO_FILE, b"")
