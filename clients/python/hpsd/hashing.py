# SPDX-License-Identifier: Apache-2.0
"""The hash functions with which TensorFlow and Keras turn words into ids, without TensorFlow: for programs that publish
rows, or that look up rows of a trained model. Values are strings, bytes or integers, in arrays of any shape. As in
Keras, an integer is hashed as its decimal text. Results are int64 arrays of the same shape.

    pip install cityhash siphashc    # the functions need these packages
"""
from __future__ import annotations

import struct
from typing import Any, Callable, Optional, Sequence, Tuple, Union

import numpy as np
import numpy.typing as npt

from .errors import InvalidArgument, in_range


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, (str, int, np.integer)) and not isinstance(value, bool):
        return str(value).encode()
    raise InvalidArgument(f"values: got {value!r}, expected strings, bytes or integers")


def _each(values: Any, of_one: Callable[[bytes], int]) -> npt.NDArray[np.int64]:
    array = np.asarray(values, object)
    return np.array([of_one(_bytes(value)) for value in array.flat], np.int64).reshape(array.shape)


def _buckets(num_buckets: Any, what: str, least: int = 1) -> int:
    return int(in_range(num_buckets, what, least, 2**63 - 1, "a whole number", whole=True))


def to_hash_bucket_fast(values: Any, num_buckets: int) -> npt.NDArray[np.int64]:
    """tf.strings.to_hash_bucket_fast: FarmHash Fingerprint64, modulo num_buckets."""
    from farmhash import Fingerprint64  # of the package cityhash

    n = _buckets(num_buckets, "num_buckets")
    return _each(values, lambda value: Fingerprint64(value) % n)


def to_hash_bucket_strong(values: Any, num_buckets: int, key: Sequence[int]) -> npt.NDArray[np.int64]:
    """tf.strings.to_hash_bucket_strong: SipHash-2-4 with two key words of 64 bits, modulo num_buckets."""
    from siphashc import siphash

    n = _buckets(num_buckets, "num_buckets")
    try:
        words = struct.pack("<2Q", *(int(word) % 2**64 for word in key))
    except (struct.error, TypeError, ValueError):
        raise InvalidArgument(f"key: got {key!r}, expected two integers") from None
    return _each(values, lambda value: siphash(words, value) % n)


def hashing(values: Any, num_bins: int, salt: Union[None, int, Tuple[int, int]] = None,
            mask_value: Any = None) -> npt.NDArray[np.int64]:
    """keras.layers.Hashing. With mask_value, that value gets bin 0, and other values the bins from 1."""
    masks = mask_value is not None
    n = _buckets(num_bins, "num_bins", 2 if masks else 1) - masks
    if salt is None:
        bins = to_hash_bucket_fast(values, n)
    else:
        bins = to_hash_bucket_strong(values, n, (salt, salt) if isinstance(salt, (int, np.integer)) else salt)
    if not masks:
        return bins
    masked = _bytes(mask_value)
    return np.where(_each(values, lambda value: value == masked) == 1, 0, bins + 1)
