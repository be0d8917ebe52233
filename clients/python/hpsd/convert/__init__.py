# SPDX-License-Identifier: Apache-2.0
"""`python -m hpsd convert`: writes the tables of a checkpoint as a model directory of hpsd.

    python -m hpsd convert dcp /ckpt/step-1000 --out /srv/models/dlrm/1
    hpsctl load dlrm --from /srv/models/dlrm/1 --activate

Rows are copied in pieces and never changed. No code of a checkpoint's pickles runs.
"""
import argparse
import contextlib
import re
import resource
import sys
from typing import Callable, Dict, Iterator, List, Optional, Tuple

from . import _dynamicemb, _keras, _tf, _torch
from ._source import TORCHREC, ConvertError, Request, Table, Tensor, table_name
from ._write import write

__all__ = ["ConvertError", "main"]

KINDS: Dict[str, Callable[[Request], List[Tensor]]] = {
    "dcp": _torch.open_dcp, "torch": _torch.open_torch, "tf": _tf.open_tf, "keras": _keras.open_keras,
    "dynamicemb": _dynamicemb.open_dynamicemb, "torchrec-int8": _torch.open_int8,
}
DESCRIPTION_BYTES_MAX = 256 << 20  # memory for the pickles or the index of a source
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMGT]?)i?B?", text)
    if match is None or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"'{text}', expected a size such as 512MiB or 1GiB")
    return int(match[1]) * UNITS[match[2]]


def _dim(text: str) -> Tuple[str, int]:
    name, _, number = text.rpartition("=")
    if not number.isdecimal() or not 1 <= int(number) <= 65536:
        raise argparse.ArgumentTypeError(f"'{text}', expected N or NAME=N with N from 1 to 65536")
    return name, int(number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hpsd", description="Tools of hpsd's Python package.")
    verb = parser.add_subparsers(dest="verb", required=True, metavar="convert").add_parser(
        "convert", help="write the tables of a checkpoint as a model directory", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    verb.add_argument("kind", choices=sorted(KINDS), metavar="KIND", help=" | ".join(sorted(KINDS)))
    verb.add_argument("source", metavar="SOURCE", help="file or directory of the checkpoint")
    verb.add_argument("--out", metavar="DIR", help="new or empty directory for the tables and their manifest.json")
    verb.add_argument("--table", action="append", default=[], metavar="NAME=SOURCE_NAME",
                      help="convert this array as table NAME; repeatable (default: all embeddings, by their names)")
    verb.add_argument("--memory", type=_bytes, default=1 << 30, metavar="SIZE", help="bytes for rows (default: 1GiB)")
    verb.add_argument("--dry-run", action="store_true", help="only list the tables")
    verb.add_argument("--dim", type=_dim, action="append", default=[], metavar="[NAME=]N",
                      help="values per row, of one table or of all, for torchrec-int8 and dynamicemb; repeatable")
    verb.add_argument("--dtype", choices=("fp32", "fp16", "bf16"), help="type of the values, for dynamicemb")
    return parser


@contextlib.contextmanager
def _limit(size: int) -> Iterator[None]:
    """Let allocations fail when this process would need `size` more bytes: a small source can expand to any size."""
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[5]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [used + size] + [each for each in before if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _open(kind: str, request: Request) -> List[Tensor]:
    try:
        return KINDS[kind](request)
    except (ConvertError, OSError, MemoryError):
        raise
    except Exception as error:  # a damaged source can raise anything
        raise ConvertError(f"{request.source}: damaged, or not of the kind {kind}: {error!r}") from None


def _expected(tensors: List[Tensor], source: str) -> str:
    """Names to suggest for an unknown name: similar ones, else all, embeddings first."""
    close = [each.name for each in tensors if each.name.endswith(f".{source}") or table_name(each.name) == table_name(source)]
    if close:
        return f"did you mean {' or '.join(map(repr, close[:8]))}?"
    names = [each.name for each in sorted(tensors, key=lambda each: (not each.is_embedding, each.name))]
    return f"expected one of: {', '.join(names[:8])}{f' and {len(names) - 8} more' if len(names) > 8 else ''}"


def _named(tensors: List[Tensor], wanted: List[str]) -> Dict[str, Tensor]:
    by_name = {tensor.name: tensor for tensor in tensors}
    tables: Dict[str, Tensor] = {}
    for text in wanted:
        name, equals, source = text.partition("=")
        if not equals or not source:
            raise ConvertError(f"--table '{text}', expected NAME=SOURCE_NAME")
        if source not in by_name:
            raise ConvertError(f"--table '{text}': no array '{source}' in the source, {_expected(tensors, source)}")
        if name in tables:
            raise ConvertError(f"--table: table '{name}' twice")
        tables[name] = by_name[source]
    return tables


def choose(tensors: List[Tensor], wanted: List[str]) -> List[Table]:
    """The tables to write: the arguments of --table, or all embeddings."""
    tables = _named(tensors, wanted)
    if not wanted:
        found = [each for each in tensors if TORCHREC.search(each.name)] or [
            each for each in tensors if each.is_embedding and not each.refusal]
        for tensor in found:
            name = table_name(tensor.name)
            if name in tables:
                raise ConvertError(f"'{tables[name].name}' and '{tensor.name}' would both be table '{name}'; "
                                   "name the tables with --table NAME=SOURCE_NAME")
            tables[name] = tensor
    if not tables:
        some = ", ".join(each.name for each in tensors[:8]) or "none"
        raise ConvertError(f"no embedding found; name the tables with --table NAME=SOURCE_NAME; arrays: {some}")
    for name, tensor in tables.items():
        if re.fullmatch(r"[A-Za-z0-9_-]{1,120}", name) is None:
            raise ConvertError(f"table name '{name}', expected 1 to 120 letters, digits, '_' or '-'")
        if tensor.refusal:
            raise ConvertError(f"'{tensor.name}' (table '{name}'): {tensor.refusal}")
    return [Table(name, tensor) for name, tensor in tables.items()]


def _show(tables: List[Table], tensors: List[Tensor]) -> None:
    width = max(len(table.name) for table in tables)
    for table in tables:
        tensor = table.tensor
        print(f"{table.name:{width}}  {tensor.rows} rows  dim {tensor.dim}  {tensor.dtype}  from {tensor.name}")
    taken = {id(table.tensor) for table in tables}
    left = [each.name for each in tensors if id(each) not in taken]
    if left:
        print(f"not converted: {', '.join(left[:20])}{f' and {len(left) - 20} more' if len(left) > 20 else ''}")


def main(arguments: Optional[List[str]] = None) -> int:
    """Run the command; returns its exit code: 0 done, 1 refused, 2 usage, 130 interrupted."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.out is None and not given.dry_run:
        parser.error("expected --out DIR or --dry-run")
    try:
        with _limit(given.memory + DESCRIPTION_BYTES_MAX):
            tensors = _open(given.kind, Request(given.source, dict(given.dim), given.dtype))
            tables = choose(tensors, given.table)
            _show(tables, tensors)
            if not given.dry_run:
                write(tables, given.out, given.memory)
                print(f"{given.out}: {len(tables)} tables, checked against the source")
    except MemoryError:
        print(f"hpsd convert: {given.source}: needs more memory than --memory ({given.memory >> 20} MiB) and 256 MiB, "
              "or is damaged; give more if you trust it", file=sys.stderr)
        return 1
    except (ConvertError, OSError) as error:
        print(f"hpsd convert: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("hpsd convert: interrupted; nothing was written", file=sys.stderr)
        return 130
    return 0
