"""A corpus of hostile files, written by the tests that read them."""

import io
import json
import os
import socket
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

DEEP = 100_000
MANY = 900_000
HUGE_INTEGER = "1" * 4000

Make = Callable[[Path], object]


def text(content: str | bytes) -> Make:
    return lambda path: path.write_bytes(content if isinstance(content, bytes) else content.encode())


def sparse(num_bytes: int) -> Make:
    """Zeros that take no room on the disk."""

    def make(path: Path) -> None:
        with path.open("wb") as file:
            file.truncate(num_bytes)

    return make


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        before = os.getcwd()
        os.chdir(path.parent)  # the whole path may be too long for an address
        one.bind(path.name)
        os.chdir(before)


# What no file of any kind may be. A pipe is none of them where the user names it.
PLACES: Mapping[str, Make] = {
    "missing": lambda path: None,
    "a directory": lambda path: path.mkdir(),
    "a socket": _socket,
    "a loop of links": lambda path: path.symlink_to(path),
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "a terabyte": sparse(1 << 40),
    "100 MB of zeros": sparse(100 << 20),
    "empty": text(""),
    "zeros": text(bytes(1000)),
    "no text": text(b"\xff\xfe\x80"),
}

JSON: Mapping[str, Make] = {
    "nested lists": text("[" * DEEP),
    "nested objects": text('{"a":' * DEEP),
    "closed nested lists": text("[" * DEEP + "]" * DEEP),
    "nested within what is allowed": text("[" * 900 + "]" * 900),
    "cut off": text('{"schema": "swiftspec.plan", "vers'),
    "a number": text("3"),
    "a long number": text(HUGE_INTEGER),
    "an infinite number": text("1e999"),
    "NaN": text("NaN"),
    "a text": text('"x"'),
    "a list": text("[1]"),
    "null": text("null"),
    "many empty lists": text("[" + "[]," * 7_000_000 + "[]]"),
    "many objects": text("[" + '{"":{}},' * (MANY // 3) + "{}]"),
    "many fields": text("{" + ",".join(f'"{number}":0' for number in range(MANY // 10)) + "}"),
    "a long text": text('"' + "x" * (20 << 20) + '"'),
    "a long text of wide characters": text('"\U0001f600' + "x" * (20 << 20) + '"'),
    "half a character": text('{"schema": "\\ud800"}'),
}


def altered(valid: Any) -> Iterator[tuple[str, Make]]:
    """The valid document with each of its first items in turn replaced by what it cannot be."""
    values = {
        "long number": f"-{HUGE_INTEGER}",
        "large number": "100000000000",
        "negative": "-1",
        "infinite": "1e999",
        "NaN": "NaN",
        "null": "null",
        "deep": "[" * 950 + "]" * 950,
        "many": "[" + "{}," * (MANY // 10) + "{}]",
        "half": '"\\udfff"',
    }
    for path, found in _paths(valid):
        where = "".join(f"[{part}]" for part in path)
        for name, value in values.items():
            if name != "many" or isinstance(found, list):
                yield f"{name} at {where}", text(json.dumps(_replaced(valid, path)).replace('"%here%"', value))


def _paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Path and value of every field, and of what is in the first item of every list."""
    if path:
        yield path, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _paths(item, (*path, key))
    elif isinstance(value, list) and value:
        yield from _paths(value[0], (*path, 0))


def _replaced(value: Any, path: tuple[str | int, ...]) -> Any:
    if not path:
        return "%here%"
    if isinstance(value, dict):
        return value | {path[0]: _replaced(value[path[0]], path[1:])}
    return [_replaced(item, path[1:]) if index == path[0] else item for index, item in enumerate(value)]


def npy(shape: str, descr: str = "'<f4'", content: bytes = b"") -> bytes:
    """An array whose header says what it likes."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def archive(members: Mapping[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as made:
        for name, content in members.items():
            made.writestr(name, content)
    return buffer.getvalue()


def saved(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **dict[str, Any](arrays))
    return buffer.getvalue()


def _smaller_than_it_is(content: bytes) -> bytes:
    """The directory says that every member has 100 bytes."""
    patched, start = bytearray(content), 0
    while (start := patched.find(b"PK\x01\x02", start)) >= 0:
        patched[start + 24 : start + 28] = struct.pack("<I", 100)
        start += 4
    return bytes(patched)


def _larger_than_it_is(content: bytes) -> bytes:
    return _smaller_than_it_is(content).replace(struct.pack("<I", 100), struct.pack("<I", 1 << 31))


def _encrypted(content: bytes) -> bytes:
    patched = bytearray(content)
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        patched[patched.find(mark) + offset] |= 1
    return bytes(patched)


def _bomb(path: Path) -> None:
    """Made when it is asked for: compressing it takes longer than all others together."""
    path.write_bytes(archive({"about.npy": npy(f"({200 << 20},)", "'|i1'", bytes(200 << 20))}))


ARCHIVES: Mapping[str, Make] = {
    "an array of 73 TiB": text(archive({"about.npy": npy("(20000000000000,)")})),
    "an array of 10^30": text(archive({"about.npy": npy("(10**30,)".replace("10**30", "1" + "0" * 30))})),
    "an array of nothing times 10^30": text(archive({"about.npy": npy("(0, 1" + "0" * 30 + ")")})),
    "a negative shape": text(archive({"about.npy": npy("(-2, -2)", content=bytes(16))})),
    "a wide text": text(archive({"about.npy": npy("(1,)", "'<U1000000000'")})),
    "a nested header": text(archive({"about.npy": npy("(" * 5000)})),
    "a header that is a program": text(archive({"about.npy": npy("__import__('os').abort()")})),
    "pickled": text(saved(about=np.array([{}], dtype=object))),
    "a bomb": _bomb,
    "many arrays": text(archive({f"{number}.npy": b"" for number in range(3000)}, zipfile.ZIP_STORED)),
    "smaller than it says": text(_larger_than_it_is(saved(about=np.zeros(1000)))),
    "larger than it says": text(_smaller_than_it_is(saved(about=np.zeros(1000)))),
    "a name that is no text": text(archive({"é.npy": b""}).replace("é".encode(), b"\xff\xff")),
    "encrypted": text(_encrypted(saved(about=np.zeros(1000)))),
    "compressed otherwise": text(archive({"about.npy": npy("(4,)", content=bytes(16))}, zipfile.ZIP_LZMA)),
    "no arrays": text(archive({})),
    "about nested": text(saved(about=np.array("[" * DEEP))),
    "about of numbers": text(saved(about=np.zeros(3))),
    "about of many": text(saved(about=np.array("[" + "[]," * MANY + "[]]"))),
    "half a file": text(saved(about=np.arange(1000))[:-200]),
    "trailing bytes": text(saved(about=np.arange(1000)) + b"\0" * 100),
}


def safetensors(header: str | bytes, content: bytes = b"", length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else header.encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + content


def _tensor(shape: object, offsets: object, dtype: str = "F32") -> str:
    return json.dumps({"model.norm.weight": {"dtype": dtype, "shape": shape, "data_offsets": offsets}})


SAFETENSORS: Mapping[str, Make] = {
    "a header of 2^60 bytes": text(safetensors("{}", length=1 << 60)),
    "a header longer than the file": text(safetensors("{}", length=1000)),
    "a nested header": text(safetensors("[" * DEEP)),
    "no tensors": text(safetensors("{}")),
    "a tensor of 2^62": text(safetensors(_tensor([2**62], [0, 4]), bytes(4))),
    "a tensor of 2^40 times 2^40": text(safetensors(_tensor([2**40, 2**40], [0, 4]), bytes(4))),
    "a negative tensor": text(safetensors(_tensor([-1], [0, 4]), bytes(4))),
    "a tensor beyond the file": text(safetensors(_tensor([10**9], [0, 4 * 10**9]), bytes(4))),
    "a shape of 700,000 sizes": text(safetensors(_tensor([2**62] * 700_000, [0, 4]), bytes(4))),
    "offsets of thousands of digits": text(safetensors(_tensor([1], [0, 4]).replace("[0, 4]", f"[0, {HUGE_INTEGER}]"))),
    "a name of half a character": text(safetensors('{"\\ud800": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}')),
    "an unknown dtype": text(safetensors(_tensor([1], [0, 4], "F31"), bytes(4))),
    "a git-lfs pointer": text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
}
INDEXES: Mapping[str, Make] = {
    "outside": text('{"weight_map": {"a": "../x.safetensors"}}'),
    "absolute": text('{"weight_map": {"a": "/dev/zero"}}'),
    "a zero byte": text('{"weight_map": {"a": "x\\u0000.safetensors"}}'),
    "itself": text('{"weight_map": {"a": "model.safetensors.index.json"}}'),
    "no texts": text('{"weight_map": {"a": [1]}}'),
    "many": text(json.dumps({"weight_map": {str(number): "x.safetensors" for number in range(MANY // 10)}})),
}
PROMPTS: Mapping[str, Make] = {
    "nested": text('{"prompt": ' + "[" * DEEP + "}"),
    "a long id": text(f'{{"prompt": "x", "id": {HUGE_INTEGER}}}'),
    "a long line": text('{"prompt": "' + "x" * (17 << 20) + '"}'),
    "half a character": text('{"prompt": "\\ud83d"}'),
    "half a character as it is": text(b'{"prompt": "\xed\xa0\xbd"}'),
    "no text": text('{"prompt": {"a": 1}}'),
    "a list for an id": text('{"prompt": "x", "id": ' + "[" * 900 + "]" * 900 + "}"),
}
CSV_HEADER = "name,count,seconds\n"
TABLES: Mapping[str, Make] = {
    "a long number": text(f"{CSV_HEADER}x,{HUGE_INTEGER * 2},1\n"),
    "a large number": text(f"{CSV_HEADER}x,1,1e999\n"),
    "a long line": text(CSV_HEADER + "x" * (2 << 20)),
    "a long field": text(CSV_HEADER + '"' + "x" * 200_000 + '",1,1\n'),
    "an open quote": text(CSV_HEADER + '"x\n' * 100_000),
    "no text": text(CSV_HEADER.encode() + b"\xff,1,1\n"),
}
TOKENIZERS: Mapping[str, Make] = {
    "no model": text('{"version": "1.0"}'),
    "a wrong model": text('{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}'),
    "a merge of nothing": text(
        '{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["b c"]}, "added_tokens": []}'
    ),
    "a broken pattern": text(
        '{"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}, '
        '"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": false}}'
    ),
}
MIXTURE: Mapping[str, Any] = {
    "model_type": "gpt_oss",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 320,
    "max_position_embeddings": 128,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 16,
}
CONFIGS: Mapping[str, str] = {
    "num_hidden_layers": "1000000000",
    "hidden_size": "1e3",
    "vocab_size": HUGE_INTEGER,
    "num_attention_heads": "9007199254740993",
    "rope_theta": "1" + "0" * 17,
    "rms_norm_eps": "NaN",
    "eos_token_id": "[" * 900 + "]" * 900,
    "layer_types": '"full"',
    "model_type": "[" * 900 + "]" * 900,
    "rope_parameters": "[1]",
    "tie_word_embeddings": '"\\ud800"',
    "torch_dtype": HUGE_INTEGER,
}
