"""The ctypes table against vitrum/vitrum.h: names, order and types of every member and argument."""
import ctypes
import re

from tiny import ROOT
from vitrum import _library, _views

C_TYPES = {"size_t": ctypes.c_size_t, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "uint8_t": ctypes.c_uint8,
           "uint16_t": ctypes.c_uint16, "uint64_t": ctypes.c_uint64, "float": ctypes.c_float, "char*": ctypes.c_char_p,
           "void*": ctypes.c_void_p, "vitrum_model*": ctypes.c_void_p, "int64_t*": ctypes.POINTER(ctypes.c_int64)}
STRUCTS = {"vitrum_options": _library.Options, "vitrum_input": _library.Input, "vitrum_tensor": _library.TensorStruct}


def header():
    text = (ROOT / "vitrum/vitrum.h").read_text()
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def declared(text):
    """(type, name) of 'const char* arch' and the like."""
    words = text.replace("const ", "").replace("*", "* ").split()
    return "".join(words[:-1]), words[-1]


def test_structs():
    for name, ours in STRUCTS.items():
        body = re.search(rf"typedef struct {name} {{(.*?)}} {name};", header(), re.S).group(1)
        members = []
        for line in body.split(";"):
            if line.strip():
                kind, first = declared(line.partition(",")[0])
                members += [(n.strip(), C_TYPES[kind]) for n in [first, *line.split(",")[1:]]]
        assert members == list(ours._fields_), name


def test_functions():
    found = re.findall(r"VITRUM_API ([^;(]+?)\(([^;]*)\);", header())
    functions = {declared(head)[1]: (declared(head)[0], arguments) for head, arguments in found}
    assert set(_library.FUNCTIONS) <= set(functions)
    for name, (result, arguments) in _library.FUNCTIONS.items():
        kind, text = functions[name]
        assert result is {"vitrum_status": ctypes.c_int32, "void": None}.get(kind, C_TYPES.get(kind)), name
        there = [] if text.strip() == "void" else [declared(a.strip())[0] for a in text.split(",")]
        assert len(there) == len(arguments), name
        for c_type, argument in zip(there, arguments):
            pointee = c_type.rstrip("*")
            if c_type == "vitrum_model**":
                assert argument is ctypes.POINTER(ctypes.c_void_p)
            elif pointee in STRUCTS:
                assert argument is ctypes.POINTER(STRUCTS[pointee]), (name, c_type)
            elif c_type.endswith("*") and c_type not in ("char*", "vitrum_model*"):
                assert argument in (ctypes.c_void_p, ctypes.POINTER(C_TYPES.get(pointee, ctypes.c_int32))), (name, c_type)
            else:
                assert argument is C_TYPES[c_type], (name, c_type)


def test_numbers():
    sources = re.findall(r"VITRUM_FROM_(\w+) = (\d)", header())
    assert [(n, int(v)) for n, v in sources] == [(n, getattr(_library, f"FROM_{n}")) for n, _ in sources]
    for name, number in _library.PRECISIONS.items():
        assert re.search(rf"VITRUM_{name.upper()} = {number}\b", header())


def test_dlpack_is_inside_of_the_tensor():
    fields = [f for f in _library.TensorStruct._fields_ if f[0] not in ("size", "stream")]
    assert [f[1] for f in fields] == [f[1] for f in _views._DLTensor._fields_]
