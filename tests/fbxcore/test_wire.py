"""The wire carries arrays unchanged, and refuses every body that is not what it says it is."""

import io
import json
import struct
import sys
import zipfile
import zlib

import ml_dtypes
import msgspec
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from fbxcore import wire
from fbxcore.errors import InvalidArgumentError, NotSupportedError, StructureError
from fbxcore.spec import DTYPES
from fbxcore.types import LeafSpec

FORMATS = list(wire.FORMATS)
BINARY = ["safetensors", "npz", "msgpack"]


@pytest.fixture
def arrays():
    """One leaf of each dtype, with axes of all kinds: none, empty, several."""
    rng = np.random.default_rng(7)
    found = {f"x/{name}": (rng.random((2, 3)) * 2).astype(name) for name in DTYPES if name != "bfloat16"}
    found["x/bfloat16"] = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    found["scalar"] = np.array(2.5, np.float32)
    found["empty"] = np.zeros((0, 4), np.int16)
    found["grün/é"] = np.array([1, -1], np.int64)
    return found


def _assert_equal(got, want):
    assert sorted(got) == sorted(want)
    for name, array in want.items():
        assert got[name].dtype == array.dtype, name
        np.testing.assert_array_equal(got[name], array, err_msg=name)


@pytest.mark.parametrize("format", ["safetensors", "msgpack"])
def test_every_dtype_comes_back_as_it_was(arrays, format):
    """safetensors and msgpack hold every dtype a spec may have, bfloat16 included."""
    body, converted = wire.encode(arrays, format)

    _assert_equal(wire.decode(body, format), arrays)
    assert converted == []


def test_npz_widens_bfloat16_and_says_so(arrays):
    """npz has no bfloat16: it becomes float32 with the same values, and the caller is told."""
    body, converted = wire.encode(arrays, "npz")

    _assert_equal(wire.decode(body, "npz"), arrays | {"x/bfloat16": arrays["x/bfloat16"].astype(np.float32)})
    assert converted == ["x/bfloat16: bfloat16 -> float32"]


def test_json_comes_back_exactly_under_the_spec():
    """JSON keeps 64-bit integers, NaN and infinities, given the spec."""
    want = {
        "i": np.array([2**63 - 1, -(2**63), 2**53 + 1]),
        "u": np.array([2**64 - 1, 0], np.uint64),
        "f": np.array([np.nan, np.inf, -np.inf, 0.1, -0.0], np.float32),
        "h": np.array([0.1, 6e-8], np.float16),
        "b": np.array([[True], [False]]),
    }
    spec = {name: LeafSpec((), array.dtype.name) for name, array in want.items()}
    body, converted = wire.encode(want, "json")

    _assert_equal(wire.decode(body, "json", spec=spec), want)
    assert converted == []
    assert json.loads(body)["f"] == ["NaN", "Infinity", "-Infinity", 0.1, -0.0]


def test_json_widens_bfloat16_and_says_so():
    """bfloat16 is written as the float32 of the same value."""
    body, converted = wire.encode({"x": np.array([1.5], ml_dtypes.bfloat16)}, "json")

    assert json.loads(body) == {"x": [1.5]}
    assert converted == ["x: bfloat16 -> float32"]


def test_json_is_the_same_without_orjson(arrays, monkeypatch):
    """A thin client without orjson writes JSON that means the same."""
    with_orjson = json.loads(wire.encode(arrays, "json")[0])
    monkeypatch.setattr(wire._json, "orjson", None)

    plain = json.loads(wire.encode(arrays, "json")[0])
    for name, array in arrays.items():
        dtype = np.float32 if "bfloat16" in name else array.dtype
        np.testing.assert_array_equal(np.array(plain[name], dtype), np.array(with_orjson[name], dtype))


def test_json_reads_nested_names():
    """Nested objects and names joined with a slash are the same leaves."""
    nested = wire.decode(b'{"obs": {"image": [[1, 2]]}, "r": [0]}', "json")
    flat = wire.decode(b'{"obs/image": [[1, 2]], "r": [0]}', "json")

    _assert_equal(nested, flat)
    assert list(nested) == ["obs/image", "r"]


@pytest.mark.parametrize(
    ("dtype", "text", "message"),
    [
        ("uint8", "[1.5]", "Leaf `a` must have integers for uint8, got 1.5"),
        ("uint8", "[300]", r"Leaf `a` must fit uint8 \(0 to 255\), got 300"),
        ("uint8", "[-1]", r"Leaf `a` must fit uint8 \(0 to 255\), got -1"),
        ("int64", "[9223372036854775808]", "Leaf `a` must fit int64"),
        ("int32", '["NaN"]', "Leaf `a` must have integers for int32, got 'NaN'"),
        ("int32", "[true]", "Leaf `a` must have numbers for int32, got True"),
        ("int32", "[1, true]", "Leaf `a` must have numbers for int32, got True"),
        ("float32", "[[1.5], [false]]", "Leaf `a` must have numbers for float32, got False"),
        ("bool", "[2]", "Leaf `a` must be true or false for bool, got 2"),
        ("float32", "[1e39]", r"Leaf `a` must fit float32, got 1e\+39"),
        ("float16", "[70000]", "Leaf `a` must fit float16, got 70000.0"),
        ("float32", "1" + "0" * 400, "Leaf `a` must fit float32"),
    ],
)
def test_a_json_number_that_does_not_fit_names_its_leaf(dtype, text, message):
    """Nothing is rounded, wrapped or guessed to make a number fit."""
    with pytest.raises(StructureError, match=message):
        wire.decode(b'{"a": ' + text.encode() + b"}", "json", spec={"a": LeafSpec((), dtype)})


def test_a_fraction_of_nothing_is_an_integer():
    """1.0 fits an integer leaf, beside an integer that float64 could not hold."""
    got = wire.decode(b'{"a": [1.0, 9007199254740993]}', "json", spec={"a": LeafSpec((), "int64")})

    _assert_equal(got, {"a": np.array([1, 9007199254740993])})


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "3", '"x"', "{",
        '{"a": }', '{"a": NaN}', '{"a": Infinity}', '{"a": [1, null]}', '{"a": ["x"]}',
        '{"a": [[1], [1, 2]]}', '{"a": [{"b": 1}]}', '{"a": 1, "a": 2}', '{"a": {"b": 1}, "a/b": 2}',
        '{"a": 1e400}', '{"a": 1' + "0" * 30 + "}", '{"a": 1' + "0" * 5000 + "}", "[" * 9000,
        '{"a": ' + "[" * 80 + "]" * 80 + "}", '{"a":' * 5000, '{"a": [1]} x', "\ufeff{}x",
    ],
)  # fmt: skip
def test_malformed_json_is_refused(text):
    """Whatever is wrong with the JSON, the answer is the one error."""
    with pytest.raises(InvalidArgumentError) as caught:
        wire.decode(text.encode(), "json")

    assert caught.value.code == "malformed_body"


def test_json_that_is_no_utf8_is_refused():
    """JSON is UTF-8."""
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        wire.decode(b'{"\xff": 1}', "json")


def test_safetensors_bodies_are_those_of_the_package(arrays):
    """Our bytes are those of `safetensors.numpy.save`, and each reads the other's."""
    body, _ = wire.encode(arrays, "safetensors")

    assert body == safetensors.numpy.save(arrays)
    del arrays["x/bfloat16"]  # which the package writes but does not read
    _assert_equal(wire.decode(safetensors.numpy.save(arrays), "safetensors"), arrays)
    _assert_equal(safetensors.numpy.load(wire.encode(arrays, "safetensors")[0]), arrays)


def test_safetensors_arrays_start_aligned(arrays):
    """Every array starts at a multiple of its item size, so that it can be used where it lies."""
    body, _ = wire.encode(arrays, "safetensors")

    size = int.from_bytes(body[:8], "little")
    entries = json.loads(body[8 : 8 + size])
    assert size % 8 == 0
    assert all(
        entries[n]["data_offsets"][0] % arrays[n].dtype.itemsize == 0 for n in arrays if arrays[n].size
    )


def test_safetensors_metadata_is_ignored():
    """A file with `__metadata__`, as torch writes, is read."""
    body = safetensors.numpy.save({"x": np.arange(3)}, metadata={"format": "np"})

    _assert_equal(wire.decode(body, "safetensors"), {"x": np.arange(3)})


def test_numpy_reads_our_npz(arrays):
    """`numpy.load` reads every leaf, without pickle."""
    body, _ = wire.encode(arrays, "npz")
    with np.load(io.BytesIO(body), allow_pickle=False) as loaded:
        got = {name: loaded[name] for name in loaded.files}

    _assert_equal(got, arrays | {"x/bfloat16": arrays["x/bfloat16"].astype(np.float32)})
    assert zipfile.ZipFile(io.BytesIO(body)).testzip() is None


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_we_read_numpys_npz(arrays, save):
    """Files of `savez` and `savez_compressed` are read, Fortran order and big-endian included."""
    del arrays["x/bfloat16"]
    arrays["fortran"] = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    file = io.BytesIO()
    save(file, **arrays, big=np.arange(3, dtype=">i4"))

    _assert_equal(wire.decode(file.getvalue(), "npz"), arrays | {"big": np.arange(3, dtype="<i4")})


def test_npz_of_bfloat16_is_read_where_the_spec_knows():
    """NumPy writes bfloat16 as nameless two-byte items; the spec gives them their name back."""
    file = io.BytesIO()
    want = {"x": np.arange(3).astype(ml_dtypes.bfloat16)}
    np.savez(file, **want)

    _assert_equal(wire.decode(file.getvalue(), "npz", spec={"x": LeafSpec((), "bfloat16")}), want)
    with pytest.raises(InvalidArgumentError, match="leaf `x` has the dtype '[|<]V2'"):
        wire.decode(file.getvalue(), "npz")


@pytest.mark.parametrize("format", FORMATS)
def test_bytes_depend_on_the_arrays_alone(arrays, format):
    """Neither the order of names, nor memory order, nor byte order changes a body."""
    other = {name: arrays[name] for name in reversed(arrays)}
    other["x/float64"] = np.asfortranarray(other["x/float64"]).astype(">f8")

    assert wire.encode(other, format) == wire.encode(arrays, format)


@pytest.mark.parametrize("format", ["safetensors", "npz", "msgpack"])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_decoded_arrays_are_read_only_views(format, kind):
    """Nothing is copied, and nothing can be written into the body."""
    body = wire.encode({"x": np.arange(1000)}, format)[0]
    held = kind(body)
    got = wire.decode(held, format)["x"]

    assert np.shares_memory(got, np.frombuffer(held, np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        got[0] = 1


@pytest.mark.parametrize("format", FORMATS)
def test_no_leaves_are_a_body_too(format):
    """The empty mapping comes back empty."""
    assert wire.decode(wire.encode({}, format)[0], format) == {}


@pytest.mark.parametrize("format", FORMATS)
def test_a_body_cut_anywhere_is_refused(format):
    """Every proper prefix of a body is malformed, and nothing else happens."""
    body, _ = wire.encode({"obs": np.arange(6, dtype=np.float32), "a/b": np.ones((2, 1), bool)}, format)
    for length in range(len(body)):
        with pytest.raises(InvalidArgumentError) as caught:
            wire.decode(body[:length], format)
        assert caught.value.code == "malformed_body", length


@pytest.mark.parametrize("format", FORMATS)
def test_a_body_with_something_behind_it_is_refused(format):
    """Trailing bytes are no part of any format."""
    body, _ = wire.encode({"x": np.arange(3)}, format)
    with pytest.raises(InvalidArgumentError) as caught:
        wire.decode(body + b"\x01" * 5, format)

    assert caught.value.code == "malformed_body"


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_flipped_byte_is_read_or_refused(format, data):
    """Damage gives other values or the one error, never another exception or another size."""
    body = bytearray(wire.encode({"obs": np.arange(6, dtype=np.float32), "d": np.ones(2, bool)}, format)[0])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        got = wire.decode(bytes(body), format, max_bytes=1 << 20)
    except InvalidArgumentError as error:
        assert error.code == "malformed_body"  # noqa: PT017
    else:
        assert all(array.nbytes <= 64 for array in got.values())


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=200, deadline=None, derandomize=True)
@given(body=st.binary(max_size=200))
def test_noise_is_read_or_refused(format, body):
    """No bytes whatever make the decoder fail in another way."""
    try:
        wire.decode(body, format)
    except InvalidArgumentError as error:
        assert error.code == "malformed_body"  # noqa: PT017


_NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=8)
_ARRAYS = st.builds(
    lambda dtype, shape, seed: np.random.default_rng(seed).integers(0, 256, shape).astype(dtype),
    st.sampled_from([name for name in DTYPES if name != "bfloat16"]),
    st.lists(st.integers(0, 4), max_size=4),
    st.integers(0, 9),
)


@pytest.mark.parametrize("format", BINARY)
@settings(max_examples=100, deadline=None, derandomize=True)
@given(arrays=st.dictionaries(_NAMES, _ARRAYS, max_size=5))
def test_any_names_and_shapes_come_back(format, arrays):
    """Whatever the names, dtypes and shapes are, they come back; the spec decides what it takes."""
    if "__metadata__" in arrays:
        return
    _assert_equal(wire.decode(wire.encode(arrays, format)[0], format), arrays)


def _safetensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _leaf(start, stop, shape=(4,), dtype="U8"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (_safetensors({"a": _leaf(0, 4), "b": _leaf(2, 6)}, b"x" * 6), "starts at 2, not at 4"),
        (_safetensors({"a": _leaf(0, 4), "b": _leaf(5, 9)}, b"x" * 9), "starts at 5, not at 4"),
        (_safetensors({"a": _leaf(4, 8)}, b"x" * 8), "starts at 4, not at 0"),
        (_safetensors({"a": _leaf(0, 4)}, b"x" * 5), "5 bytes of arrays where 4 are declared"),
        (_safetensors({"a": _leaf(0, 4, [2])}, b"x" * 4), r"offsets \[0, 4\] for 2 bytes"),
        (_safetensors({"a": _leaf(0, 0, [2**61, 8, 2**61])}), "for 42535295865117307932921825928971026432"),
        (_safetensors({"a": _leaf(0, 4, [-4])}, b"x" * 4), "declares the shape"),
        (_safetensors({"a": _leaf(0, 4, [4.0])}, b"x" * 4), "declares the shape"),
        (_safetensors({"a": _leaf(0, 4, [True])}, b"x" * 4), "declares the shape"),
        (_safetensors({"a": _leaf(0, 4, [1] * 65)}, b"x" * 4), "declares the shape"),
        (_safetensors({"a": _leaf(4, 0)}, b"x" * 4), "has the offsets"),
        (_safetensors({"a": _leaf("0", 4)}, b"x" * 4), "has the offsets"),
        (_safetensors({"a": _leaf(0, 4, dtype="F8_E4M3")}, b"x" * 4), "has the dtype 'F8_E4M3'"),
        (_safetensors({"a": _leaf(0, 4, dtype=["U8"])}, b"x" * 4), "has the dtype"),
        (_safetensors({"a": _leaf(0, 1, [1], "BOOL")}, b"\2"), "booleans other than 0 and 1"),
        (_safetensors({"a": 4}), "is not {dtype, shape, data_offsets}"),
        (_safetensors(b'{"a":{},"a":{}}'), "a name twice"),
        (_safetensors({"__metadata__": {"x": 1}}), "__metadata__"),
        (_safetensors([]), "not an object"),
        (_safetensors(b"[" * 5000), "header cannot be read"),
        (_safetensors(b'{"\xff":1}'), "header cannot be read"),
        (struct.pack("<Q", 2**63) + b"{}", "said to take 9223372036854775808 bytes"),
    ],
)  # fmt: skip
def test_malformed_safetensors_are_refused(body, reason):
    """Overlaps, holes, huge shapes and wrong types are seen before any array is made."""
    with pytest.raises(InvalidArgumentError, match=reason) as caught:
        wire.decode(body, "safetensors")

    assert caught.value.code == "malformed_body"


def _zip(*members, method=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return file.getvalue()


def _npy(descr="'<f4'", shape="(2,)", data=b"\0" * 8, order="False", extra=""):
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, {extra}}}\n".encode()
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + data


def _pickled():
    file = io.BytesIO()
    np.savez(file, x=np.array([{"a": 1}], dtype=object))
    return file.getvalue()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (_pickled(), r"leaf `x` has the dtype '\|O', which is pickled"),
        (_zip(("x.npy", _npy("'|O'"))), "pickled"),
        (_zip(("x.npy", _npy("'<U4'"))), "no number"),
        (_zip(("x.npy", _npy("'<M8[s]'"))), "no number"),
        (_zip(("x.npy", _npy("'<c8'", "(1,)"))), "no number"),
        (_zip(("x.npy", _npy("[('a', '<f4')]"))), "no number"),
        (_zip(("x.npy", _npy(shape="(3,)"))), "8 bytes where 12 are declared"),
        (_zip(("x.npy", _npy(shape="(1,)"))), "8 bytes where 4 are declared"),
        (_zip(("x.npy", _npy(shape="(4611686018427387903, 9)"))), "are declared"),
        (_zip(("x.npy", _npy(shape="(-2,)"))), "declares the shape"),
        (_zip(("x.npy", _npy(shape="2"))), "other types"),
        (_zip(("x.npy", _npy(order="1"))), "other types"),
        (_zip(("x.npy", _npy(extra="'more': 1"))), "other fields"),
        (_zip(("x.npy", _npy("__import__('os')"))), "cannot be read"),
        (_zip(("x.npy", b"\x93NUMPY\1\0\xff\xff{")), "cut short or too long"),
        (_zip(("x.npy", b"\x93NUMPY\x09\0\1\0{")), "no npy file"),
        (_zip(("x.npy", b"hello")), "no npy file"),
        (_zip(("x.npy", b"")), "no npy file"),
        (_zip(("x.txt", b"hello")), "is no npy file"),
        (_zip(("x.npy", _npy()), method=zipfile.ZIP_LZMA), "compressed in another way"),
        (b"PK", "cannot be read"),
    ],
)
def test_malformed_npz_is_refused(body, reason):
    """Nothing is unpickled or evaluated, and sizes must agree with shapes."""
    with pytest.raises(InvalidArgumentError, match=reason) as caught:
        wire.decode(body, "npz")

    assert caught.value.code == "malformed_body"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_npz_with_a_name_twice_is_refused():
    """The zip format allows a name twice; a body does not."""
    with pytest.raises(InvalidArgumentError, match="there twice"):
        wire.decode(_zip(("x.npy", _npy()), ("x.npy", _npy())), "npz")


def test_a_zip_bomb_is_refused_before_it_is_unpacked():
    """A member of 64 MiB in 64 kB is refused for what it declares."""
    body = _zip(("x.npy", _npy("'|u1'", f"({1 << 26},)", bytes(1 << 26))), method=zipfile.ZIP_DEFLATED)

    assert len(body) < 100_000
    with pytest.raises(InvalidArgumentError, match="which is more than 1048576"):
        wire.decode(body, "npz", max_bytes=1 << 20)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_that_lies_about_sizes_is_refused(method):
    """A directory that declares less than a member holds does not get more unpacked."""
    body = bytearray(_zip(("x.npy", _npy(data=bytes(8))), method=method))
    at = body.index(b"PK\1\2") + 24
    struct.pack_into("<I", body, at, struct.unpack_from("<I", body, at)[0] - 4)

    with pytest.raises(InvalidArgumentError) as caught:
        wire.decode(bytes(body), "npz")
    assert caught.value.code == "malformed_body"


def test_a_wrong_checksum_in_npz_is_refused():
    """The checksum of a stored member is compared, though the bytes are not copied."""
    body = bytearray(wire.encode({"x": np.arange(100)}, "npz")[0])
    body[400] ^= 1

    with pytest.raises(InvalidArgumentError, match="another checksum"):
        wire.decode(bytes(body), "npz")


def _msgpack(value):
    return msgspec.msgpack.encode(value)


_ONE = {"shape": [2], "dtype": "uint8", "data": b"ab"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (_msgpack([1]), "cannot be read"),
        (_msgpack({"x": 1}), "cannot be read"),
        (_msgpack({1: _ONE}), "cannot be read"),
        (_msgpack({"x": {"shape": [2], "dtype": "uint8"}}), "cannot be read"),
        (_msgpack({"x": _ONE | {"more": 1}}), "cannot be read"),
        (_msgpack({"x": _ONE | {"shape": [3]}}), "2 bytes where 3 are declared"),
        (_msgpack({"x": _ONE | {"shape": [2**62, 2**62]}}), "declares the shape"),
        (_msgpack({"x": _ONE | {"shape": [-2]}}), "declares the shape"),
        (_msgpack({"x": _ONE | {"shape": [2.5]}}), "cannot be read"),
        (_msgpack({"x": _ONE | {"dtype": "O"}}), "has the dtype 'O'"),
        (_msgpack({"x": _ONE | {"dtype": "bool"}}), "booleans other than 0 and 1"),
        (b"\x82" + _msgpack({"x": _ONE})[1:] * 2, "a name twice"),
        (b"\xde\0\2" + _msgpack({"x": _ONE})[1:] * 2, "a name twice"),
        (b"\xdf\0\0\0\2" + _msgpack({"x": _ONE})[1:] * 2, "a name twice"),
        (b"\xdf\xff\xff\xff\xff", "cannot be read"),
        (b"\x81" * 3000, "cannot be read"),
        (b"", "cannot be read"),
    ],
)
def test_malformed_msgpack_is_refused(body, reason):
    """Other structures, sizes that do not agree and repeated names are seen."""
    with pytest.raises(InvalidArgumentError, match=reason) as caught:
        wire.decode(body, "msgpack")

    assert caught.value.code == "malformed_body"


@pytest.mark.parametrize("format", FORMATS)
def test_arrays_over_the_limit_are_refused(format):
    """`max_bytes` bounds what the arrays of a body take together."""
    body, _ = wire.encode({"x": np.zeros(200), "y": np.zeros(200)}, format)

    assert len(wire.decode(body, format, max_bytes=4096)) == 2
    with pytest.raises(InvalidArgumentError, match="which is more than 3000"):
        wire.decode(body, format, max_bytes=3000)


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([None]), np.array([1j]), np.array([1], "M8[s]")])
def test_an_array_of_no_spec_dtype_is_refused(array):
    """Texts, objects, complex numbers and dates are no leaves."""
    with pytest.raises(InvalidArgumentError, match="Leaf `x` must have a dtype of bool, uint8"):
        wire.encode({"x": array}, "npz")


@pytest.mark.parametrize("format", ["arrow", "parquet"])
def test_formats_to_come_are_known(format):
    """A format of the contract that is not served yet is told apart from a wrong word."""
    with pytest.raises(NotSupportedError, match="not served yet"):
        wire.encode({}, format)
    with pytest.raises(NotSupportedError, match="not served yet"):
        wire.negotiate(None, format, "npz")


def test_msgpack_without_its_package_says_what_to_install(monkeypatch):
    """The thin client has NumPy alone and says what is missing."""
    monkeypatch.setitem(sys.modules, "msgspec", None)
    monkeypatch.delitem(sys.modules, "fbxcore.wire._msgpack", raising=False)
    monkeypatch.delattr(wire, "_msgpack", raising=False)

    with pytest.raises(NotSupportedError, match="Install `msgspec`, or use `safetensors`"):
        wire.encode({}, "msgpack")


@pytest.mark.parametrize(
    ("media_type", "format"),
    [
        ("application/x-safetensors", "safetensors"),
        ("Application/X-NPZ; charset=binary", "npz"),
        ("application/json;charset=utf-8", "json"),
        ("application/x-msgpack", "msgpack"),
        ("text/html", None),
        ("", None),
    ],
)
def test_a_content_type_names_a_format(media_type, format):
    """Parameters and case do not matter; what we do not serve is None."""
    assert wire.format_for(media_type) == format


@pytest.mark.parametrize(
    ("accept", "query", "format"),
    [
        (None, None, "npz"),
        ("", None, "npz"),
        ("*/*", None, "npz"),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", None, "npz"),
        ("application/json", None, "json"),
        ("application/json;q=0.5, application/x-safetensors", None, "safetensors"),
        ("application/json;q=0.5, */*;q=0.4", None, "json"),
        ("application/json;q=0, application/msgpack;q=0.1", None, "msgpack"),
        ("*/*, application/json", None, "json"),
        ("application/json", "safetensors", "safetensors"),
    ],
)
def test_accept_and_format_choose(accept, query, format):
    """The query rules, then quality, then the more specific type, then the default."""
    assert wire.negotiate(accept, query, "npz") == format


@pytest.mark.parametrize(
    ("accept", "query"),
    [("text/html", None), ("application/json;q=0", None), ("*/*", "hdf5"), ("x;q=y", None)],
)
def test_what_is_not_served_is_not_acceptable(accept, query):
    """The error lists what there is."""
    with pytest.raises(InvalidArgumentError, match="safetensors") as caught:
        wire.negotiate(accept, query, "npz")

    assert caught.value.code == "not_acceptable"


def test_checksums_in_npz_are_those_of_the_members():
    """The checksum covers the npy header and the array together."""
    body, _ = wire.encode({"x": np.arange(4)}, "npz")
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        assert zlib.crc32(archive.read("x.npy")) == archive.infolist()[0].CRC
