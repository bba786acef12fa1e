"""A residue belongs to one source: both the output and the residue file say which, and only such a pair is joined."""

from __future__ import annotations

from collections.abc import Mapping

from vitconv.conversion.stream import Sources
from vitconv.errors import Refused

# In the metadata of a residue file and of the output written together with it.
OWNER = "vitconv.residue.source"
_SAMPLE = 64


def source_digest(sources: Sources) -> str:
    """Return the SHA-256 over the names, dtypes, shapes and samples of the data of all tensors of the source.

    Headers of two networks of one kind are equal, so three samples of each tensor are read: its ends and its middle.
    """
    import hashlib

    digest = hashlib.sha256()
    for name in sorted(sources.where):
        checkpoint, stored = sources.where[name]
        digest.update(f"{name}\0{stored.dtype}\0{stored.shape}\0".encode(errors="surrogatepass"))
        for start in (0, stored.nbytes // 2, max(0, stored.nbytes - _SAMPLE)):
            digest.update(checkpoint.read_range(stored, start, min(start + _SAMPLE, stored.nbytes)))
    return digest.hexdigest()


def check_owner(residue: Mapping[str, str], source: Mapping[str, str], paths: tuple[str, str]) -> str:
    """Hold the metadata of a residue file to those of the file it is put back into; return a note, or "".

    `paths` names the residue and the source in messages.

    Raises:
        Refused: it was kept from another file.
    """
    kept, has = residue.get(OWNER), source.get(OWNER)
    if kept is not None and kept == has:
        return ""
    if has is None and not any(key.startswith("vitconv") for key in source):
        return f"{paths[1]} does not say what it was made from: that {paths[0]} belongs to it is taken on trust"
    if kept is None:
        return f"{paths[0]} does not say what it was kept from: that it belongs to {paths[1]} is taken on trust"
    made = "was converted without a residue" if has is None else "was converted from another file"
    raise Refused(
        f"{paths[0]} was kept from another file: {paths[1]} {made}. Put back the residue that was written together with"
        " it (--restore)"
    )
