"""What the globals in a pickle mean for us: known parts of a checkpoint, foreign but harmless, or known to do harm.

None of them is ever imported or called, so the list of harmful ones guards nothing; a file that holds one was made to
attack its readers, and is refused as such.
"""

from __future__ import annotations

from collections.abc import Iterable

from vitconv.errors import BadFile
from vitconv.io.contents import some
from vitconv.io.records import Global

_KNOWN_MODULES = ("torch._utils", "torch.jit._pickle", "torch.serialization")
_KNOWN = {
    "torch.Size",
    "torch.device",
    "torch._tensor._rebuild_from_type_v2",
    "torch.nn.parameter.Parameter",
    "torch.nn.parameter.Buffer",
    "torch.storage.UntypedStorage",
    "torch.storage.TypedStorage",
    "torch.storage._UntypedStorage",
    "torch.Tensor",
    "collections.OrderedDict",
    "_codecs.encode",
}
_BUILTINS = ("builtins", "__builtin__")
_PLAIN_BUILTINS = {"set", "frozenset", "list", "dict", "tuple", "bytearray", "bytes", "complex", "slice", "range"}
_PLAIN_BUILTINS |= {"int", "float", "str", "bool", "object"}
_HARMFUL_BUILTINS = {"eval", "exec", "compile", "open", "execfile", "__import__", "breakpoint", "input", "globals"}
_HARMFUL_BUILTINS |= {
    "setattr",
    "delattr",
    "vars",
    "locals",
    "exit",
    "quit",
    "help",
    "map",
    "filter",
    "apply",
    "reload",
}
_HARMFUL_MODULES = {
    "os", "posix", "nt", "ntpath", "posixpath", "subprocess", "popen2", "commands", "sys", "shutil", "socket",
    "ssl", "pty", "importlib", "imp", "runpy", "code", "codeop", "ctypes", "_ctypes", "pickle", "_pickle",
    "cPickle", "marshal", "webbrowser", "multiprocessing", "asyncio", "pdb", "bdb", "timeit", "profile",
    "cProfile", "trace", "signal", "pip", "ensurepip", "venv", "distutils", "setuptools", "http", "urllib",
    "urllib2", "requests", "httpx", "ftplib", "smtplib", "telnetlib", "xmlrpc", "idlelib", "zipimport", "pkgutil",
    "pydoc", "doctest", "nturl2path", "lib2to3", "antigravity", "this", "tempfile", "shelve", "fileinput", "zipfile",
    "tarfile", "sqlite3", "site", "atexit", "threading", "_thread", "concurrent", "linecache", "tracemalloc",
    "faulthandler", "resource", "mmap", "select", "selectors", "winreg", "_winapi", "_posixsubprocess", "socketserver",
    "cgi", "wsgiref", "cffi", "pexpect", "paramiko", "urllib3", "aiohttp", "psutil", "IPython", "glob", "fcntl",
    "termios",
}  # fmt: skip
_HARMFUL = {
    "torch.hub",
    "torch.load",
    "torch.jit.load",
    "torch.serialization.load",
    "torch.utils.cpp_extension",
    "torch.ops.load_library",
    "torch.classes.load_library",
    "torch.utils.collect_env",
    "torch.distributed.run",
    "numpy.load",
    "numpy.testing._private.utils.runstring",
    "numpy.distutils",
    "numpy.f2py",
    "joblib.load",
    "dill.loads",
    "dill.load",
    "io.open",
    "_io.open",
    "_io.FileIO",
    "io.FileIO",
    "functools.reduce",
    "types.CodeType",
    "types.FunctionType",
    "types.LambdaType",
    "types.MethodType",
    "cloudpickle.load",
    "cloudpickle.loads",
    "cloudpickle.cloudpickle.load",
    "cloudpickle.cloudpickle.loads",
    "dill._dill.load",
    "dill._dill.loads",
    "logging.config",
    "logging.handlers",
    "logging.FileHandler",
    "platform.popen",
    "codecs.open",
    "gzip.open",
    "bz2.open",
    "lzma.open",
    "operator.methodcaller",
    "io.open_code",
    "torch.save",
    "torch.serialization.save",
    "torch.serialization.add_safe_globals",
    "torch.package",
    "torch.multiprocessing",
    "torch.distributed.launch",
    "torch.distributed.elastic",
    "torch.utils._config_module",
    "numpy.save",
    "numpy.savez",
    "numpy.fromfile",
    "numpy.memmap",
    "numpy.loadtxt",
    "numpy.genfromtxt",
    "numpy.lib.npyio",
    "numpy.lib.format",
    "pandas.read_pickle",
    "pandas.io",
    "safetensors.torch.save_file",
}


def known(found: Global) -> bool:
    """Say whether a global is a plain part of torch's own file format."""
    if found.module in _BUILTINS:
        return found.name in _PLAIN_BUILTINS
    if found.module == "torch" and (found.name.endswith("Storage") or found.name in TORCH_DTYPES):
        return True
    return found.module in _KNOWN_MODULES or found.module.startswith("__torch__") or str(found) in _KNOWN


def harmful(found: Global) -> bool:
    """Say whether a global is known to run code, open files or reach the network when called."""
    name = str(found)
    if found.module in _BUILTINS:
        return found.name.split(".")[0] in _HARMFUL_BUILTINS
    if name.split(".")[0] in _HARMFUL_MODULES:
        return True
    # A path is a value; what is done by a path, such as Path.mkdir, is none.
    if found.module.partition(".")[0] == "pathlib" and "." in found.name:
        return True
    return any(name == bad or name.startswith(f"{bad}.") for bad in _HARMFUL)


def check(found: Iterable[Global], where: str) -> tuple[str, ...]:
    """Return the foreign globals, sorted; none of them was run.

    Raises:
        BadFile: some are known to do harm.
    """
    names = list(found)
    bad = sorted({str(name) for name in names if harmful(name)})
    if bad:
        raise BadFile(
            f"{where}: the pickle wants to call {some(bad)}; that is an attack, not a checkpoint. Nothing of it was run"
        )
    return tuple(sorted({str(name) for name in names if not known(name)}))


TORCH_DTYPES: dict[str, str] = {
    "float64": "F64",
    "double": "F64",
    "float32": "F32",
    "float": "F32",
    "float16": "F16",
    "half": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "int64": "I64",
    "long": "I64",
    "int32": "I32",
    "int": "I32",
    "int16": "I16",
    "short": "I16",
    "int8": "I8",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "bool": "BOOL",
    "complex64": "C64",
    "cfloat": "C64",
}
STORAGE_DTYPES: dict[str, str] = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
    "ComplexFloatStorage": "C64",
    "UntypedStorage": "U8",
}
