"""From Rényi divergences to (epsilon, delta): composition is addition, conversion a minimum."""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_splitmix.values import check_choice, real_number

Floats = NDArray[np.float64]
Conversion = Literal["tight", "papers"]

ORDERS: Floats = 1 + np.logspace(-4, 4, 1281)
"""From 1.0001 to 10001, evenly in the logarithm of order - 1: optimal orders are near 1 for large
epsilon, in the thousands for small. Using the nearest one adds below 0.01 % to epsilon."""


def rdp_curve(rho: ArrayLike, orders: ArrayLike = ORDERS) -> Floats:
    """Return the Rényi divergences `order * rho` of Gaussian releases.

    Parameters
    ----------
    rho
        Slopes (...), as returned by `release_costs`; sum those of a composition first.
    orders
        Orders (r,), each greater than 1.

    Returns
    -------
    float64 (..., r), nats.

    Source: Mironov, Rényi Differential Privacy (2017), proposition 7.
    """
    return np.multiply.outer(np.asarray(rho, dtype=np.float64), _checked(orders))


def epsilon_from_rdp(
    rdp: ArrayLike, delta: float, orders: ArrayLike = ORDERS, conversion: Conversion = "tight"
) -> tuple[Floats, Floats]:
    """Return the smallest epsilon over the orders, and the order that gives it.

    Parameters
    ----------
    rdp
        Divergences (..., r) at `orders`.
    conversion
        "tight": `rdp + log(1 - 1/order) - (log delta + log order) / (order - 1)`.
        "papers": `rdp + log(1/delta) / (order - 1)`, which is never smaller; for comparison.

    Returns
    -------
    Two float64 arrays (...): epsilon, at least 0, and the order.

    Raises
    ------
    ValueError
        If delta is not strictly between 0 and 1, an order is not greater than 1, or the conversion
        is unknown.

    Source: "tight", Canonne, Kamath and Steinke, The Discrete Gaussian for Differential Privacy
    (2020), proposition 12; "papers", Mironov (2017), proposition 3.
    """
    candidates = np.asarray(rdp, dtype=np.float64) + _offset(delta, orders, conversion)
    best = candidates.argmin(axis=-1)
    least = np.take_along_axis(candidates, best[..., None], axis=-1)[..., 0]
    return np.maximum(least, 0.0), _checked(orders)[best]


def delta_from_rdp(rdp: ArrayLike, epsilon: float, orders: ArrayLike = ORDERS) -> Floats:
    """Return the smallest delta over the orders for which epsilon holds (tight conversion).

    Returns
    -------
    float64 (...), in 0..1.

    Raises
    ------
    ValueError
        If epsilon is negative or not a number, or an order is not greater than 1.
    """
    if not epsilon >= 0:
        raise ValueError(f"epsilon is {epsilon}; it must be at least 0")
    o = _checked(orders)
    logs = (o - 1) * (np.asarray(rdp, dtype=np.float64) - epsilon + np.log1p(-1 / o)) - np.log(o)
    deltas: Floats = np.exp(np.minimum(logs.min(axis=-1), 0.0))
    return deltas


def rho_for(epsilon: float, delta: float, orders: ArrayLike = ORDERS) -> float:
    """Return the largest slope whose epsilon, by the tight conversion, is at most `epsilon`.

    Raises
    ------
    ValueError
        If epsilon is not positive, or so small that even a slope of 0 exceeds it at these orders.
    """
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ValueError(f"epsilon is {epsilon}; a target must be a number above 0")
    largest = float(((epsilon - _offset(delta, orders, "tight")) / _checked(orders)).max())
    if largest <= 0:
        raise ValueError(
            f"epsilon is {epsilon}; at delta {delta} no amount of noise is shown to reach it"
        )
    return largest


def check_delta(delta: float) -> None:
    """Raise ValueError unless `delta` is strictly between 0 and 1."""
    if not 0 < real_number("delta", delta) < 1:
        raise ValueError(f"delta is {delta}; it must lie strictly between 0 and 1")


def _offset(delta: float, orders: ArrayLike, conversion: Conversion) -> Floats:
    check_delta(delta)
    o = _checked(orders)
    check_choice("conversion", conversion, get_args(Conversion))
    offset: Floats
    if conversion == "papers":
        offset = -np.log(delta) / (o - 1)
    else:
        offset = np.log1p(-1 / o) - (np.log(delta) + np.log(o)) / (o - 1)
    return offset


def _checked(orders: ArrayLike) -> Floats:
    values = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if not (np.isfinite(values).all() and (values > 1).all()):
        raise ValueError(f"order is {values.min():g}; a Rényi order must be greater than 1")
    return values
