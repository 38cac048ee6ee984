"""Split learning as Flower strategies: one file a strategy."""

from flwr_splitmix.strategies.cutmix_sfl import CutMixSFL
from flwr_splitmix.strategies.cutmix_sl import CutMixSL
from flwr_splitmix.strategies.evaluation import central_evaluation
from flwr_splitmix.strategies.psl import PSL
from flwr_splitmix.strategies.sfl import SFL
from flwr_splitmix.strategies.strategy import SplitStrategy

STRATEGIES: dict[str, type[SplitStrategy]] = {
    kind.__name__: kind for kind in (PSL, SFL, CutMixSL, CutMixSFL)
}
"""All strategies by name: what an app offers and the laws run over."""

__all__ = [
    "PSL",
    "SFL",
    "STRATEGIES",
    "CutMixSFL",
    "CutMixSL",
    "SplitStrategy",
    "central_evaluation",
]
