"""Which files are images: by the end of their name, and by their first bytes where the name does not say."""

from pathlib import Path

COMMON = {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"}
HEIF_SUFFIXES = frozenset({".heic", ".heif", ".hif"})
IMAGE_SUFFIXES = frozenset(COMMON | HEIF_SUFFIXES | {".ppm", ".pgm", ".pbm", ".jp2", ".avif"})
# beside images in many collections, and never images: not opened to look
TEXT_SUFFIXES = frozenset({".txt", ".json", ".csv", ".xml", ".yaml", ".yml", ".md", ".html", ".log", ".py", ".lst"})
HEAD = 16  # bytes that tell
STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"II*\0", b"MM\0*", b"\0\0\0\x0cjP  ")
HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1")


def is_heif(head: bytes) -> bool:
    """Whether a file that begins like this is HEIF (photos of phones), which Pillow cannot read by itself."""
    return head[4:8] == b"ftyp" and head[8:12] in HEIF_BRANDS


def is_image(head: bytes) -> bool:
    """Whether a file that begins like this is an image.

    >>> is_image(b"GIF89a"), is_image(b"RIFF\\x10\\0\\0\\0WEBPVP8 "), is_image(b"hello")
    (True, True, False)
    """
    is_webp = head[:4] == b"RIFF" and head[8:12] == b"WEBP"
    is_bitmap = head[:2] == b"BM" and head[6:10] == bytes(4)
    is_avif = head[4:12] in (b"ftypavif", b"ftypavis")
    return head.startswith(STARTS) or is_webp or is_bitmap or is_avif or is_heif(head)


def is_image_file(path: Path) -> bool:
    """Whether a file is an image by its name, or by its content if its name says nothing."""
    suffix = path.suffix.lower()
    if suffix in IMAGE_SUFFIXES or suffix in TEXT_SUFFIXES:
        return suffix in IMAGE_SUFFIXES
    if not path.is_file():  # a pipe would be waited for
        return False
    try:
        with path.open("rb") as file:
            return is_image(file.read(HEAD))
    except OSError:
        return False
