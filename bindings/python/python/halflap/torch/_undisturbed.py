"""Runs code that makes thousands of small calls and objects, deep inside a compiler."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import FunctionType
from typing import Any


def undisturbed(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function without garbage collections, which would repeatedly traverse all of torch's
    objects without finding garbage; and with room on the stack."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _with_room(function, *arguments)
    finally:
        if was_enabled:
            gc.enable()


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


#: Since 3.11 Python has its stack in pieces of 16 KiB. Where one happens to end, every call takes a
#: new piece from the system and gives it back, which takes several times as long as the call. A
#: frame that is larger than a piece gets a piece of its own, of the next power of two: behind this
#: one half of it is left.
SLOTS = 4200

_with_room = FunctionType(_call.__code__.replace(co_stacksize=SLOTS), globals(), "_with_room")
