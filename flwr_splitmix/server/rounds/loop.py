"""The entries of all strategies: `start` and `fit`."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower

from flwr_splitmix.clients import Client
from flwr_splitmix.links import Link, LinkError, LocalLink
from flwr_splitmix.links.auto import default_link
from flwr_splitmix.links.link import UNNAMED
from flwr_splitmix.server.aggregation.choice import (
    check_draws_no_nodes,
    check_works_without_grid,
    warn_of_minima,
)
from flwr_splitmix.server.evaluation.central import EvaluateFn
from flwr_splitmix.server.evaluation.of_round import check_evaluate_fn
from flwr_splitmix.server.messages import message_config
from flwr_splitmix.server.naming import name_of_option
from flwr_splitmix.server.options import check_live_clients, check_wait
from flwr_splitmix.server.record.flower_grid import id_of
from flwr_splitmix.server.rounds.hooks import RoundHooks
from flwr_splitmix.server.rounds.initial_arrays import check_initial_arrays, initial_arrays_of_fit
from flwr_splitmix.server.rounds.run import WholeRun
from flwr_splitmix.server.rounds.state import RunState
from flwr_splitmix.values import check_initialized, check_kind, whole_number
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
            Entries of the messages, for mods, and those of training for the aggregator. A
            `client_fn` does not see them (in a simulation it is called once), and a warning is
            logged: a client is built from the run configuration, `context.run_config`.
        evaluate_fn
            Central evaluation, called every `evaluate_every` rounds and after the last round (not
            before the first). It gets the averaged lower segment; if the strategy does not
            average, the initial one, with a warning.
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
        TypeError
            If `grid` is a context or arrays.
        ValueError
            If `timeout` or `attach_timeout` is not a number above 0.
        RunError
            If another process executes the run, or its checkpoint belongs to another strategy,
            aggregator, seed, model or optimizer.
        """
        check_initialized(self, RoundLoop, "audience")
        if isinstance(grid, (Context, ArrayRecord)):  # a grid of one's own may be of any class
            needed = "the grid that Flower hands to the function under @app.main()"
            check_kind("grid", grid, Grid, needed)
        check_wait("timeout", timeout)
        if attach_timeout is not None:
            check_wait("attach_timeout", attach_timeout)
        check_draws_no_nodes(self.aggregator.strategy)
        directory = self.recorder.run
        option = name_of_option(directory, "min_nodes", "min-nodes")
        warn_of_minima(self.aggregator.strategy, self.min_nodes, option)
        self.prepare(None)
        self._check_initial_arrays(initial_arrays, given=True)
        link = self.link or default_link(directory, attach_timeout or min(timeout, 120.0))
        # Nodes keep states by this name: those of another start in this Flower run are not its own.
        run_name = f"{UNNAMED}{secrets.token_hex(8)}"
        link.run_of_strategy = run_name if directory is None else directory.id
        link.key_of_strategy = None if directory is None else directory.state_key
        run: RunState[Any] = RunState(
            link=link,
            num_rounds=num_rounds,
            draw_seed=self.seed,
            initial=initial_arrays,
            grid=grid,
            evaluate_fn=evaluate_fn,
            train_config=message_config("train_config", train_config),
            evaluate_config=message_config("evaluate_config", evaluate_config),
        )
        self._execute(run, None)
        return run.result

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
            they are the clients of the last `fit`, they continue with what they have learned, with
            other random draws and the schedule from its beginning. A ledger of noise counts every
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
        check_initialized(self, RoundLoop, "audience")
        check_live_clients(clients)
        if (n := len(clients)) < self.min_nodes:
            raise LinkError(
                f"there {are(n)} {counted(n, 'client')}, {self._minimum_phrase('min_nodes')}"
            )
        check_works_without_grid(self.aggregator.strategy, len(clients))
        self.prepare(clients)
        if initial_arrays is not None:
            self._check_initial_arrays(initial_arrays, given=True)
        self._warn_of_link()
        before = self._fit_to_continue(clients)
        link: Link
        if before is not None and initial_arrays is None:
            link, arrays, seed = before.link, before.arrays, before.next_draw_seed
        else:
            directory = None if self.states_in_checkpoint else self.recorder.run
            link = LocalLink(clients, None if directory is None else directory.clients_dir)
            arrays = initial_arrays_of_fit(
                initial_arrays, clients, averages=self.aggregator.averages
            )
            seed = self.seed
        run: RunState[Any] = RunState(
            link=link,
            num_rounds=num_rounds,
            draw_seed=seed,
            initial=arrays,
            evaluate_fn=evaluate_fn,
            continues_fit=before is not None,
        )
        self._execute(run, before)
        if isinstance(link, LocalLink):
            link.restore_unasked(run.finished)
        return run.result

    def _fit_to_continue(self, clients: Sequence[Client]) -> RunState[Any] | None:
        """Return the last `fit`, even if interrupted, if another of the same clients continues it.

        With a run's directory the newest checkpoint decides where a `fit` continues.
        """
        last = self._run_state
        return (
            last if last is not None and last.has(clients) and self.recorder.run is None else None
        )

    def _execute(self, run: RunState[Any], before: RunState[Any] | None) -> None:
        """Begin a run and execute its rounds."""
        with self.recorder.start.held(id_of(run.grid)):
            self._begin(run, before)
            WholeRun(self).execute()

    def _begin(self, run: RunState[Any], before: RunState[Any] | None) -> None:
        """Begin a run, in this order.

        1. Its arguments are checked; until then the state of the previous run is unchanged.
        2. Observers, records and the aggregator forget the previous run; but if its clients
           continue, not what they left unfinished.
        3. The strategy gets the new state. If the run has a checkpoint, `WholeRun` restores from it
           what all of these had known.

        Parameters
        ----------
        before
            The run whose clients continue; None for other clients.
        """
        run.num_rounds = whole_number("num_rounds", run.num_rounds, least=1)
        check_evaluate_fn(run.evaluate_fn)
        self._check_initial_arrays(run.initial, given=False)
        self.audience.begin()
        self.records.begin(continues_fit=before is not None)
        self.aggregator.begin()
        run.shape = self.new_shape_state(None if before is None else before.shape)
        self._run_state = run

    def _check_initial_arrays(self, arrays: object, *, given: bool) -> None:
        check_initial_arrays(arrays, averages=self.aggregator.averages, given=given)

    def _warn_of_link(self) -> None:
        """Log, once, if `fit` takes the place of a link that was given."""
        if self.link is not None and self._once.add("link"):
            log.warning(
                "%s was given a %s as its link, which fit does not use: clients of this process "
                "are called directly, and nothing is rounded on the way",
                type(self).__name__,
                type(self.link).__name__,
            )

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The metrics of each finished round, by the names of the columns in `metrics.parquet`.

        For example "round", "loss", "accuracy", "uplink_bytes" and "seconds"; "accuracy" is None in
        rounds that were not evaluated.
        """
        return self.records.metrics.rows
