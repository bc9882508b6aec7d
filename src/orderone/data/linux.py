"""C code of the Linux kernel: 220 MB of text, with files that are held out.

The text comes from Debian's package `linux-source-6.1`. It consists of all `.c` and `.h` files of
at most 128 KiB whose path hashes to one of `TRAINING` or `HELD_OUT` of a thousand buckets. Tables
of registers that a program generated (`asic_reg`, a third of the package) are left out. Files are
sorted by path. Held-out text consists of whole files, so that no part of a file is in both texts;
similar drivers may still share passages.

`pack` writes the two texts as xz files, which `read` checks against their known SHA-256.
"""

import lzma
import tarfile
from collections.abc import Iterator
from hashlib import sha256
from io import BytesIO
from pathlib import Path

from orderone.core.errors import InputError

TRAINING_FILE = "training.xz"
HELD_OUT_FILE = "held-out.xz"
TEXTS = {  # file -> SHA-256 of its text
    TRAINING_FILE: "d5659d9c06da92a2f78a4e3d99bb6702f1456f327b63d0dc82509f08da879379",
    HELD_OUT_FILE: "410777c784db659e2c3741eccc1bd36124138a265fc602032746bd791a256e4d",
}
SUFFIXES = (".c", ".h")
GENERATED = "/asic_reg/"
LARGEST = 1 << 17  # bytes of a file
BUCKETS = 1000
HELD_OUT = range(8)
TRAINING = range(8, 330)
SEPARATOR = b"\n\n"


def pack(archive: bytes, folder: Path) -> int:
    """Write the two texts of the package's tar file into `folder`; return the number of files."""
    training: dict[str, bytes] = {}
    held_out: dict[str, bytes] = {}
    for path, content in _files(archive):
        place = bucket(path)
        if place in TRAINING:
            training[path] = content
        elif place in HELD_OUT:
            held_out[path] = content
    for name, documents in zip(TEXTS, (training, held_out), strict=True):
        text = SEPARATOR.join(documents[path] for path in sorted(documents))
        (folder / name).write_bytes(lzma.compress(text, preset=9))
    return len(TEXTS)


def read(path: Path) -> bytes:
    """Return the text of one of the files of `TEXTS`."""
    try:
        text = lzma.decompress(path.read_bytes())
    except (lzma.LZMAError, EOFError) as error:
        message = f"source: expected xz-compressed text in {path}; it cannot be read ({error})"
        raise InputError(message, "damaged-file", argument="source") from error
    digest = sha256(text).hexdigest()
    if digest != TEXTS[path.name]:
        message = (
            f"source: expected text with SHA-256 {TEXTS[path.name][:16]}... in {path}, got"
            f" {digest[:16]}...; delete the folder and download it again"
        )
        raise InputError(message, "damaged-file", argument="source")
    return text


def bucket(path: str) -> int:
    """Return the bucket of a path below the top folder, such as `kernel/fork.c`."""
    return int.from_bytes(sha256(path.encode()).digest()[:4], "big") % BUCKETS


def _files(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield path (without the top folder) and text of every file that qualifies."""
    with tarfile.open(fileobj=BytesIO(archive), mode="r|xz") as tar:
        for info in tar:
            is_code = info.isfile() and info.name.endswith(SUFFIXES)
            if not is_code or info.size > LARGEST or GENERATED in info.name:
                continue
            file = tar.extractfile(info)
            assert file is not None  # a plain file
            yield info.name.split("/", 1)[-1], file.read()
