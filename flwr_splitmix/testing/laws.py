"""The laws of split learning as checks of your own mixer or strategy.

    from functools import partial
    from flwr_splitmix.strategies import SplitStrategy
    from flwr_splitmix.testing import laws

    laws.check_masks_partition(MyMixer(), clients=5)
    laws.check_split_equals_whole(partial(SplitStrategy, mixer=MyMixer()))

For the U shape, laws 1 and 6 have their own checks with a `TextToy`; laws 5 and 7 take a toy of
either shape:

    laws.check_ushape_equals_whole(MyUShapeStrategy, laws.TextToy(hiding=MyHiding))

A broken law raises AssertionError; the message states the law, the place and the difference. Law 4
(links agree) compares runs: pass the results of two of them to `check_same_results`. The other
checks run without Flower's runtime.

Toys have five clients of random numbers, of which groups of two leave one over, so that this case
is checked, too. The log then warns that nothing protected that client: this is no fault of a mixer.
"""

from flwr_splitmix.testing.agreement import (
    Results,
    check_same_results,
    check_same_tensors,
    read_results,
)
from flwr_splitmix.testing.degenerate import check_degenerate_cases
from flwr_splitmix.testing.families import check_families
from flwr_splitmix.testing.lifetimes import check_graphs_are_freed
from flwr_splitmix.testing.partition import check_masks_partition
from flwr_splitmix.testing.resume import check_resume_equals_uninterrupted
from flwr_splitmix.testing.toy import Toy, sgd
from flwr_splitmix.testing.toy_texts import TextToy
from flwr_splitmix.testing.whole import check_split_equals_whole
from flwr_splitmix.testing.whole_ushape import check_ushape_equals_whole
from flwr_splitmix.testing.wire import check_wire
from flwr_splitmix.testing.wire_ushape import check_ushape_wire

__all__ = [
    "Results",
    "TextToy",
    "Toy",
    "check_degenerate_cases",
    "check_families",
    "check_graphs_are_freed",
    "check_masks_partition",
    "check_resume_equals_uninterrupted",
    "check_same_results",
    "check_same_tensors",
    "check_split_equals_whole",
    "check_ushape_equals_whole",
    "check_ushape_wire",
    "check_wire",
    "read_results",
    "sgd",
]
