from client_app import Lower
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam
from torch import nn

from flwr_splitmix.data import load_images
from flwr_splitmix.strategies import CutMixSFL, central_evaluation

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    lower = Lower(1, 64, 8, stride=8)
    block = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    upper = nn.Sequential(nn.TransformerEncoder(block, 2), nn.Flatten(), nn.Linear(16 * 64, 10))
    strategy = CutMixSFL(upper, num_classes=10, aggregator=FedAdam(eta=0.01))
    test = central_evaluation(strategy.upper, lower, load_images("fashion-mnist-small").test)
    strategy.start(grid, ArrayRecord(lower.state_dict()), num_rounds=3, evaluate_fn=test)
