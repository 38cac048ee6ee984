"""What all strategies share: their entries `start` and `fit`."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower

from flwr_splitmix.clients import Client
from flwr_splitmix.links import LinkError, LocalLink
from flwr_splitmix.links.auto import default_link
from flwr_splitmix.links.link import UNNAMED
from flwr_splitmix.server.aggregation.choice import (
    check_draws_no_nodes,
    check_works_without_grid,
    warn_of_minima,
)
from flwr_splitmix.server.aggregation.first_arrays import check_first_arrays
from flwr_splitmix.server.evaluation.central import EvaluateFn
from flwr_splitmix.server.evaluation.of_round import check_evaluate_fn
from flwr_splitmix.server.options import check_live_clients, check_wait
from flwr_splitmix.server.record.flower_grid import id_of
from flwr_splitmix.server.rounds.fits import LastFit, first_arrays
from flwr_splitmix.server.rounds.hooks import RoundHooks
from flwr_splitmix.server.rounds.job import Job, message_config
from flwr_splitmix.server.rounds.run import WholeRun
from flwr_splitmix.values import check_initialized, whole_number
from flwr_splitmix.words import are, counted

log = logging.getLogger("flwr.splitmix")


class RoundLoop(RoundHooks):
    """A Flower strategy whose rounds have steps over a link; subclasses define its rounds.

    Parameters
    ----------
    **options
        See `LoopSetup`.

    See `RoundHooks` and `LoopSetup` for the attributes.
    """

    _last_fit: LastFit | None = None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        *,
        attach_timeout: float | None = None,
    ) -> flower.Result:
        """Run the strategy inside a Flower run.

        Parameters
        ----------
        initial_arrays
            The lower segment that every client starts from.
        timeout
            Maximum wait, in seconds and at most 120, for nodes to answer and for clients to attach
            and to finish; ignored if there is an `attach_timeout`.
        train_config, evaluate_config
            Entries of the messages, for mods and the aggregator. A `client_fn` does not see them
            (in a simulation it is called once), which a warning says: what a client is built from
            is the run configuration, `context.run_config`.
        evaluate_fn
            Central evaluation, called every `evaluate_every` rounds and after the last round (not
            before the first). It gets the averaged lower segment; if the strategy does not
            average, the initial one, and a warning says so.
        attach_timeout
            The same wait, in seconds, however long: for nodes that start later than the ServerApp.
            Both are ignored if there is a `link`, which has its own.

        Returns
        -------
        Flower's result. Its `arrays` are the averaged lower segment; without an aggregator they are
        the initial one, as each client keeps its own.

        Raises
        ------
        AggregatorError
            If the aggregator draws nodes by itself, or `initial_arrays` is empty and it averages.
        LinkError
            If clients cannot be reached, fewer than `min_nodes` are left, or every round is lost.
        ValueError
            If `timeout` or `attach_timeout` is not a number above 0.
        RunError
            If another process executes the run, or its checkpoint is of another strategy,
            aggregator, seed, model or optimizer.
        """
        check_initialized(self, RoundLoop, "stop_reason")
        check_wait("timeout", timeout)
        if attach_timeout is not None:
            check_wait("attach_timeout", attach_timeout)
        check_draws_no_nodes(self.aggregator.strategy)
        warn_of_minima(self.aggregator.strategy, self.min_nodes)
        self.prepare(None)
        self.forget_clients()
        self._check_first(initial_arrays, given=True)
        self.draw_seed = self.seed
        run = self.recorder.run
        if isinstance(self.link, LocalLink):  # that of a `fit`
            self.link = self._given_link
        if self.link is None:
            self.link = default_link(run, attach_timeout or min(timeout, 120.0))
        # Nodes keep states by this name: those of another start in this Flower run are not its own.
        own = f"{UNNAMED}{secrets.token_hex(8)}"
        self.link.run_of_strategy = own if run is None else run.id
        train = message_config("train_config", train_config)
        evaluate = message_config("evaluate_config", evaluate_config)
        job = Job(grid, initial_arrays, evaluate_fn, train, evaluate)
        self._run(job, num_rounds)
        return job.result

    def fit(
        self,
        clients: Sequence[Client],
        num_rounds: int = 3,
        *,
        initial_arrays: ArrayRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> flower.Result:
        """Run the strategy on clients of this process, without Flower's runtime and without Ray.

        Parameters
        ----------
        clients
            Live clients; their position is their index. Those of an earlier `fit`, of whatever
            strategy, keep their optimizers' moments and their place in the data.
        initial_arrays
            The lower segment that all clients start from; without an aggregator an empty record
            lets each start from its own. None uses the first client's that fits most of them. If
            they are the clients of the last `fit`, they go on with what they have learned, by other
            random draws, with the schedule from its beginning. A ledger of noise counts every
            `fit`, as other clients may have the same data. With a `run` its newest checkpoint
            decides, and `num_rounds` includes the rounds before. It needs the run's seed; another
            number of clients is warned of. A client that no further round asks is set, at the end,
            to its state in the last finished round; its privacy ledger is not reset.

        Returns
        -------
        Flower's result, as from `start`; `clients[i].segment` is a client's own lower segment.

        Raises
        ------
        AggregatorError
            If the aggregator needs a grid of nodes, makes nothing of the clients' lower segments,
            or they have no weights.
        LinkError
            If fewer than `min_nodes` clients are given, or are left in a round, or every round is
            lost.
        RunError
            As from `start`.
        """
        check_initialized(self, RoundLoop, "stop_reason")
        check_live_clients(clients)
        if (n := len(clients)) < self.min_nodes:
            raise LinkError(
                f"there {are(n)} {counted(n, 'client')}, {self._said_least('min_nodes')}"
            )
        check_works_without_grid(self.aggregator.strategy, len(clients))
        self.prepare(clients)
        if initial_arrays is not None:
            self._check_first(initial_arrays, given=True)
        self._warn_of_link()
        last, self._last_fit = self._last_fit, None
        if last is None or not last.has(clients):
            self.forget_clients()
            last = None
        if last is not None and initial_arrays is None:
            link, arrays, self.draw_seed = last.link, last.arrays, last.next_draw_seed
        else:
            run = None if self.states_in_checkpoint else self.recorder.run
            link = LocalLink(clients, None if run is None else run.clients_dir)
            self.draw_seed = self.seed
            arrays = first_arrays(initial_arrays, clients, averages=self.aggregator.averages)
        self.link = link
        job = Job(None, arrays, evaluate_fn, goes_on=last is not None)
        try:
            finished = self._run(job, num_rounds)
        finally:  # also after an interruption: the clients have learned until then
            if self.recorder.run is None:
                self._last_fit = LastFit(link, job.result.arrays or arrays, self.draw_seed)
        link.restore_unasked(finished)
        return job.result

    def _run(self, job: Job, num_rounds: int) -> int:
        """Begin a run and execute its rounds; return the number of the last."""
        with self.recorder.start.held(id_of(job.grid)):
            self.num_rounds = whole_number("num_rounds", num_rounds, least=1)
            check_evaluate_fn(job.evaluate_fn)
            self.stop_reason = ""
            self.audience.forget_stops()
            self.aggregator.forget()
            self._check_first(job.initial, given=False)
            self._known.begin(job.initial)
            run = WholeRun(self, self._known, job)
            run.execute()
            return run.finished

    def _check_first(self, arrays: object, *, given: bool) -> None:
        check_first_arrays(arrays, averages=self.aggregator.averages, given=given)

    def _warn_of_link(self) -> None:
        """Log, once, if `fit` takes the place of a link that was given."""
        if self._given_link is not None and self._once.first("link"):
            log.warning(
                "%s was given a %s as its link, which fit does not use: clients of this process "
                "are called directly, and nothing is rounded on the way",
                type(self).__name__,
                type(self._given_link).__name__,
            )

    def forget_clients(self) -> None:
        """Forget the rounds that clients began and did not finish: others get their indices."""
        self.records.unfinished.forget()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The metrics of each finished round, by the names of the columns in `metrics.parquet`.

        For example "round", "loss", "accuracy", "uplink_bytes" and "seconds"; "accuracy" is None in
        rounds that were not evaluated.
        """
        return self.records.metrics.rows

    @property
    def last_trained_round(self) -> Mapping[int, int]:
        """By client index, the last round that the client finished."""
        return self._known.participants.last_trained_round
