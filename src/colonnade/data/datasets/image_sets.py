"""Image data sets, cut into a left and a right half.

Values are from 0 to 1, as (sample, channel, row, column). ``load_dataset`` with four parties gives
quadrants, with any other number upright strips.
"""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.core.errors import DataError
from colonnade.data.blocks import Block, Labels
from colonnade.data.datasets.description import (
    Dataset,
    DatasetEntry,
    assemble,
    numbered_ids,
    words,
)
from colonnade.data.datasets.partition import cut_image

__all__ = ["ENTRIES", "read_idx"]

Array = np.ndarray[Any, Any]

DIGIT_CLASSES = tuple("0123456789")
CLOTHES_CLASSES = words(
    "T-shirt/top,trouser,pullover,dress,coat,sandal,shirt,sneaker,bag,ankle boot", ","
)
CIFAR_CLASSES = words("airplane automobile bird cat deer dog frog horse ship truck")


def read_idx(path: Path) -> Array:
    """Read a gzipped idx file of bytes: the format of MNIST and its kin."""
    with gzip.open(path, "rb") as file:
        content = file.read()
    kind, num_axes = content[2], content[3]
    if content[:2] != b"\0\0" or kind != 8:
        raise DataError(f"{path.name}: not an idx file of bytes; fetch it again")
    start = 4 + 4 * num_axes
    shape = np.frombuffer(content[4:start], dtype=">u4").astype(int)
    values = np.frombuffer(content, dtype=np.uint8, offset=start)
    if values.size != shape.prod():
        raise DataError(
            f"{path.name}: {values.size} bytes for a shape of {tuple(shape.tolist())}; "
            "the file is cut short, fetch it again"
        )
    return values.reshape(shape)


def halves(
    entry: DatasetEntry, images: Array, digits: Array, num_train: int, classes: tuple[str, ...]
) -> Dataset:
    """Give the left half of every image to one party and the right half to the other."""
    ids = np.concatenate(
        [
            numbered_ids(f"{entry.name}-train", num_train),
            numbered_ids(f"{entry.name}-test", len(images) - num_train),
        ]
    )
    # Each part is converted by itself, so that the whole set is in memory only as bytes.
    blocks = {
        party: Block(owner=party, ids=ids, values=part.astype(np.float32) / np.float32(255))
        for party, part in zip(entry.parties, cut_image(images, (1, 2)), strict=True)
    }
    labels = Labels(ids=ids, values=digits.astype(np.int64), name="class")
    return assemble(entry, blocks, labels, test_ids=ids[num_train:], classes=classes, grid=(1, 2))


def load_idx_images(entry: DatasetEntry, directory: Path, *, classes: tuple[str, ...]) -> Dataset:
    """Grey images of 28 x 28, the training files first and then the test files."""
    train, train_labels, test, test_labels = (read_idx(directory / path) for path in entry.paths)
    images = np.concatenate([train, test])[:, None]
    digits = np.concatenate([train_labels, test_labels])
    return halves(entry, images, digits, len(train), classes)


def load_cifar10(entry: DatasetEntry, directory: Path) -> Dataset:
    """Colour images of 32 x 32: the first 20000 of training and the first 5000 of test."""
    # Pillow comes with matplotlib and is slow to import; only this data set needs it.
    from PIL import Image

    sheets = []
    for path in entry.paths[:3]:
        with Image.open(directory / path) as image:
            sheet = np.asarray(image.convert("RGB"))
        # 100 tiles of 32 x 32 in each row of tiles.
        tiles = sheet.reshape(-1, 32, 100, 32, 3).transpose(0, 2, 4, 1, 3)
        sheets.append(tiles.reshape(-1, 3, 32, 32))
    digits = [np.loadtxt(directory / path, dtype=np.int64) for path in entry.paths[3:]]
    num_train = len(sheets[0]) + len(sheets[1])
    images = np.concatenate(sheets)
    return halves(entry, images, np.concatenate(digits), num_train, CIFAR_CLASSES)


def idx_paths(folder: str) -> tuple[str, ...]:
    return tuple(
        f"{folder}/{part}-{kind}-ubyte.gz"
        for part in ("train", "t10k")
        for kind in ("images-idx3", "labels-idx1")
    )


ENTRIES = (
    DatasetEntry(
        name="mnist",
        summary="Handwritten digits, 28 x 28, left and right half",
        task="multiclass",
        parties=("left", "right"),
        label_holder="left",
        num_samples=70000,
        source="LeCun, Cortes, Burges, MNIST, commonly stated CC BY-SA 3.0",
        paths=idx_paths("mnist"),
        load=partial(load_idx_images, classes=DIGIT_CLASSES),
    ),
    DatasetEntry(
        name="fashion_mnist",
        summary="Pictures of clothes, 28 x 28, left and right half",
        task="multiclass",
        parties=("left", "right"),
        label_holder="left",
        num_samples=70000,
        source="Zalando Research, Fashion-MNIST, MIT",
        paths=idx_paths("fashion_mnist"),
        load=partial(load_idx_images, classes=CLOTHES_CLASSES),
    ),
    DatasetEntry(
        name="cifar10",
        summary="Colour photographs, 32 x 32, left and right half; 20000 + 5000 of 60000",
        task="multiclass",
        parties=("left", "right"),
        label_holder="left",
        num_samples=25000,
        source="Krizhevsky, Nair, Hinton (2009), CIFAR-10, free for research",
        paths=(
            "cifar10/train_00000-09999.webp",
            "cifar10/train_10000-19999.webp",
            "cifar10/test_0000-4999.webp",
            "cifar10/train_labels.txt",
            "cifar10/test_labels.txt",
        ),
        load=load_cifar10,
    ),
)
