"""TensorFlow's checkpoints: bit for bit through a writer that shares no code, and every kind of damage named."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judging.ground.errors import DataError
from language_model.tensorflow_checkpoint.tensor_bundle import TensorBundle
from tests.language_model.tensorflow_checkpoint import bundle_writer as writer

GENERATOR = np.random.default_rng(0)
TENSORS = {  # of any bit patterns, NaNs too
    f"layer_{layer}/{part}": np.frombuffer(GENERATOR.bytes(4 * math.prod(shape)), "<f4").reshape(shape)
    for layer in range(5)
    for part, shape in [("self/key/bias", (7,)), ("self/key/kernel", (7, 5)), ("output/step", ()), ("é", (3, 0, 2))]
}
SOME = "layer_1/self/key/kernel"


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A checkpoint of TENSORS in three data files and several index blocks."""
    writer.write_bundle(tmp_path / "model.ckpt-7", TENSORS, shards=3)
    return tmp_path / "model.ckpt-7"


def index_of(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".index")


def same(read: npt.NDArray[Any], written: npt.NDArray[Any]) -> bool:
    return read.dtype == written.dtype and read.shape == written.shape and read.tobytes() == written.tobytes()


@pytest.mark.parametrize(("shards", "block_entries", "restart_interval"), [(1, 1, 1), (2, 3, 17), (4, 6, 2)])
def test_all_tensors_return_bit_for_bit(tmp_path, shards, block_entries, restart_interval):
    layout = {"block_entries": block_entries, "restart_interval": restart_interval}
    writer.write_bundle(tmp_path / "model", TENSORS, shards, **layout)
    bundle = TensorBundle(tmp_path / "model")
    assert all(same(bundle.read(name), array) for name, array in TENSORS.items())
    with pytest.raises(ValueError, match="read-only"):
        bundle.read(SOME)[0, 0] = 1


def test_a_flipped_bit_anywhere_in_an_index_is_noticed_except_where_nothing_is_read(tmp_path):
    few = {name: TENSORS[name] for name in sorted(TENSORS)[:6]}
    writer.write_bundle(tmp_path / "model", few)
    content = index_of(tmp_path / "model").read_bytes()
    unnoticed = set()
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        index_of(tmp_path / "model").write_bytes(flipped)
        try:
            bundle = TensorBundle(tmp_path / "model")
        except DataError:
            continue
        unnoticed.add(place)
        assert all(same(bundle.read(name), array) for name, array in few.items())
    meta = content.index(bytes.fromhex("000000000100000000c0f2a1b0"))
    footer = len(content) - 48
    assert unnoticed <= {*range(meta, meta + 13), *range(footer, footer + 40)}


@settings(max_examples=40)
@given(cut=st.floats(0, 1, exclude_max=True))
def test_a_truncated_index_is_refused_wherever_it_ends(tmp_path_factory, cut):
    prefix = tmp_path_factory.mktemp("bundle") / "model"
    writer.write_bundle(prefix, TENSORS)
    content = index_of(prefix).read_bytes()
    index_of(prefix).write_bytes(content[: int(cut * len(content))])
    with pytest.raises(DataError, match="truncated"):
        TensorBundle(prefix)


def test_truncated_data_is_refused_before_anything_is_read_and_missing_files_are_named(prefix):
    first, second, third = (prefix.with_name(f"{prefix.name}.data-0000{number}-of-00003") for number in range(3))
    second.write_bytes(second.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"data-00001-of-00003 has \d+ bytes, but tensor .* ends at \d+: truncated"):
        TensorBundle(prefix)
    first.unlink()
    third.unlink()
    with pytest.raises(DataError, match="data-00000-of-00003, model.ckpt-7.data-00002-of-00003"):
        TensorBundle(prefix)
    index_of(prefix).unlink()
    with pytest.raises(DataError, match=r"model.ckpt-7\.index.*cannot be read"):
        TensorBundle(prefix)


def test_a_damaged_tensor_is_named_and_the_others_are_still_read(prefix):
    place = sorted(TENSORS).index(SOME)
    shard = prefix.with_name(f"{prefix.name}.data-{place % 3:05d}-of-00003")
    content = bytearray(shard.read_bytes())
    position = content.index(TENSORS[SOME].tobytes())
    content[position + 3] ^= 0x10
    shard.write_bytes(content)
    bundle = TensorBundle(prefix)
    with pytest.raises(DataError, match=f"{SOME}, bytes {position} to {position + 140}, does not match its checksum"):
        bundle.read(SOME)
    assert all(same(bundle.read(name), array) for name, array in TENSORS.items() if name != SOME)


def replaced(key: str, **changes: Any) -> dict[bytes, bytes]:
    content: dict[str, Any] = {"dtype": 1, "shape": (7, 5), "shard": 0, "offset": 0, "size": 140, "crc": 0, **changes}
    return {key.encode(): writer.entry(**content)}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({b"": writer.header(3, endianness=1)}, "big-endian"),
        ({b"": writer.header(3, min_consumer=2)}, "version 2, newer"),
        ({b"": writer.header(2)}, "data files are missing: model.data-00000-of-00002"),
        ({b"\xff\xfe": writer.entry(1, (), 0, 0, 4, 0)}, "utf-8"),
        ({SOME.encode(): b"\x0a"}, "a number does not end"),
        ({SOME.encode(): b"\x0b"}, "wire type 3"),
        ({SOME.encode(): writer.number_field(2, 5)}, "damaged"),
        (replaced(SOME, shard=3), "damaged"),
    ],
)
def test_an_index_that_contradicts_itself_is_refused(tmp_path, changed, message):
    writer.write_bundle(tmp_path / "model", TENSORS, shards=3, changed=changed)
    with pytest.raises(DataError, match=message):
        TensorBundle(tmp_path / "model")


def test_an_index_packed_with_snappy_is_read_and_one_in_another_way_refused_by_name(tmp_path):
    for name, compression in (("plain", 0), ("packed", 1), ("other", 2)):
        writer.write_bundle(tmp_path / name, TENSORS, block_entries=30, compression=compression)
    bundle = TensorBundle(tmp_path / "packed")
    assert list(bundle.entries) == sorted(TENSORS)
    assert all(same(bundle.read(name), array) for name, array in TENSORS.items())
    sizes = [index_of(tmp_path / name).stat().st_size for name in ("packed", "plain")]
    assert sizes[0] < 0.8 * sizes[1]
    with pytest.raises(DataError, match=r"compressed \(zstd\)"):
        TensorBundle(tmp_path / "other")


def one_block(content: bytes, compression: int = 0) -> bytes:
    """A table whose index is `content`, with the right checksum."""
    guarded = content + bytes([compression])
    handles = b"\0\0" + b"\0" + writer.varint(len(content))
    return guarded + writer.masked(guarded).to_bytes(4, "little") + handles.ljust(40, b"\0") + writer.MAGIC


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (writer.table([]).replace(b"\x08\x0d\x08", b"\x08\x0d\x7f"), "does not match its checksum"),
        (writer.table([])[:-8] + b"\0" * 8, "magic number"),
        (one_block(b"\x09\x00a\x01\x01", 1), "block at byte 0 cannot be decompressed: .* 9 "),
    ],
)
def test_tables_that_are_no_checkpoints_are_refused(tmp_path, file, message):
    (tmp_path / "model.index").write_bytes(file)
    with pytest.raises(DataError, match=message):
        TensorBundle(tmp_path / "model")


def test_every_tensor_of_a_file_of_tensorflow_2_21_is_what_it_stored():
    """Of tf.compat.v1's Saver. Every value is its place in the tensor / 8 + the length of the tensor's name."""
    bundle = TensorBundle(Path(__file__).parent / "tensorflow_2_21" / "model.ckpt-28252")
    assert len(bundle.entries) == 3 * 30 + 1
    for name in bundle.entries:
        if name == "global_step":  # int64
            continue
        values = bundle.read(name)
        expected = np.arange(values.size, dtype=np.float32) / 8 + len(name)
        assert values.dtype == np.float32
        assert np.array_equal(values.ravel(), expected), name
