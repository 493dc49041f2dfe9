"""What a user writes into kv_connector_extra_config."""

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple, Union

from cachalot.connectors.access.options import PoolOptions, check_names, check_types, parse_bytes, parse_pool, refuse
from cachalot.errors import InvalidArgumentError

_FLAG = "kv_connector_extra_config"


@dataclass(frozen=True)
class Transfer:
    """KV goes from the prefill to the decode engine, with or without a pool."""

    #: where this engine's workers can be reached: "tcp:IP:PORT" (port 0: any), or "auto": a socket of this machine
    listen: Tuple[str, ...] = ("auto",)
    #: seconds that a prompt is offered, and that a transfer may take; then it is computed
    deadline: float = 30.0
    #: a file with the key that all engines have in common: tcp: links are encrypted by it
    cluster_key_file: str = ""
    #: verify every payload
    checksums: bool = False
    #: seconds of silence of a peer, while something waits for it
    peer_timeout: float = 5.0
    #: ranks of one machine that hold the same bytes (MLA, more ranks than KV heads) fetch them once, and copy
    once_per_machine: bool = True
    #: most seconds that an ended request's KV stands on offer, if the request asks for it; 0: none does
    standing: float = 60.0
    #: share of the engine's blocks that may stand on offer
    standing_held: float = 0.25
    #: of a KV cache on a GPU: page-locked memory between it and other engines, for the blocks of all open transfers
    bounce: str = "1GiB"


@dataclass(frozen=True)
class Options(PoolOptions):
    """Names and defaults of all options. The guide's table lists the same. `pool` may be empty with `transfer`."""

    #: prefill hands KV over to decode: an object, as {"listen": ["tcp:10.0.0.1:0"]}
    transfer: Optional[Transfer] = None
    #: "async": a request waits for its blocks while others are computed. "sync": the step waits for them
    load: str = "async"
    #: engines of other tensor parallel sizes share, in pieces of so many groups of the model's KV heads. "auto": as
    #: many as it has heads; 0: only ranks with the same heads share
    share_tp: Union[int, str] = 0


def _transfer_of(given: Any) -> Transfer:
    name = f"{_FLAG}: transfer"
    if not isinstance(given, Mapping):
        refuse(name, given, 'an object, as {"listen": ["tcp:10.0.0.1:0"]}')
    check_names(name, given, Transfer)
    values: Dict[str, Any] = dict(given)
    listen = values.pop("listen", ("auto",))
    listen = [listen] if isinstance(listen, str) else listen
    if not isinstance(listen, (list, tuple)) or not listen or not all(isinstance(one, str) for one in listen):
        raise InvalidArgumentError(f'{name}: listen: {listen!r}, expected addresses, as ["tcp:10.0.0.1:0"]')
    check_types(name, values, Transfer)
    transfer = Transfer(listen=tuple(listen), **values)
    for field in ("deadline", "peer_timeout"):
        if not 0 < getattr(transfer, field) <= 3600:
            raise InvalidArgumentError(f"{name}: {field}: {getattr(transfer, field)!r}, expected seconds above 0, at most 3600")
    if not 0 <= transfer.standing <= 3600:
        raise InvalidArgumentError(f"{name}: standing: {transfer.standing!r}, expected seconds from 0 to 3600")
    parse_bytes(transfer.bounce, f"{name}: bounce")
    if not 0 < transfer.standing_held <= 0.9:
        raise InvalidArgumentError(f"{name}: standing_held: {transfer.standing_held!r}, expected a share above 0, at most 0.9")
    return transfer


def parse(given: Mapping[str, Any]) -> Options:
    """Checks the options before the engine serves.

    Raises InvalidArgumentError: an unknown option, a value of another type or out of range, no pool.
    """
    values = parse_pool(_FLAG, given, Options, needs_pool=given.get("transfer") is None)
    if values.get("transfer") is not None:
        values["transfer"] = _transfer_of(values["transfer"])
    options = Options(**values)
    if options.load not in ("async", "sync"):
        refuse(f"{_FLAG}: load", options.load, "async or sync")
    is_number = isinstance(options.share_tp, int) and not isinstance(options.share_tp, bool)
    if options.share_tp != "auto" and not (is_number and 0 <= options.share_tp < 2**32):
        refuse(f"{_FLAG}: share_tp", options.share_tp, 'a number of groups of KV heads, "auto", or 0 (off)')
    return options
