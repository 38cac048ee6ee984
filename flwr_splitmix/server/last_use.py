"""The last user of an object in this process, such as of a module given to two strategies."""

from __future__ import annotations

import weakref

_last_user: dict[int, object] = {}
"""The last user of each living object, by the object's identity."""


def note_use(used: object, user: object) -> None:
    """Note that an object, which may end before or after its user, has been used."""
    key = id(used)
    if key not in _last_user:
        weakref.finalize(used, _last_user.pop, key, None).atexit = False
    _last_user[key] = user


def used_by_another(used: object, user: object) -> bool:
    """Return whether an object has been used, and another user was the last."""
    return _last_user.get(id(used), user) is not user
